"""The streamed schedule with dot instructions: few rows of rounded activations.

As in ``product_streamed`` every weight is read once. The item first rounds the activations into
private words; then each word of a panel meets the same word of every row.
"""

from __future__ import annotations

from ptir.codegen.expressions.elementwise import cast
from ptir.codegen.expressions.expr import Apply, Cell, Expr, Load, Var
from ptir.codegen.expressions.index import Axis, Index, axis, number
from ptir.codegen.families.matmul.parts import Rounded
from ptir.codegen.families.matmul.streamed import Streamed, each
from ptir.codegen.families.rounding.serial import round_group
from ptir.codegen.schedules.kernel import Kernel, finished
from ptir.codegen.weights.panels import LANES
from ptir.codegen.weights.quantized import Quantized, parted
from ptir.types import BF16, F32, I8, I32, U32


class StreamedDots(Streamed):
    """Few rows of words."""

    def kernel(self) -> Kernel:
        """An item per run of panels."""
        writer, panels = self.writer, self.panels
        writer.fetch_ahead(self.product.packed, self.tiles.ahead)
        items = self.items(panels.count)
        quantized = self.product.quantized
        stored = quantized is None and self._words_of_bf16()
        if quantized is not None:
            self._words_of_bytes(quantized)
        with writer.loop(Axis("p", panels.count), *writer.share(panels.count, items)):
            if quantized is None:
                self._panel_of_pairs(stored, axis("p", panels.count))
            else:
                self._panel_of_bytes(quantized, axis("p", panels.count))
        return finished(self.group, writer, items)

    @property
    def rounded(self) -> Rounded:
        """What is done to the activations."""
        assert self.product.rounded is not None
        return self.product.rounded

    # --- pairs of bf16 ---

    def _words_of_bf16(self) -> bool:
        """Rows of bf16 into private words, unless they lie in memory as such: then True."""
        rows, size = self.product.rows, self.product.inputs
        if self.group.prologue is None and self._are_words_in_memory():
            return True
        writer = self.writer
        writer.array("x", rows * size // 2, U32)
        with writer.loop(Axis("m", rows), 0, rows):
            row = axis("m", rows)
            prologue = self.group.prologue
            if prologue is not None:
                self._run(prologue, row)
            else:
                each(writer, size, lambda place: self._put(row, place, self.activation(row, place)))
        return False

    def _are_words_in_memory(self) -> bool:
        rows, words = self.product.rows, self.product.inputs // 2
        return self.word_in_memory(axis("m", rows), axis("k", words)) is not None

    def _put(self, row: Index, place: Index, expr: Expr) -> None:
        dtype = BF16 if self.rounded.dot == "dot_bf16" else F32
        self.writer.put("x", row * self.product.inputs + place, expr, dtype)

    def _panel_of_pairs(self, stored: bool, panel: Index) -> None:
        """A panel, two inputs at a time."""
        writer, rows, words = self.writer, self.product.rows, self.product.inputs // 2
        chains = max(1, self.tiles.chains // rows)
        while words % chains:
            chains //= 2
        sums = self.chained(chains)
        steps, output = words // chains, panel * LANES + axis("lane", LANES)
        with writer.loop(Axis("k", steps), 0, steps), writer.lanes(Axis("lane", LANES)):
            for c in range(chains):
                word = axis("k", steps) * chains + c
                weight = Load(U32, self.product.packed, self.panels.word(output, word * 2))
                for m in range(rows):
                    found = self.word_in_memory(number(m), word) if stored else None
                    x = found or Cell(U32, "x", number(m * words) + word)
                    self.dot(sums[m][c], weight, x)
        self.finish_chained(panel, sums)

    # --- bytes ---

    def _words_of_bytes(self, quantized: Quantized) -> None:
        """Private ``words`` of rounded activations, with the scale and the start of each group."""
        writer, rows, size = self.writer, self.product.rows, quantized.group
        private, groups = self._activations(), quantized.inputs // size
        writer.array("words", rows * quantized.inputs // 4, U32)
        writer.array("scales", rows * groups, F32)
        writer.array("sums", rows * groups, I32)
        with writer.loop(Axis("m", rows), 0, rows):
            row = axis("m", rows)
            with writer.loop(Axis("h", groups), 0, groups):
                first = axis("h", groups) * size
                start = row * quantized.inputs + first
                scale, total = round_group(
                    writer,
                    size,
                    lambda place: self._input(private, row, first + place),
                    lambda place, value: writer.put("words", start + place, value, I8),
                )
                at = row * groups + axis("h", groups)
                writer.put("scales", at, scale)
                writer.put("sums", at, total, I32)
        if quantized.parts > 1:
            self._part(rows * quantized.inputs // 8)

    def _part(self, pairs: int) -> None:
        """Bring bytes at even places of eight, then those at odd ones, into words of their own.

        So a word of eight 4-bit values is two words of bytes with one shift.
        """
        writer, place = self.writer, axis("e", pairs) * 2
        with writer.loop(Axis("e", pairs), 0, pairs):
            a, b = (Cell(U32, "words", place + n) for n in range(2))
            for n, found in enumerate([writer.scalar(one) for one in parted(a, b)]):
                writer.put("words", place + n, found, U32)

    def _panel_of_bytes(self, quantized: Quantized, panel: Index) -> None:
        """A panel group by group: sums of products of bytes, scaled once."""
        writer, rows = self.writer, self.product.rows
        groups = quantized.inputs // quantized.group
        results = [writer.declare(self.zero(), f"y{m}") for m in range(rows)]
        with writer.loop(Axis("h", groups), 0, groups), writer.lanes(Axis("lane", LANES)):
            self._group_of_bytes(quantized, panel, axis("h", groups), results)
        for m, result in enumerate(results):
            self.finish_panel(number(m), panel, result)

    def _group_of_bytes(
        self, quantized: Quantized, panel: Index, group: Index, results: list[Var]
    ) -> None:
        """Add one group's products to the result of every row."""
        writer, rows = self.writer, self.product.rows
        output = panel * LANES + axis("lane", LANES)
        groups, words = quantized.inputs // quantized.group, quantized.group // quantized.per
        totals = [Cell(I32, "sums", number(m * groups) + group) for m in range(rows)]
        sums = [
            writer.declare(writer.wide(quantized.start(total)), f"a{m}")
            for m, total in enumerate(totals)
        ]
        for w in range(words):
            found = quantized.bytes_of(quantized.word(output, group * words + w))
            for n, weight in enumerate(found):
                place = group * (quantized.group // 4) + (w * len(found) + n)
                for m in range(rows):
                    x = Cell(U32, "words", number(m * quantized.inputs // 4) + place)
                    self.dot(sums[m], weight, x)
        step = quantized.scaled(self.builder, output, group)
        for m, total in enumerate(totals):
            scale = Cell(F32, "scales", number(m * groups) + group)
            self.scaled(results[m], sums[m], Apply(F32, "mul", step, scale))
            if quantized.whole_zero is None:
                offset = quantized.offset(self.builder, output, group)
                self.added(results[m], Apply(F32, "mul", scale, cast(F32, total)), offset)
