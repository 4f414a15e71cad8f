"""The gemm of many rows that are rounded to bytes, tile by tile."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from ptir.codegen.expressions.expr import Expr, Load
from ptir.codegen.expressions.index import Axis, Index, axis, unravel_index
from ptir.codegen.families.linear.gemm import Gemm
from ptir.codegen.families.linear.serial import Int8Loops, Outputs, RowGroup, Sums
from ptir.codegen.fusion.renumber import Value
from ptir.codegen.schedules.kernel import scratch_value
from ptir.codegen.weights.panels import LANES
from ptir.codegen.weights.quantized import is_product
from ptir.types import F32, U32, TensorType


class Int8DotGemm(Int8Loops, Gemm):
    """Bytes with a scale for each group; others become words of bytes once for all rows."""

    @property
    def _high(self) -> int:
        return self.tiles.int8_rows

    @property
    def _wide(self) -> int:
        return self.tiles.int8_panels

    def _scratch(self, workgroups: int) -> tuple[TensorType, ...]:
        """Scales as floats, and bytes where weights become such; then biases that are computed."""
        floats = TensorType(F32, (workgroups * self._wide * self.groups * LANES,))
        words = TensorType(U32, (workgroups * self._wide * self.quantized.inputs // 4 * LANES,))
        found = (floats, words) if self._has_byte_words else (floats,)
        return (*found, floats) if self._is_raised else found

    @property
    def _has_byte_words(self) -> bool:
        """Whether words of bytes are made in scratch memory: of fewer bits, or of codes of grids.

        Codes cost many instructions a word, and every tile of rows asks for it.
        """
        return self.quantized.parts > 1 or self.quantized.computed is not None

    @cached_property
    def _is_raised(self) -> bool:
        """Whether biases become floats before: they are products themselves."""
        quantized = self.quantized
        return quantized.whole_zero is None and is_product(quantized.offset, self.builder)

    @property
    def _biases(self) -> Value:
        """The scratch memory of biases."""
        return scratch_value(self.fusion, 1 + self._has_byte_words)

    def _prepare(self, panel: Index, panels: int) -> None:
        """Scales and bytes of a group of panels into scratch memory."""
        writer, together = self.writer, self.groups_together
        for p in range(panels):
            with writer.each("h", self.groups // together) as h, writer.lanes(Axis("lane", LANES)):
                for n in range(together):
                    self._prepare_group(panel, p, h * together + n)

    def _prepare_group(self, panel: Index, p: int, group: Index) -> None:
        """Scale and bytes of one group of a panel."""
        writer, quantized, output = self.writer, self.quantized, self.output(panel + p)
        at = self._placed(p, group, self.groups)
        scale = quantized.scaled(self.builder, output, group)
        writer.store(scratch_value(self.fusion, 0), F32, at, scale)
        if self._is_raised:
            bias = quantized.offset(self.builder, output, group)
            writer.store(self._biases, F32, at, bias)
        if not self._has_byte_words:
            return
        chunks = quantized.group // quantized.per
        for place in (group * chunks + n for n in range(chunks)):
            found = quantized.in_order(quantized.chunk(output, place, self.builder))
            for n, word in enumerate(found):
                to = self._placed(p, place * quantized.parts + n, quantized.inputs // 4)
                writer.store(scratch_value(self.fusion, 1), U32, to, word)

    def _placed(self, panel: int, place: Index, depth: int) -> Index:
        """Where a vector of the workgroup's group of panels is in scratch memory."""
        first = self.item * (self._wide * depth) + panel * depth
        return (first + place) * LANES + axis("lane", LANES)

    def parts_of(self, panel: Index, p: int, word: Index) -> Sequence[Expr]:
        """Words of bytes in the order of inputs."""
        if not self._has_byte_words:
            return super().parts_of(panel, p, word)
        parts = self.quantized.parts
        places = (self._placed(p, word * parts + n, self.linear.inputs // 4) for n in range(parts))
        return [Load(U32, scratch_value(self.fusion, 1), place) for place in places]

    def step(self, panel: Index, p: int, group: Index) -> Expr:
        """The scale of a group as it was prepared."""
        return Load(F32, scratch_value(self.fusion, 0), self._placed(p, group, self.groups))

    def offset(self, panel: Index, p: int, group: Index) -> Expr:
        """The bias of a group, as it was prepared."""
        if not self._is_raised:
            return super().offset(panel, p, group)
        return Load(F32, self._biases, self._placed(p, group, self.groups))

    def factors(self, tile: Outputs, m: int, group: Index, part: Index) -> Sequence[Expr]:
        """A word of rounded activations."""
        place = group * (self.quantized.group // 4) + part
        return [self.writer.element(self.stored_word(tile.row + m, place))]

    def row_group(self, tile: Outputs, m: int, group: Index) -> RowGroup:
        """What was found when the group was rounded."""
        rounded = self.linear.rounded
        assert rounded is not None
        shape = self.graph.type(rounded.scales).shape
        at = unravel_index((tile.row + m) * self.groups + group, shape)
        scale, total = (self.builder.at(value, at) for value in (rounded.scales, rounded.sums))
        return self.known(scale, total)

    def results(self, tile: Outputs) -> Sums:
        """Sums of bytes by group, scaled."""
        return self.by_groups(tile)
