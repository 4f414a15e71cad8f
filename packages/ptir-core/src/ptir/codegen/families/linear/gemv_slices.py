"""Few rows times weights of few bits by dot products of bytes, as exact as by f32.

Activations become signed int8 slices (``int8_slices``). Words of weights times slices add up
in integers without any error; a group's three sums become one float at its end. The slices are made
once per worker, in the kernel's head.
"""

from __future__ import annotations

from collections.abc import Sequence

from ptir.codegen.expressions.expr import Apply, Cell, Expr, Var, constant
from ptir.codegen.expressions.index import Index, number
from ptir.codegen.families.linear.gemv import Gemv
from ptir.codegen.families.linear.int8_slices import SLICES, slices_of
from ptir.codegen.families.linear.int8_slices import fits as slices_fit
from ptir.codegen.families.linear.parts import Linear
from ptir.codegen.families.linear.serial import Outputs, RowGroup
from ptir.codegen.schedules.kernel import EmitContext
from ptir.types import F32, I8, I32, U32


def fits(linear: Linear, context: EmitContext) -> bool:
    """Whether the schedule is for this contraction and device."""
    return linear.is_gemv and slices_fit(linear, context)


class SlicedGemv(Gemv):
    """The gemv with products in whole numbers.

    One panel at a time: with two or four beside each other a thread reads as many streams of words,
    scales and minima, and less of each is there in time (on Zen 4 a fifth to two fifths slower).
    """

    dot = "dot_bytes"
    accumulators = 1

    def declare_groups(self) -> None:
        """Declare arrays of slices, units and sums."""
        writer, rows, groups = self.writer, self.linear.rows, self.groups
        writer.array("q", SLICES * rows * self.linear.inputs // 4, U32)
        writer.array("unit", rows * groups, F32)
        if self.quantized.zero is None:
            writer.array("sums", rows * groups, F32)
        else:
            writer.array("starts", rows * groups * SLICES, I32)

    def fill_groups(self) -> None:
        """Slices, unit and sum of every group of activations."""
        writer, rows, groups = self.writer, self.linear.rows, self.groups
        with writer.each("m", rows) as row, writer.each("h", groups) as h:
            self._digits(row, h)

    def _digits(self, row: Index, group: Index) -> None:
        """One group of activations."""
        writer, first, at = self.writer, group * self.quantized.group, row * self.groups + group

        def put(digit: int, place: Index, byte: Expr) -> None:
            writer.put("q", self._place(row, digit) + first + place, byte, I8)

        unit, total = slices_of(writer, self.quantized, lambda k: self._input(row, first + k), put)
        writer.put("unit", at, unit)
        self._start(at, total)

    def _start(self, at: Index, total: Expr) -> None:
        """What the sums of a group start with: its zero point; or its sum, for its bias."""
        writer = self.writer
        if self.quantized.zero is None:
            unit = Cell(F32, "unit", at)
            writer.put("sums", at, Apply(F32, "convert", total) * unit)
            return
        zero = constant(I32, int(self.quantized.zero))
        for digit in range(SLICES):
            part = total >> (8 * digit) if digit else total
            if digit < SLICES - 1:
                part = part & 255
            writer.put("starts", at * SLICES + digit, part * zero, I32)

    def _place(self, row: Index, digit: int) -> Index:
        """Where a row's slices of one kind begin, in bytes."""
        return row * self.linear.inputs + digit * self.linear.rows * self.linear.inputs

    def factors(self, tile: Outputs, m: int, group: Index, part: Index) -> Sequence[Expr]:
        """A word of each slice."""
        place = group * (self.quantized.group // 4) + part
        begins = (self._place(number(m), digit) // 4 for digit in range(SLICES))
        return [self.writer.element(Cell(U32, "q", place + begin)) for begin in begins]

    def row_group(self, tile: Outputs, m: int, group: Index) -> RowGroup:
        """What the kernel's preamble found of a group."""
        at = number(m * self.groups) + group
        unit = Cell(F32, "unit", at)
        if self.quantized.zero is None:
            return RowGroup([constant(I32, 0)] * SLICES, unit, Cell(F32, "sums", at))
        return RowGroup([Cell(I32, "starts", at * SLICES + d) for d in range(SLICES)], unit)

    def scale(self, result: Var, sums: Sequence[Var], step: Expr, unit: Expr) -> None:
        """Add the three sums of a group as one float."""
        writer = self.writer
        total = writer.let(self._total(*sums)) * writer.wide(unit)
        writer.add_product(result, total, writer.wide(step))

    def _total(self, low: Var, middle: Var, high: Var) -> Expr:
        """The three sums of a group as one float, in its unit."""
        apply = self.writer.apply  # of sums that change: not remembered
        upper = apply("add", I32, apply("shift_left", I32, high, constant(I32, 8)), middle)
        floats = [Apply(F32, "convert", part) for part in (upper, low)]
        return apply("fma", F32, floats[0], constant(F32, 256.0), floats[1])
