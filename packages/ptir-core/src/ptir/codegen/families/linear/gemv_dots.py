"""The gemv of few rows that are rounded to bytes: every weight is read once.

The workgroup first rounds the activations into private words; then each word of a panel meets the
same word of every row.
"""

from __future__ import annotations

from collections.abc import Sequence

from ptir.codegen.expressions.expr import Cell, Expr
from ptir.codegen.expressions.index import Index, axis
from ptir.codegen.families.linear.gemv import Gemv
from ptir.codegen.families.linear.serial import Int8Loops, Outputs, RowGroup
from ptir.codegen.families.rounding.serial import round_group
from ptir.codegen.weights.word_bytes import deinterleaved, in_places
from ptir.types import F32, I8, I32, U32


class Int8DotGemv(Int8Loops, Gemv):
    """Few rows of words of bytes, which the workgroup rounds."""

    accumulators = 1

    def prepare(self) -> None:
        """Private ``words`` of rounded activations, with the scale and the start of each group."""
        writer, rows, groups = self.writer, self.linear.rows, self.groups
        inputs, size = self.linear.inputs, self.quantized.group
        writer.array("words", rows * inputs // 4, U32)
        writer.array("scales", rows * groups, F32)
        writer.array("sums", rows * groups, I32)
        with writer.each("m", rows) as row, writer.each("h", groups) as h:
            first = h * size
            start = row * inputs + first
            scale, total = round_group(
                writer,
                size,
                lambda place: self._input(row, first + place),
                lambda place, value: writer.put("words", start + place, value, I8),
            )
            at = row * groups + h
            writer.put("scales", at, scale)
            writer.put("sums", at, total, I32)
        if self.quantized.parts > 1:
            self._part(rows * inputs // self.quantized.per)

    def _part(self, chunks: int) -> None:
        """Bring the bytes of each chunk into the order of the weights' (``bytes_of``).

        So a word of eight 4-bit values is two words of bytes with one shift.
        """
        writer, quantized = self.writer, self.quantized
        parts = quantized.parts
        place = axis("e", chunks) * parts
        with writer.each("e", chunks):
            words = [Cell(U32, "words", place + n) for n in range(parts)]
            moved = (
                deinterleaved(*words)
                if parts == 2
                else in_places(words, quantized.order_of_bytes(quantized.per))
            )
            for n, found in enumerate([writer.scalar(one) for one in moved]):
                writer.put("words", place + n, found, U32)

    def factors(self, tile: Outputs, m: int, group: Index, part: Index) -> Sequence[Expr]:
        """A word of rounded activations."""
        place = group * (self.quantized.group // 4) + part
        return [self.writer.element(Cell(U32, "words", place + m * self.linear.inputs // 4))]

    def row_group(self, tile: Outputs, m: int, group: Index) -> RowGroup:
        """What the workgroup found when it rounded the group."""
        at = group + m * self.groups
        return self.known(Cell(F32, "scales", at), Cell(I32, "sums", at))
