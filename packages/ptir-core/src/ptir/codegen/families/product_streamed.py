"""The streamed schedule of a product of few rows: every weight is read once, as it lies in memory.

An item owns a run of panels, keeps a vector of 16 outputs per row and broadcasts one input after
the other.
"""

from __future__ import annotations

from ptir.codegen.expr import Apply, Cell, Expr, Load, constant
from ptir.codegen.families.product_parts import Writing, fma
from ptir.codegen.families.rows import Rows, RowWriter
from ptir.codegen.index import Axis, Index, axis, number
from ptir.codegen.kernel import Group, Kernel, finished
from ptir.codegen.panels import LANES
from ptir.codegen.quantized import UNIT, Quantized
from ptir.codegen.writer import Writer
from ptir.types import F32


class Streamed(Writing):
    """Few rows: every weight is read once, in the order in which it lies in memory."""

    def kernel(self) -> Kernel:
        """An item per run of panels."""
        writer, panels = self.writer, self.panels
        writer.fetch_ahead(self.product.packed, self.tiles.ahead)
        items = self.items(panels.count)
        read = self._activations()
        if self.product.quantized is not None:
            self._sums(self.product.quantized, read)
        writer.share(panels.count, items)
        with writer.loop(Axis("p", panels.count), "first", "last"):
            self._find_panel()
            if self.product.quantized is None:
                self._panel(read, axis("p", panels.count))
            else:
                self._groups(self.product.quantized, read, axis("p", panels.count))
        return finished(self.group, writer, items)

    def _find_panel(self) -> None:
        """Declare where panel ``p`` lies in memory, where panels lie in several runs."""
        begin, moves = 0, list[str]()
        for (start, end), (_, before) in zip(
            self.panels.runs, ((0, 0), *self.panels.runs), strict=False
        ):
            if start != before:
                moves.append(f" + (p >= {begin} ? {start - before} : 0)")
            begin += end - start
        if self.panels.runs:
            self.writer.line(f"const int stored = p{''.join(moves)};")

    def output(self, panel: Index) -> Index:
        """Where the 16 outputs of a panel lie in memory."""
        lane = axis("lane", LANES)
        return (axis("stored", self.panels.stored) if self.panels.runs else panel) * LANES + lane

    def _activations(self) -> bool:
        """Compute what is not simply stored into a private array; says whether there is one."""
        rows, size = self.product.rows, self.product.inputs
        if self.product.prologue is None and self._is_stored():
            return False
        writer = self.writer
        writer.line(writer.dialect.private("x", rows * size))
        with writer.loop(Axis("m", rows), "0", str(rows)):
            row = axis("m", rows)
            prologue = self.product.prologue
            if prologue is not None:
                self._run(prologue, row)
            else:
                each(writer, size, lambda place: self._put(row, place, self.activation(row, place)))
        return True

    def _run(self, prologue: Group, row: Index) -> None:
        """The row program that makes the activations, for one row."""
        rows: Rows = prologue.detail
        inside = {v for p in prologue.members for v in self.graph.results[p]}
        builder = self.site.builder()
        builder.stored = lambda v: v not in inside and self.site.stored(v)
        body = RowWriter(self.writer, builder, rows, row)
        body.stages()
        body.each(lambda place: self._put(row, place, body.exit(rows.exits[0], place)))

    def _put(self, row: Index, place: Index, expr: Expr) -> None:
        self.writer.put("x", row * self.product.inputs + place, expr)

    def _is_stored(self) -> bool:
        """Whether the activations are a matrix in memory."""
        expr = self.activation(axis("m", self.product.rows), axis("k", self.product.inputs))
        if not isinstance(expr, Load):
            return False
        return expr.index.coefficient(Axis("k", self.product.inputs)) == 1

    def _panel(self, private: bool, panel: Index) -> None:
        writer, rows = self.writer, self.product.rows
        chains = max(1, self.tiles.chains // rows)
        while self.panels.inputs % (chains * self.panels.per):
            chains //= 2
        step = max(chains, 1) * self.panels.per
        steps = self.panels.inputs // step
        zero = writer.dialect.splat(F32, LANES, writer.dialect.literal(F32, 0.0))
        names = {(m, c): f"a{m}_{c}" for m in range(rows) for c in range(max(chains, 1))}
        for name in names.values():
            writer.line(f"{writer.type(F32, True)} {name} = {zero};")
        with writer.loop(Axis("k", steps), "0", str(steps)), writer.lanes(Axis("lane", LANES)):
            for inner in range(step):
                self._step(private, panel, axis("k", steps) * step + inner, inner, names)
        for m in range(rows):
            total = writer.total_text([names[m, c] for c in range(max(chains, 1))])
            with writer.block(""):
                writer.line(f"const {writer.type(F32, True)} acc = {total};")
                self.finish_panel(number(m), panel, "acc")

    def _input(self, private: bool, row: Index, input: Index) -> Expr:
        """One activation where the item has it."""
        if private:
            return Cell(F32, "x", row * self.product.inputs + input)
        return self.activation(row, input)

    def _sums(self, quantized: Quantized, private: bool) -> None:
        """The sum of every group of activations into the private array ``sums``."""
        writer, rows, size = self.writer, self.product.rows, quantized.group
        groups = quantized.inputs // size
        writer.line(writer.dialect.private("sums", rows * groups))
        with writer.loop(Axis("m", rows), "0", str(rows)):
            row = axis("m", rows)
            with writer.loop(Axis("h", groups), "0", str(groups)):
                group = axis("h", groups)
                found = self._sum(private, row, group * size, size)
                at = writer.index_text(row * groups + group)
                writer.line(writer.dialect.private_store(1, "sums", at, found))

    def _sum(self, private: bool, row: Index, first: Index, size: int) -> str:
        """The sum of a group of activations: its vectors, then their lanes."""
        writer, whole = self.writer, size // LANES
        parts = [self._input(private, row, first + place) for place in range(whole * LANES, size)]
        total = [writer.scalar_text(part) for part in parts]
        if whole:
            with writer.lanes(Axis("lane", LANES)):
                vectors = [
                    writer.wide_text(
                        self._input(private, row, first + v * LANES + axis("lane", LANES))
                    )
                    for v in range(whole)
                ]
                name = writer.let_text(F32, True, writer.total_text(vectors))
            total.append(writer.folded_text("add", F32, name))
        return " + ".join(total)

    def _groups(self, quantized: Quantized, private: bool, panel: Index) -> None:
        """A panel group by group: words times activations, scaled once."""
        writer, rows = self.writer, self.product.rows
        groups = quantized.inputs // quantized.group
        zero = writer.dialect.splat(F32, LANES, writer.dialect.literal(F32, 0.0))
        for m in range(rows):
            writer.line(f"{writer.type(F32, True)} y{m} = {zero};")
        with writer.loop(Axis("h", groups), "0", str(groups)), writer.lanes(Axis("lane", LANES)):
            self._group(quantized, private, panel, axis("h", groups))
        for m in range(rows):
            self.finish_panel(number(m), panel, f"y{m}")

    def _group(self, quantized: Quantized, private: bool, panel: Index, group: Index) -> None:
        writer, rows = self.writer, self.product.rows
        output = self.output(panel)
        groups, words = quantized.inputs // quantized.group, quantized.group // quantized.per
        chains = max(1, self.tiles.chains // rows)
        raise_by = UNIT[quantized.bits] - (quantized.zero or 0.0)
        sums = {m: Cell(F32, "sums", number(m * groups) + group) for m in range(rows)}
        for m in range(rows):
            start = Apply(F32, "mul", constant(F32, -raise_by), sums[m])
            zero = writer.wide_text(constant(F32, 0.0))
            for c in range(chains):
                text = zero if c else writer.wide_text(start)
                writer.line(f"{writer.type(F32, True)} a{m}_{c} = {text};")
        for w in range(words):
            word = quantized.word(output, group * words + w)
            for place in range(quantized.per):
                value = writer.wide_text(quantized.raised(word, place))
                input = group * quantized.group + (w * quantized.per + place)
                for m in range(rows):
                    x = writer.widened_text(
                        writer.value_text(self._input(private, number(m), input))
                    )
                    name = f"a{m}_{place % chains}"
                    writer.line(f"{name} = {fma(writer, x, value, name)};")
        step = writer.wide_text(quantized.scaled(self.builder, output, group))
        for m in range(rows):
            total = writer.total_text([f"a{m}_{c}" for c in range(chains)])
            writer.line(f"y{m} = {fma(writer, total, step, f'y{m}')};")
            if quantized.zero is None:
                offset = writer.wide_text(quantized.offset(self.builder, output, group))
                x = writer.wide_text(sums[m])
                writer.line(f"y{m} = {fma(writer, offset, x, f'y{m}')};")

    def _step(
        self,
        private: bool,
        panel: Index,
        input: Index,
        inner: int,
        names: dict[tuple[int, int], str],
    ) -> None:
        """Multiply one input of every row with the weights of 16 outputs."""
        writer = self.writer
        weights = writer.wide_text(self.weight(self.output(panel), input))
        chains = len(names) // self.product.rows
        for m in range(self.product.rows):
            x = self._input(private, number(m), input)
            name = names[m, inner % chains]
            factor = writer.widened_text(writer.value_text(x))
            writer.line(f"{name} = {fma(writer, factor, weights, name)};")


def each(writer: Writer, size: int, body: object) -> None:
    """Call ``body`` with every place below ``size``: whole vectors, then single elements."""
    whole = size // LANES
    if whole:
        with writer.loop(Axis("v", whole), "0", str(whole)), writer.lanes(Axis("lane", LANES)):
            body(axis("v", whole) * LANES + axis("lane", LANES))  # type: ignore[operator]
    for place in range(whole * LANES, size):
        with writer.block(""):
            body(number(place))  # type: ignore[operator]
