"""The coop schedule of the row family: a group per row, or a member per row where rows are short.

Member n visits the elements n, n + members, ... (in runs of 4 where rows allow), always the same
ones, so what is kept of a row in shared memory needs no barrier. A stage ends with a fold of what
members hold.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Final

from ptir.codegen.expressions.expr import Coordinate, Expr, constant
from ptir.codegen.expressions.index import Index, axis
from ptir.codegen.families.reduction.rows import Rows, RowWriter, write
from ptir.codegen.fusion.graph import Builder
from ptir.codegen.kernel_ir.writer import Writer
from ptir.codegen.schedules.epilogue import builder_of
from ptir.codegen.schedules.folds import better, held, identity, take_better
from ptir.codegen.schedules.groups import Team, power_of_two, threads
from ptir.codegen.schedules.kernel import Group, Kernel, Site, finished
from ptir.ir.program import Instruction
from ptir.types import F32, I32

SHORT: Final = 16
"""Elements up to which a row belongs to one member."""
LEAST: Final = 32
"""Members of a group, at least."""
RUN: Final = 4


def coop(group: Group, site: Site) -> Kernel:
    """A group per row."""
    rows: Rows = group.detail
    if rows.size <= SHORT:
        return threads(write)(group, site)
    writer, builder = site.writer(), builder_of(group, site)
    team = Team(writer, members_for(rows.size, site))
    row, kept = axis("item", rows.count), fitting(rows, site.traits.shared // 2)
    TeamRows(writer, builder, kept, row, team).write()
    return finished(group, writer, rows.count, members=team.members)


def members_for(size: int, site: Site) -> int:
    """The members of a group for rows of ``size`` elements."""
    tiles = site.tiles
    wanted = power_of_two(-(-size // tiles.row_elements))
    return min(max(LEAST, wanted), tiles.row_members, site.traits.group)


def fitting(rows: Rows, nbytes: int) -> Rows:
    """The rows, with no more elements kept than so many bytes hold: others are computed again."""
    return replace(rows, kept=rows.kept[: nbytes // (rows.size * F32.itemsize)])


class TeamRows(RowWriter):
    """Writes the stages of one row for all members of a group."""

    def __init__(
        self, writer: Writer, builder: Builder, rows: Rows, row: Index, team: Team
    ) -> None:
        super().__init__(writer, builder, rows, row)
        self.team = team

    def _once(self) -> AbstractContextManager[None]:
        """A block of the first member."""
        return self.team.first()

    def _array(self, name: str) -> str:
        """Shared memory; every member uses the places that are its own."""
        return self.writer.shared(F32, self.rows.size)

    def each(self, body: Callable[[Index], None]) -> None:
        """Call ``body`` with every place of the row that is the member's own."""
        self.team.each(self.rows.size, body, RUN)

    def _each_element(self, made: Instruction, body: Callable[[Expr, Index], None]) -> None:
        """Call ``body`` with every element in a variable, in a block of its own."""
        writer, operand = self.writer, made.operands[0]

        def one(place: Index) -> None:
            found = writer.scalar(self._element(operand, place))
            with writer.scope():
                body(found, place)

        self.each(one)

    def _reduce(self, made: Instruction) -> Expr:
        writer = self.writer
        fold = held(writer, made.attributes["kind"], made.types[0].dtype, False)
        self._each_element(made, lambda element, place: fold.add(element))
        total = fold.across(self.team.bring)
        return self._rounded(writer.let(writer.scalar(total)))

    def _arg(self, made: Instruction) -> Expr:
        """The first NaN, else the first greatest element's place."""
        writer, dtype = self.writer, self.graph.type(made.operands[0]).dtype
        best = writer.declare(identity("max", dtype), writer.name("best"))
        where = writer.declare(constant(I32, self.rows.size), writer.name("place"))

        def body(element: Expr, place: Index) -> None:
            take_better(writer, best, where, element, Coordinate(I32, place))

        self._each_element(made, body)
        self.team.fold([best, where], better)
        return where
