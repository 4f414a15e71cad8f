"""Sorts of lines by rank: insertion for short lines, counting digits for all others.

Ranks and indices of a line lie in scratch memory of the item. A counting pass moves them from one
half of it to the other in the order of one digit, the lowest digit first; passes in which all
elements have the same digit are left out.
"""

from __future__ import annotations

from typing import Final

from ptir.codegen.expr import Apply, Expr, Load, Var, as_index, compare, constant
from ptir.codegen.families.order import Best, Lines, is_few
from ptir.codegen.index import Axis, Index, axis
from ptir.codegen.kernel import Group, Kernel, Site
from ptir.types import F32, F64, I32

LONG: Final = 4096
"""Elements of a line from which digits are 11 bits instead of 8."""


class Inserting(Lines):
    """Every element is moved to its place among those before it."""

    MOST: Final = 32

    def kernel(self) -> Kernel:
        """A loop over lines."""
        self.ranks, self.begin = self.own(0, self.size)
        self.places, _ = self.own(1, self.size)
        work = self.lines * self.size * (self.size + 4)
        return self.finish(work, self._line, (self.rank_type, self.size), (I32, self.size))

    def _line(self) -> None:
        writer, of = self.writer, self.rank_type
        with writer.loop(Axis("i", self.size), "0", str(self.size)):
            place = axis("i", self.size)
            found = Var(of, writer.let_text(of, False, writer.scalar_text(self.rank(place))))
            writer.line("int at = i;")
            at = self.begin + self.named("at", self.size + 1)
            before = Load(of, self.ranks, at - 1)
            with writer.block("for (; at > 0; --at)"):
                with writer.block(f"if ({writer.scalar_text(compare('ge', found, before))})"):
                    writer.line("break;")
                self.put(self.ranks, of, at, writer.scalar_text(before))
                self.put(self.places, I32, at, writer.scalar_text(Load(I32, self.places, at - 1)))
            self.put(self.ranks, of, at, found.name)
            self.put(self.places, I32, at, "i")
        self.write_results(lambda place: Load(I32, self.places, self.begin + place))


class Radix(Lines):
    """Digit by digit, each time in the order of the digits before."""

    def kernel(self) -> Kernel:
        """A loop over lines."""
        self.digit = 11 if self.size >= LONG and self.rank_type.bits == 32 else 8
        bits = self.dtype.bits
        if self.dtype.is_float:
            bits = F64.bits if self.dtype == F64 else F32.bits
        self.passes = -(-bits // self.digit)
        self.bins = 1 << self.digit
        self.ranks, self.begin = self.own(0, 2 * self.size)
        self.places, _ = self.own(1, 2 * self.size)
        self.counts, self.counted = self.own(2, self.passes * self.bins)
        work = self.lines * (self.size * 8 * (self.passes + 1) + self.passes * self.bins * 4)
        scratch = (self.rank_type, 2 * self.size), (I32, 2 * self.size)
        return self.finish(work, self._line, *scratch, (I32, self.passes * self.bins))

    def _line(self) -> None:
        writer, size = self.writer, self.size
        self._count()
        writer.line("int from = 0;")
        writer.line(f"int to = {size};")
        for turn in range(self.passes):
            self._pass(turn)
        source = as_index(Var(I32, "from"), 0, size)
        self.write_results(lambda place: Load(I32, self.places, self.begin + source + place))

    def _digit(self, rank: Expr, turn: int) -> Index:
        """A digit of a rank, as a place among the counts of its pass."""
        of = self.rank_type
        moved = Apply(of, "shift_right", rank, constant(of, turn * self.digit))
        digit = Apply(of, "and", moved, constant(of, self.bins - 1))
        place = as_index(Apply(I32, "convert", digit), 0, self.bins - 1)
        return self.counted + place + turn * self.bins

    def _count(self) -> None:
        """Rank every element and count every digit."""
        writer, all = self.writer, self.passes * self.bins
        with writer.loop(Axis("c", all), "0", str(all)):
            self.put(self.counts, I32, self.counted + axis("c", all), "0")
        with writer.loop(Axis("i", self.size), "0", str(self.size)):
            place = axis("i", self.size)
            found = Var(self.rank_type, writer.scalar_text(self.rank(place)))
            self.put(self.ranks, self.rank_type, self.begin + place, found.name)
            self.put(self.places, I32, self.begin + place, "i")
            for turn in range(self.passes):
                self._next(self._digit(found, turn))

    def _next(self, count: Index) -> str:
        """What a count was before it grows by one."""
        writer = self.writer
        # read as text: the same count may be read again after it has grown
        text = writer.dialect.load(
            I32, 1, writer.buffer(self.counts, I32), writer.index_text(count)
        )
        name = writer.let_text(I32, False, text)
        self.put(self.counts, I32, count, f"{name} + 1")
        return name

    def _pass(self, turn: int) -> None:
        """Move everything in the order of one digit, unless all have the same."""
        writer, size = self.writer, self.size
        source, target = (as_index(Var(I32, name), 0, size) for name in ("from", "to"))
        buffer = writer.buffer(self.counts, I32)
        first = self._digit(Load(self.rank_type, self.ranks, self.begin + source), turn)
        with writer.block(""):
            same = writer.dialect.load(I32, 1, buffer, writer.index_text(first))
            with writer.block(f"if ({same} < {size})"):
                writer.line("int before = 0;")
                with writer.loop(Axis("c", self.bins), "0", str(self.bins)):
                    at = self.counted + axis("c", self.bins) + turn * self.bins
                    load = writer.dialect.load(I32, 1, buffer, writer.index_text(at))
                    here = writer.let_text(I32, False, load)
                    self.put(self.counts, I32, at, "before")
                    writer.line(f"before += {here};")
                with writer.loop(Axis("i", size), "0", str(size)):
                    place = self.begin + source + axis("i", size)
                    rank = Load(self.rank_type, self.ranks, place)
                    to = self._next(self._digit(rank, turn))
                    goal = self.begin + target + as_index(Var(I32, to), 0, size - 1)
                    self.put(self.ranks, self.rank_type, goal, writer.scalar_text(rank))
                    index = writer.scalar_text(Load(I32, self.places, place))
                    self.put(self.places, I32, goal, index)
                writer.line(f"from = {size} - from; to = {size} - to;")


def write(group: Group, site: Site) -> Kernel:
    """The schedule for few elements, for short lines or for long ones."""
    made = site.graph.block.instructions[group.detail]
    if is_few(made):
        return Best(group, site).kernel()
    return (Inserting if Lines(group, site).size <= Inserting.MOST else Radix)(group, site).kernel()
