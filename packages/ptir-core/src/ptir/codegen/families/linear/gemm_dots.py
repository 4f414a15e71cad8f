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
    """Bytes with a scale for each group; 4-bit weights become bytes once for all rows."""

    @property
    def _high(self) -> int:
        return self.tiles.int8_rows

    @property
    def _wide(self) -> int:
        return self.tiles.int8_panels

    def _scratch(self, workgroups: int) -> tuple[TensorType, ...]:
        """Scales as floats, and bytes where weights are narrower; then biases that are computed."""
        floats = TensorType(F32, (workgroups * self._wide * self.groups * LANES,))
        words = TensorType(U32, (workgroups * self._wide * self.quantized.inputs // 4 * LANES,))
        found = (floats, words) if self.quantized.parts > 1 else (floats,)
        return (*found, floats) if self._is_raised else found

    @cached_property
    def _is_raised(self) -> bool:
        """Whether biases become floats before: they are products themselves."""
        quantized = self.quantized
        return quantized.whole_zero is None and is_product(quantized.offset, self.builder)

    @property
    def _biases(self) -> Value:
        """The scratch memory of biases."""
        return scratch_value(self.fusion, 1 + (self.quantized.parts > 1))

    def _prepare(self, panel: Index, panels: int) -> None:
        """Scales and bytes of a group of panels into scratch memory."""
        writer, quantized = self.writer, self.quantized
        scales, words = (scratch_value(self.fusion, n) for n in range(2))
        raw = quantized.group // quantized.per
        for p in range(panels):
            output = (panel + p) * LANES + axis("lane", LANES)
            with writer.each("h", self.groups) as group, writer.lanes(Axis("lane", LANES)):
                scale = quantized.scaled(self.builder, output, group)
                writer.store(scales, F32, self._placed(p, group, self.groups), scale)
                if self._is_raised:
                    bias = quantized.offset(self.builder, output, group)
                    writer.store(self._biases, F32, self._placed(p, group, self.groups), bias)
                for w in range(raw if quantized.parts > 1 else 0):
                    found = quantized.in_order(
                        quantized.chunk(output, group * raw + w, self.builder)
                    )
                    for n, word in enumerate(found):
                        place = (group * raw + w) * quantized.parts + n
                        at = self._placed(p, place, quantized.inputs // 4)
                        writer.store(words, U32, at, word)

    def _placed(self, panel: int, place: Index, depth: int) -> Index:
        """Where a vector of the workgroup's group of panels is in scratch memory."""
        first = self.item * (self._wide * depth) + panel * depth
        return (first + place) * LANES + axis("lane", LANES)

    def parts_of(self, panel: Index, p: int, word: Index) -> Sequence[Expr]:
        """Words of bytes in the order of inputs."""
        parts = self.quantized.parts
        if parts == 1:
            return super().parts_of(panel, p, word)
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
