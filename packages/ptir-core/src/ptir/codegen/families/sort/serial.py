"""Sorts of lines by rank: insertion for short lines, counting digits for all others.

Ranks and indices of a line lie in scratch memory of the workgroup. A counting pass moves them from
one half of it to the other in the order of one digit, the lowest digit first; passes in which all
elements have the same digit are left out.
"""

from __future__ import annotations

from typing import Final

from ptir.codegen.expressions.expr import Apply, Coordinate, Expr, Load, Var, as_index, constant
from ptir.codegen.expressions.index import Index, axis, number
from ptir.codegen.families.sort.match import SortEmitter, TopK, is_few
from ptir.codegen.kernel_ir.conditions import less
from ptir.codegen.schedules.kernel import EmitContext, Fusion, Kernel
from ptir.types import F32, F64, I32

LONG: Final = 4096
"""Elements of a line from which digits are 11 bits instead of 8."""


class Inserting(SortEmitter):
    """Every element is moved to its place among those before it."""

    MOST: Final = 32

    def kernel(self) -> Kernel:
        """A loop over lines."""
        self.workgroups = self.context.workgroups(
            self.lines, self.lines * self.size * (self.size + 4)
        )
        self.ranks, self.begin = self.own(0, self.size)
        self.places, _ = self.own(1, self.size)
        return self.finish(self._line, (self.rank_type, self.size), (I32, self.size))

    def _line(self) -> None:
        with self.writer.each("i", self.size) as i:
            self.insert(i, Var(I32, "i"), lambda at: self.begin + at)
        self.write_results(lambda place: Load(I32, self.places, self.begin + place))


class Radix(SortEmitter):
    """Digit by digit, each time in the order of the digits before."""

    def kernel(self) -> Kernel:
        """A loop over lines."""
        self.digit = 11 if self.size >= LONG and self.rank_type.bits == 32 else 8
        bits = self.dtype.bits
        if self.dtype.is_float:
            bits = F64.bits if self.dtype == F64 else F32.bits
        self.passes = -(-bits // self.digit)
        self.bins = 1 << self.digit
        work = self.lines * (self.size * 8 * (self.passes + 1) + self.passes * self.bins * 4)
        self.workgroups = self.context.workgroups(self.lines, work)
        self.ranks, self.begin = self.own(0, 2 * self.size)
        self.places, _ = self.own(1, 2 * self.size)
        self.counts, self.counted = self.own(2, self.passes * self.bins)
        self.source, self.target = (axis(name, self.size + 1) for name in ("from", "to"))
        scratch = (self.rank_type, 2 * self.size), (I32, 2 * self.size)
        return self.finish(self._line, *scratch, (I32, self.passes * self.bins))

    def _line(self) -> None:
        self._count()
        self.writer.declare(constant(I32, 0), "from")
        self.writer.declare(constant(I32, self.size), "to")
        for turn in range(self.passes):
            self._pass(turn)
        self.write_results(lambda place: Load(I32, self.places, self.begin + self.source + place))

    def _digit(self, rank: Expr, turn: int) -> Index:
        """A digit of a rank, as a place among the counts of its pass."""
        digit = (rank >> (turn * self.digit)) & (self.bins - 1)
        place = as_index(Apply(I32, "convert", digit), 0, self.bins - 1)
        return self.counted + place + turn * self.bins

    def _count(self) -> None:
        """Rank every element and count every digit."""
        writer, all = self.writer, self.passes * self.bins
        with writer.each("c", all) as c:
            writer.store(self.counts, I32, self.counted + c, constant(I32, 0))
        with writer.each("i", self.size) as place:
            found = writer.scalar(self.rank(place))
            writer.store(self.ranks, self.rank_type, self.begin + place, found)
            writer.store(self.places, I32, self.begin + place, Coordinate(I32, place))
            for turn in range(self.passes):
                self._next(self._digit(found, turn))

    def _next(self, count: Index) -> Index:
        """What a count was before it grows by one."""
        # read where it stands: the same count may be read again after it has grown
        found = self.writer.let(self.writer.element(Load(I32, self.counts, count)))
        before = as_index(found, 0, self.size - 1)
        self.writer.store(self.counts, I32, count, Coordinate(I32, before + 1))
        return before

    def _pass(self, turn: int) -> None:
        """Move everything in the order of one digit, unless all have the same."""
        writer, size = self.writer, self.size
        first = self._digit(Load(self.rank_type, self.ranks, self.begin + self.source), turn)
        with writer.scope():
            same = writer.element(Load(I32, self.counts, first))
            with writer.when(less(same, size)):
                before = writer.declare(constant(I32, 0), "before")
                with writer.each("c", self.bins) as c:
                    at = self.counted + c + turn * self.bins
                    here = writer.let(writer.element(Load(I32, self.counts, at)))
                    writer.store(self.counts, I32, at, before)
                    writer.assign(before, writer.apply("add", I32, before, here))
                with writer.each("i", size) as i:
                    place = self.begin + self.source + i
                    rank = Load(self.rank_type, self.ranks, place)
                    goal = self.begin + self.target + self._next(self._digit(rank, turn))
                    writer.store(self.ranks, self.rank_type, goal, rank)
                    writer.store(self.places, I32, goal, Load(I32, self.places, place))
                for name, half in (("from", self.source), ("to", self.target)):
                    writer.assign(Var(I32, name), Coordinate(I32, number(size) - half))


def emit(fusion: Fusion, context: EmitContext) -> Kernel:
    """The schedule for few elements, for short lines or for long ones."""
    made = context.graph.block.instructions[fusion.detail]
    if is_few(made):
        return TopK(fusion, context).kernel()
    return (Inserting if SortEmitter(fusion, context).size <= Inserting.MOST else Radix)(
        fusion, context
    ).kernel()
