"""The blocked schedule with dot instructions: many rows of rounded activations, tile by tile."""

from __future__ import annotations

from ptir.codegen.expressions.elementwise import cast
from ptir.codegen.expressions.expr import Apply, Expr, Load, Var
from ptir.codegen.expressions.index import Axis, Index, axis, digits
from ptir.codegen.families.matmul.blocked import Blocked, InGroups
from ptir.codegen.schedules.kernel import scratch_value
from ptir.codegen.weights.panels import LANES
from ptir.types import F32, U32, TensorType


class BlockedPairs(Blocked):
    """bf16 activations and weights, as they lie in memory."""

    @property
    def is_unpacked(self) -> bool:
        """Words are multiplied as they are."""
        return False

    def _tile(self, row: Index, rows: int, panel: Index, panels: int) -> None:
        """A tile of outputs in registers, finished at once."""
        writer, words = self.writer, self.product.inputs // 2
        sums = self.begun("a", rows, panels)
        with writer.loop(Axis("k", words), 0, words), writer.lanes(Axis("lane", LANES)):
            weights = [self._pair(panel + p, axis("k", words)) for p in range(panels)]
            for m, line in enumerate(sums):
                x = self.stored_word(row + m, axis("k", words))
                for one, weight in zip(line, weights, strict=True):
                    self.dot(one, weight, x)
        self.finish_tile(row, panel, sums)

    def _pair(self, panel: Index, word: Index) -> Expr:
        output = panel * LANES + axis("lane", LANES)
        return Load(U32, self.product.packed, self.panels.word(output, word * 2))


class BlockedBytes(InGroups):
    """Bytes with a scale for each group; 4-bit weights become bytes once for all rows."""

    @property
    def _high(self) -> int:
        return self.tiles.byte_rows

    @property
    def _wide(self) -> int:
        return self.tiles.byte_panels

    def _scratch(self, items: int) -> tuple[TensorType, ...]:
        """Scales as floats, and bytes where weights are narrower."""
        scales = TensorType(F32, (items * self._wide * self._groups * LANES,))
        words = TensorType(U32, (items * self._wide * self.quantized.inputs // 4 * LANES,))
        return (scales, words) if self.quantized.parts > 1 else (scales,)

    def _prepare(self, panel: Index, panels: int) -> None:
        """Scales and bytes of a group of panels into scratch memory."""
        writer, quantized = self.writer, self.quantized
        scales, words = (scratch_value(self.group, n) for n in range(2))
        raw = quantized.group // quantized.per
        for p in range(panels):
            output = (panel + p) * LANES + axis("lane", LANES)
            with (
                writer.loop(Axis("h", self._groups), 0, self._groups),
                writer.lanes(Axis("lane", LANES)),
            ):
                group = axis("h", self._groups)
                scale = quantized.scaled(self.builder, output, group)
                writer.store(scales, F32, self._placed(p, group, self._groups), scale)
                for w in range(raw if quantized.parts > 1 else 0):
                    found = quantized.in_order(quantized.word(output, group * raw + w))
                    for n, word in enumerate(found):
                        place = (group * raw + w) * quantized.parts + n
                        at = self._placed(p, place, quantized.inputs // 4)
                        writer.store(words, U32, at, word)

    def _placed(self, panel: int, place: Index, depth: int) -> Index:
        """Where a vector of the item's group of panels is in scratch memory."""
        first = self.item * (self._wide * depth) + panel * depth
        return (first + place) * LANES + axis("lane", LANES)

    def _tile(self, row: Index, rows: int, panel: Index, panels: int) -> None:
        """A tile of outputs in registers: sums of bytes by group, then scaled."""
        writer, groups = self.writer, self._groups
        results = self.begun("y", rows, panels)
        with writer.loop(Axis("h", groups), 0, groups), writer.lanes(Axis("lane", LANES)):
            self._bytes(row, panel, results)
        self.finish_tile(row, panel, results)

    def _bytes(self, row: Index, panel: Index, results: list[list[Var]]) -> None:
        """One group of a tile."""
        writer, quantized = self.writer, self.quantized
        words, group = quantized.group // 4, axis("h", self._groups)
        panels, sums = range(len(results[0])), list[list[Var]]()
        rounded = [self._of_group(row + m, group) for m in range(len(results))]
        for m, (_, total) in enumerate(rounded):
            start = writer.wide(quantized.start(total))
            sums.append([writer.declare(start, f"a{m}_{p}") for p in panels])
        for w in range(words):
            place = group * words + w
            weights = [self._word(panel + p, p, place) for p in panels]
            for m, line in enumerate(sums):
                x = self.stored_word(row + m, place)
                for one, weight in zip(line, weights, strict=True):
                    self.dot(one, weight, x)
        for p in panels:
            step = Load(F32, scratch_value(self.group, 0), self._placed(p, group, self._groups))
            for m, (scale, total) in enumerate(rounded):
                self.scaled(results[m][p], sums[m][p], Apply(F32, "mul", step, scale))
                if quantized.whole_zero is None:
                    output = (panel + p) * LANES + axis("lane", LANES)
                    offset = quantized.offset(self.builder, output, group)
                    self.added(results[m][p], Apply(F32, "mul", scale, cast(F32, total)), offset)

    def _of_group(self, row: Index, group: Index) -> tuple[Expr, Expr]:
        """The scale of a row's group, and the sum of its values."""
        rounded = self.product.rounded
        assert rounded is not None
        found = []
        for value in (rounded.scales, rounded.sums):
            shape = self.graph.type(value).shape
            found.append(self.builder.at(value, digits(row * self._groups + group, shape)))
        return found[0], found[1]

    def _word(self, panel: Index, number_: int, place: Index) -> Expr:
        if self.quantized.parts == 1:
            return self.quantized.word(panel * LANES + axis("lane", LANES), place)
        at = self._placed(number_, place, self.quantized.inputs // 4)
        return Load(U32, scratch_value(self.group, 1), at)
