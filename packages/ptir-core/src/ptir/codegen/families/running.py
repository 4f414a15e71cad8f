"""The running family: folds of everything up to each element of a line.

Serial schedule: an item owns whole lines, a vector of neighbouring ones at a time where the axis
is not the last. Along a single line, 16 elements at a time are folded in four steps (each lane
takes in the one 1, 2, 4 and 8 lanes before it), and the total so far comes in last.
"""

from __future__ import annotations

import math
from typing import Final

from ptir.codegen.elementwise import rounded
from ptir.codegen.expr import Const, Expr, Var, constant
from ptir.codegen.folds import COMBINE, identity
from ptir.codegen.graph import Graph
from ptir.codegen.groups import Team, threads
from ptir.codegen.index import Axis, Index, axis, digits
from ptir.codegen.kernel import Group, Kernel, Site, finished
from ptir.codegen.writer import Writer
from ptir.types import I32

ALONE: Final = 128
"""Elements up to which a line belongs to one member of a group."""


def match(graph: Graph, position: int) -> Group | None:
    """Every cumulative fold."""
    made = graph.block.instructions[position]
    if made.op != "cumulative":
        return None
    return Group("running", frozenset((position,)), made.operands, graph.results[position])


def write(group: Group, site: Site) -> Kernel:
    """A loop over lines, or over vectors of neighbouring lines, inside it one along the line."""
    return _Running(group, site).kernel()


