"""The coop schedules of the order family: a group per line.

Few best elements are found one by one: the least rank behind the last one found, of which every
member looks at some. Whole lines are sorted as pairs of a rank and a place, which are all
different, by a bitonic network over a power of two of them, in shared memory where they fit and
else in scratch memory; so the order is that of a stable sort. Short lines belong to one member.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ptir.codegen.expr import Apply, Const, Expr, Var, as_index, compare, constant, select
from ptir.codegen.families.order import Lines, is_few
from ptir.codegen.families.sorting import write
from ptir.codegen.groups import Team, power_of_two, threads
from ptir.codegen.index import Index, axis
from ptir.codegen.kernel import Group, Kernel, Site, finished, scratch_value
from ptir.types import BOOL, I32, DType, TensorType

ALONE: Final = 32
"""Elements up to which a line belongs to one member."""


def coop(group: Group, site: Site) -> Kernel:
    """The schedule for few elements, for short lines or for long ones."""
    lines = TeamLines(group, site)
    if lines.size <= ALONE:
        return threads(write)(group, site)
    return lines.best() if is_few(lines.made) else lines.sorted()


def earlier(a: Sequence[Expr], b: Sequence[Expr]) -> Sequence[Expr]:
    """The pair of rank and place that comes first."""
    first = _before(b, a)
    return [select(first, y, x) for x, y in zip(a, b, strict=True)]


def _before(a: Sequence[Expr], b: Sequence[Expr]) -> Expr:
    """Whether one pair of rank and place comes before another."""
    equal = Apply(BOOL, "and", Apply(BOOL, "eq", a[0], b[0]), compare("lt", a[1], b[1]))
    return Apply(BOOL, "or", compare("lt", a[0], b[0]), equal)


class TeamLines(Lines):
    """The lines of one sort or choice while their kernel of groups is written."""

    def __init__(self, group: Group, site: Site) -> None:
        super().__init__(group, site)
        self.team = Team(self.writer, min(site.tiles.line_members, site.traits.group))
        self.line = axis("item", self.lines)
        self.last: Const = constant(self.rank_type, (1 << self.rank_type.bits) - 1)

    def best(self) -> Kernel:
        """One element after the other, the best first."""
        writer, of = self.writer, self.rank_type
        pair = Var(of, "rank"), Var(I32, "place")
        before = Var(of, "rank_before"), Var(I32, "place_before")
        for one, start in zip(before, ("0", "-1"), strict=True):
            writer.line(f"{writer.type(one.dtype, False)} {one.name} = {start};")
        with writer.block(f"for (int o = 0; o < {self.wanted}; o += 1)"):
            for one, start in zip(
                pair, (writer.scalar_text(self.last), str(self.size)), strict=True
            ):
                writer.line(f"{writer.type(one.dtype, False)} {one.name} = {start};")
            with self.team.own(self.size) as place:
                found = writer.let_text(of, False, writer.scalar_text(self.rank(place)))
                here = (
                    Var(of, found),
                    Var(I32, writer.let_text(I32, False, writer.index_text(place))),
                )
                takes = Apply(BOOL, "and", _before(before, here), _before(here, pair))
                with writer.block(f"if ({writer.scalar_text(takes)})"):
                    writer.line(f"rank = {here[0].name}; place = {here[1].name};")
            self.team.fold(pair, earlier)
            writer.line("rank_before = rank; place_before = place;")
            with writer.block("if (member == 0)"):
                self._give(axis("o", self.wanted), "place")
        return finished(self.group, writer, self.lines, members=self.team.members)

    def _give(self, place: Index, name: str) -> None:
        """The element that comes at ``place``, whose number in the line a variable holds."""
        writer = self.writer
        writer.store(self.indices, I32, self.result(place), Var(I32, name))
        element = self.element(as_index(Var(I32, name), 0, self.size - 1))
        writer.store(self.values, self.dtype, self.result(place), element)

    # --- whole lines ---

    def sorted(self) -> Kernel:
        """A bitonic network."""
        writer, size = self.writer, power_of_two(self.size)
        nbytes = size * (self.rank_type.itemsize + I32.itemsize)
        self._types: tuple[TensorType, ...] = ()
        if nbytes <= self.site.traits.shared // 2:
            self.arrays = tuple(writer.shared(of, size) for of in (self.rank_type, I32))
        else:
            self.arrays = tuple(map(self._scratch, (0, 1), (self.rank_type, I32), (size, size)))
        self._rank_all(size)
        lengths = f"for (int length = 2; length <= {size}; length *= 2)"
        with writer.block(lengths), writer.block("for (int s = length / 2; s > 0; s /= 2)"):
            writer.barrier()
            self._swap(size)
        writer.barrier()
        with self.team.own(self.wanted, "o") as place:
            name = writer.let_text(I32, False, f"{self.arrays[1]}[{writer.index_text(place)}]")
            self._give(place, name)
        items, members = self.lines, self.team.members
        return finished(self.group, writer, items, self._types, members=members)

    def _scratch(self, number: int, dtype: DType, size: int) -> str:
        """The line's part of a scratch memory, as the text of a pointer."""
        buffer = self.writer.buffer(scratch_value(self.group, number), dtype, written=True)
        self._types += (TensorType(dtype, (self.lines * size,)),)
        return f"({buffer} + item * {size})"

    def _rank_all(self, size: int) -> None:
        """Every element's rank and place; what fills the line up comes last."""
        writer, (ranks, places) = self.writer, self.arrays
        with self.team.own(size) as own:
            at = writer.index_text(own)
            writer.line(f"{places}[{at}] = {at};")
            if size == self.size:
                writer.line(f"{ranks}[{at}] = {writer.scalar_text(self.rank(own))};")
                return
            with writer.block(f"if ({at} < {self.size})"):
                inside = axis(writer.let_text(I32, False, at), self.size)
                writer.line(f"{ranks}[{at}] = {writer.scalar_text(self.rank(inside))};")
            with writer.block("else"):
                writer.line(f"{ranks}[{at}] = {writer.scalar_text(self.last)};")

    def _swap(self, size: int) -> None:
        """One step of the network: pairs ``s`` apart, in order or, every other run, reversed."""
        writer, (ranks, places) = self.writer, self.arrays
        with self.team.own(size // 2, "p") as pair:
            own = writer.let_text(I32, False, writer.index_text(pair))
            first = writer.let_text(I32, False, f"2 * {own} - ({own} & (s - 1))")
            second = writer.let_text(I32, False, f"{first} + s")
            found = [
                tuple(
                    Var(of, writer.let_text(of, False, f"{array}[{at}]"))
                    for of, array in ((self.rank_type, ranks), (I32, places))
                )
                for at in (first, second)
            ]
            swapped = writer.scalar_text(_before(found[1], found[0]))
            up = f"(({first} & length) == 0)"
            with writer.block(f"if (({swapped} != 0) == {up})"):
                for at, (rank, place) in zip((first, second), reversed(found), strict=True):
                    writer.line(f"{ranks}[{at}] = {rank.name}; {places}[{at}] = {place.name};")
