"""Work-groups: how the members of one divide places, bring what they hold together, and wait.

The other half of coop schedules is ``threads``: a serial schedule of scalars whose items are the
members of groups, for families in which items have nothing to say to each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import TypeAlias

from ptir.codegen.expressions.expr import (
    Apply,
    Cell,
    Const,
    Coordinate,
    Expr,
    Var,
    carrier,
    whole_word,
)
from ptir.codegen.expressions.index import Axis, Index, axis
from ptir.codegen.kernel_ir.conditions import less
from ptir.codegen.kernel_ir.values import Exchange
from ptir.codegen.kernel_ir.writer import Writer
from ptir.codegen.schedules.kernel import Group, Kernel, Site
from ptir.types import BOOL, I32, DType

Combined = Callable[[Sequence[Expr], Sequence[Expr]], Sequence[Expr]]
"""What two members' values come to, value by value; the order of the two must not matter."""
Rooms: TypeAlias = list[tuple[Var, str, int]]
"""Variables, the shared array for each, and where it begins there."""


def threads(write: Callable[[Group, Site], Kernel]) -> Callable[[Group, Site], Kernel]:
    """The coop schedule in which every member of a group is an item of the serial one.

    The last group may have members without an item.
    """

    def coop(group: Group, site: Site) -> Kernel:
        kernel = write(group, site)
        assert site.dialect.together is not None
        members = min(site.tiles.threads, site.traits.group)
        items = -(-kernel.items // members)
        code = kernel.code.guarded(kernel.items, members)
        return replace(kernel, code=code, items=items, members=members)

    return coop


def power_of_two(size: int) -> int:
    """The least power of two that is not below ``size``."""
    return 1 << max(0, size - 1).bit_length()


class Team:
    """The members of one group while their kernel is written."""

    def __init__(self, writer: Writer, members: int) -> None:
        assert members == power_of_two(members), members
        self.writer, self.members = writer, members
        self.member: Index = axis("member", members)
        self.width = min(writer.together.width, members)

    # --- places ---

    @contextmanager
    def own(self, size: int, name: str = "i", rolled: bool = False) -> Iterator[Index]:
        """A block for each of ``size`` places, shared out: member n has n, n + members, ..."""
        name = self.writer.name(name)
        if size < self.members:
            with self.writer.when(less(self.member, size)):
                yield axis("member", size)
            return
        # A loop of one turn too: PoCL 3.1 computes a bare block between barriers wrongly.
        with self.writer.loop(Axis(name, size), self.member, size, self.members, rolled):
            yield axis(name, size)

    def each(self, size: int, body: Callable[[Index], None], run: int = 1) -> None:
        """Call ``body`` with every place, runs of ``run`` neighbours going to one member."""
        run = run if size % run == 0 else 1
        with self.own(size // run) as block:
            if run == 1:
                body(block)
                return
            for place in range(run):
                with self.writer.running(block, run, place):
                    body(block * run + place)

    def first(self) -> AbstractContextManager[None]:
        """A block of the first member alone."""
        return self.writer.when(Apply(BOOL, "eq", Coordinate(I32, self.member), Const(I32, 0)))

    # --- bringing together ---

    def fold(self, held: Sequence[Var], combined: Combined, apart: int = 1) -> None:
        """What all members hold becomes what each holds, in variables that change.

        With ``apart``, members whose numbers differ by multiples of it are brought together. The
        order is fixed by the number of members and by how many of them exchange values.
        """
        reach = self.width if all(exchanged(one.dtype) for one in held) else 0
        step = reach // 2
        while step >= apart:
            self._exchange(held, combined, step)
            step //= 2
        if apart < self.members > reach:
            if reach > apart:
                self._in_order(held, combined, apart, reach)
            else:
                self._tree(held, combined, apart)

    def bring(self, one: Var, combined: Callable[[Expr, Expr], Expr]) -> Var:
        """``fold`` of one variable: what ``folds`` asks for."""
        self.fold([one], lambda a, b: [combined(a[0], b[0])])
        return one

    def sum(self, held: Sequence[Var], apart: int = 1) -> None:
        """The sums of what members hold."""
        self.fold(held, lambda a, b: [_add(x, y) for x, y in zip(a, b, strict=True)], apart)

    def _exchange(self, held: Sequence[Var], combined: Combined, step: int) -> None:
        with self.writer.scope():
            others = [self.writer.let(Exchange(one, step)) for one in held]
            self._assign(held, combined(held, others))

    def _assign(self, held: Sequence[Var], found: Sequence[Expr]) -> None:
        writer = self.writer
        values = [writer.let(writer.scalar(one)) for one in found]
        for one, value in zip(held, values, strict=True):
            writer.assign(one, value)

    def _rooms(self, held: Sequence[Var], size: int) -> Rooms:
        """An array for each value, and where it begins there."""
        used: dict[DType, int] = {}
        found: Rooms = []
        for one in held:
            kind = carrier(one.dtype)
            begin = used.get(kind, 0)
            used[kind] = begin + size
            found.append((one, self.writer.room(kind, begin + size), begin))
        return found

    def _in_order(self, held: Sequence[Var], combined: Combined, apart: int, reach: int) -> None:
        """Subgroups put down what they came to, and every member goes through it in order."""
        writer, subgroups = self.writer, self.members // reach
        rooms = self._rooms(held, subgroups * apart)
        with writer.when(less(self.member % reach, apart)):
            self._put(rooms, (self.member // reach) * apart + self.member % apart)
        writer.barrier()
        own = self.member % apart
        self._take(rooms, own)
        for number in range(1, subgroups):
            with writer.scope():
                self._assign(held, combined(held, self._read(rooms, own + number * apart)))
        writer.barrier()

    def _tree(self, held: Sequence[Var], combined: Combined, apart: int) -> None:
        """Halves are brought together until ``apart`` members are left."""
        writer = self.writer
        rooms = self._rooms(held, self.members)
        self._put(rooms, self.member)
        writer.barrier()
        step = self.members // 2
        while step >= apart:
            with writer.when(less(self.member, step)):
                other = Index({Axis("member", step): 1}) + step
                self._assign(held, combined(held, self._read(rooms, other)))
                self._put(rooms, self.member)
            writer.barrier()
            step //= 2
        self._take(rooms, self.member % apart)
        writer.barrier()

    def _put(self, rooms: Rooms, slot: Index) -> None:
        """What the member holds, into the rooms."""
        for one, room, begin in rooms:
            self.writer.put(room, slot + begin, one, whole_word(one.dtype))

    def _take(self, rooms: Rooms, slot: Index) -> None:
        """What a slot of the rooms holds, into the member's variables."""
        for one, room, begin in rooms:
            self.writer.assign(one, self.writer.element(Cell(one.dtype, room, slot + begin)))

    def _read(self, rooms: Rooms, slot: Index) -> list[Var]:
        """What a slot of the rooms holds, in new variables."""
        return [
            self.writer.let(self.writer.element(Cell(one.dtype, room, slot + begin)))
            for one, room, begin in rooms
        ]


def exchanged(dtype: DType) -> bool:
    """Whether values of ``dtype`` are carried in 32 bits, so that members can exchange them."""
    return dtype == BOOL or carrier(dtype).bits == I32.bits


def _add(a: Expr, b: Expr) -> Expr:
    return Apply(a.dtype, "add", a, b)