class _Running:
    def __init__(self, group: Group, site: Site) -> None:
        (position,) = group.members
        self.group, self.site = group, site
        self.made = site.graph.block.instructions[position]
        self.dtype, self.shape = self.made.types[0].dtype, self.made.types[0].shape
        along: int = self.made.attributes["axis"] % len(self.shape)
        self.kind = self.made.attributes["kind"]
        self.size, self.inner = self.shape[along], math.prod(self.shape[along + 1 :])
        self.writer: Writer = site.writer()
        self.builder = site.builder()
        self.lanes = site.dialect.lanes
        self.lane = Axis("lane", self.lanes)

    def kernel(self) -> Kernel:
        """Lines are shared out, or vectors of them."""
        writer, lines = self.writer, math.prod(self.shape) // self.size
        beside = self.inner % self.lanes == 0  # a vector of lines must not cross into the next
        pieces = lines // self.lanes if beside else lines
        items = self.site.items(pieces, math.prod(self.shape) * 4)
        writer.share(pieces, items)
        with writer.loop(Axis("p", pieces), "first", "last"):
            if beside:
                with writer.lanes(self.lane):
                    lane = axis("lane", self.lanes)
                    self._line(axis("p", pieces) * self.lanes + lane, self.start(), 0)
            elif self.inner == 1:
                self._long(axis("p", pieces))
            else:
                self._line(axis("p", pieces), self.start(), 0)
        return finished(self.group, writer, items)

    def start(self) -> Const:
        """What nothing folds to; for sums of floats -0, so that a first -0 stays."""
        if self.kind == "sum" and self.dtype.is_float:
            return constant(self.dtype, -0.0)
        return identity(self.kind, self.dtype)

    def _at(self, line: Index, place: Index) -> Index:
        begin = (line // self.inner) * (self.size * self.inner) + line % self.inner
        return begin + place * self.inner

    def _element(self, flat: Index) -> Expr:
        return self.builder.at(self.made.operands[0], digits(flat, self.shape))

    def _combined(self, a: Expr, b: Expr) -> Expr:
        return COMBINE[self.kind](self.dtype, a, b)

    def _held(self, start: Expr) -> str:
        """A variable that grows, one per lane while there are lanes."""
        writer, wide = self.writer, self.writer.lane is not None
        name, text = (
            writer.name("acc"),
            writer.wide_text(start) if wide else writer.scalar_text(start),
        )
        writer.line(f"{writer.type(self.dtype, wide)} {name} = {text};")
        return name

    def _line(self, line: Index, start: Expr, begin: int) -> None:
        """One line, or one per lane, element by element from ``begin`` on."""
        writer, wide = self.writer, self.writer.lane is not None
        name, left = self._held(start), self.size - begin
        with writer.loop(Axis("j", left), "0", str(left)):
            flat = self._at(line, axis("j", left) + begin)
            found = self._combined(Var(self.dtype, name, wide), self._element(flat))
            writer.line(
                f"{name} = {writer.wide_text(found) if wide else writer.scalar_text(found)};"
            )
            # a new name each turn: variables of expressions never change
            total = Var(self.dtype, writer.let_text(self.dtype, wide, name), wide)
            writer.store(self.group.exits[0], self.dtype, flat, rounded(self.dtype, total))

    def _long(self, line: Index) -> None:
        """One line whose elements lie side by side, a vector at a time."""
        writer, whole = self.writer, self.size // self.lanes
        start: Expr = self.start()
        if whole:
            name = self._held(start)
            with writer.loop(Axis("v", whole), "0", str(whole)), writer.lanes(self.lane):
                place = axis("v", whole) * self.lanes + axis("lane", self.lanes)
                flat = self._at(line, place)
                before = Var(self.dtype, writer.let_text(self.dtype, False, name))
                found = self._combined(before, self._prefix(writer.wide_text(self._element(flat))))
                total = writer.let_text(self.dtype, True, writer.wide_text(found))
                result = rounded(self.dtype, Var(self.dtype, total, True))
                writer.store(self.group.exits[0], self.dtype, flat, result)
                writer.line(f"{name} = {writer.dialect.lane(total, self.lanes - 1)};")
            start = Var(self.dtype, writer.let_text(self.dtype, False, name))
        if self.size % self.lanes:
            self._line(line, start, whole * self.lanes)

    def scanned(self) -> Kernel:
        """A group goes along a line, an element of each member at a time.

        Each takes in the one 1, 2, 4, ... members before it; the total so far comes in last.
        """
        writer, dtype, size = self.writer, self.dtype, self.size
        lines = math.prod(self.shape) // size
        members = min(self.site.tiles.line_members, self.site.traits.group)
        team = Team(writer, members)
        array, count = writer.shared(dtype, team.members), team.members
        name, line = self._held(self.start()), axis("item", lines)
        with writer.block(f"for (int j = 0; j < {size}; j += {count})"):
            place = axis(writer.let_text(I32, False, "j + member"), size)
            own = self._held(self.start())
            with writer.block(f"if ({writer.index_text(place)} < {size})"):
                writer.line(f"{own} = {writer.scalar_text(self._element(self._at(line, place)))};")
            step = 1
            while step < count:
                writer.line(f"{array}[member] = {own};")
                writer.barrier()
                with writer.block(f"if (member >= {step})"):
                    before = Var(dtype, writer.let_text(dtype, False, f"{array}[member - {step}]"))
                    found = self._combined(before, Var(dtype, own))
                    writer.line(f"{own} = {writer.scalar_text(found)};")
                writer.barrier()
                step *= 2
            with writer.block(""):
                found = self._combined(Var(dtype, name), Var(dtype, own))
                total = Var(dtype, writer.let_text(dtype, False, writer.scalar_text(found)))
                with writer.block(f"if ({writer.index_text(place)} < {size})"):
                    result = rounded(dtype, total)
                    writer.store(self.group.exits[0], dtype, self._at(line, place), result)
                writer.line(f"{array}[member] = {total.name};")
            writer.barrier()
            writer.line(f"{name} = {array}[{count - 1}];")
            writer.barrier()
        return finished(self.group, writer, lines, members=count)

    def _prefix(self, text: str) -> Expr:
        """The fold of each lane with all lanes before it."""
        writer, dtype, step = self.writer, self.dtype, 1
        name = writer.let_text(dtype, True, text)
        nothing = writer.dialect.literal(dtype, self.start().value)
        while step < self.lanes:
            lanes = [writer.dialect.lane(name, n) for n in range(self.lanes - step)]
            moved = writer.dialect.gathered(dtype, [*(nothing,) * step, *lanes])
            earlier = Var(dtype, writer.let_text(dtype, True, moved), True)
            found = writer.wide_text(self._combined(earlier, Var(dtype, name, True)))
            name, step = writer.let_text(dtype, True, found), step * 2
        return Var(dtype, name, True)


def coop(group: Group, site: Site) -> Kernel:
    """A member per line, or a group per line where a line lies in one piece and is long."""
    running = _Running(group, site)
    if running.inner > 1 or running.size <= ALONE:
        return threads(write)(group, site)
    return running.scanned()
