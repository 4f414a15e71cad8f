"""The cooperative schedules of the sort family: a workgroup per line.

Few best elements are found one by one: the least rank behind the last one found, of which every
thread looks at some. Whole lines are sorted as pairs of a rank and a place, which are all
different, by a bitonic network over a power of two of them, in shared memory where they fit and
else in scratch memory; so the order is that of a stable sort. Short lines belong to one thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from ptir.codegen.expressions.expr import (
    Apply,
    Const,
    Coordinate,
    Expr,
    Var,
    as_index,
    compare,
    constant,
    select,
)
from ptir.codegen.expressions.index import ZERO, Index, axis
from ptir.codegen.families.sort.match import SortEmitter, is_few
from ptir.codegen.families.sort.serial import emit
from ptir.codegen.kernel_ir.conditions import less
from ptir.codegen.kernel_ir.nodes import Store
from ptir.codegen.kernel_ir.values import Read
from ptir.codegen.kernel_ir.writer import Writer
from ptir.codegen.schedules.kernel import EmitContext, Fusion, Kernel, finish_kernel, scratch_value
from ptir.codegen.schedules.workgroup import Workgroup, independent, power_of_two
from ptir.types import BOOL, I32, DType, TensorType

ALONE: Final = 32
"""Elements up to which a line belongs to one thread."""
LENGTH, S = Var(I32, "length"), Var(I32, "s")
"""How long the runs are that a step of the network merges, and how far apart it compares."""


def emit_cooperative(fusion: Fusion, context: EmitContext) -> Kernel:
    """The schedule for few elements, for short lines or for long ones."""
    lines = CooperativeSort(fusion, context)
    if lines.size <= ALONE:
        return independent(emit)(fusion, context)
    return lines.best() if is_few(lines.made) else lines.sorted()


def earlier(a: Sequence[Expr], b: Sequence[Expr]) -> Sequence[Expr]:
    """The pair of rank and place that comes first."""
    first = _before(b, a)
    return [select(first, y, x) for x, y in zip(a, b, strict=True)]


def _before(a: Sequence[Expr], b: Sequence[Expr]) -> Expr:
    """Whether one pair of rank and place comes before another."""
    equal = Apply(BOOL, "eq", a[0], b[0]) & compare("lt", a[1], b[1])
    return compare("lt", a[0], b[0]) | equal


class Strip(NamedTuple):
    """Where the ranks of a line, or its places, lie while they are sorted."""

    writer: Writer
    dtype: DType
    memory: str
    begin: Index

    def read(self, at: Index) -> Var:
        """An element, read anew."""
        return self.writer.let(Read(self.dtype, self.memory, self.begin + at))

    def put(self, at: Index, value: Expr) -> None:
        """Write an element."""
        self.writer.emit(Store(self.dtype, self.memory, self.begin + at, value))


class CooperativeSort(SortEmitter):
    """The lines of one sort or choice while their cooperative kernel is written."""

    def __init__(self, fusion: Fusion, context: EmitContext) -> None:
        super().__init__(fusion, context)
        self.workgroup = Workgroup(
            self.writer, min(context.tiles.sort_workgroup_size, context.traits.max_workgroup_size)
        )
        self.line = axis("item", self.lines)
        self.last: Const = constant(self.rank_type, (1 << self.rank_type.bits) - 1)

    def best(self) -> Kernel:
        """One element after the other, the best first."""
        writer = self.writer
        before = self._pair(constant(self.rank_type, 0), -1, "_before")
        with writer.each("o", self.wanted) as o:
            pair = self._pair(self.last, self.size)
            with self.workgroup.distribute(self.size) as place:
                found = writer.let(writer.scalar(self.rank(place)))
                here = found, writer.let(Coordinate(I32, place))
                takes = _before(before, here) & _before(here, pair)
                with writer.when(writer.scalar(takes)):
                    self._assign(pair, here)
            self.workgroup.reduce(pair, earlier)
            self._assign(before, pair)
            with self.workgroup.first():
                self.give(o, pair[1])
        return finish_kernel(self.fusion, writer, self.lines, workgroup_size=self.workgroup.size)

    def _pair(self, rank: Expr, place: int, behind: str = "") -> tuple[Var, Var]:
        """Declare a rank and a place that change."""
        held = self.writer.declare(rank, f"rank{behind}")
        return held, self.writer.declare(constant(I32, place), f"place{behind}")

    def _assign(self, pair: Sequence[Var], found: Sequence[Expr]) -> None:
        for one, value in zip(pair, found, strict=True):
            self.writer.assign(one, value)

    # --- whole lines ---

    def sorted(self) -> Kernel:
        """A bitonic network."""
        writer, size = self.writer, power_of_two(self.size)
        nbytes = size * (self.rank_type.itemsize + I32.itemsize)
        self._types: tuple[TensorType, ...] = ()
        if nbytes <= self.context.traits.shared_memory_bytes // 2:
            self.strips = [
                Strip(writer, of, writer.shared(of, size), ZERO) for of in (self.rank_type, I32)
            ]
        else:
            self.strips = [self._scratch(n, of, size) for n, of in enumerate((self.rank_type, I32))]
        self._rank_all(size)
        length, s = axis("length", size + 1), axis("s", size // 2 + 1)
        most, none = constant(I32, size), constant(I32, 0)
        half, twice, next_s = (Coordinate(I32, x) for x in (length // 2, length * 2, s // 2))
        lengths = writer.while_true(LENGTH, compare("le", LENGTH, most), twice, constant(I32, 2))
        with lengths, writer.while_true(S, compare("gt", S, none), next_s, half):
            writer.barrier()
            self._swap(size, s)
        writer.barrier()
        with self.workgroup.distribute(self.wanted, "o") as place:
            self.give(place, self.strips[1].read(place))
        workgroups, threads = self.lines, self.workgroup.size
        return finish_kernel(self.fusion, writer, workgroups, self._types, workgroup_size=threads)

    def _scratch(self, number: int, dtype: DType, size: int) -> Strip:
        """The line's part of a scratch memory."""
        memory = self.writer.memory(scratch_value(self.fusion, number), dtype, written=True)
        self._types += (TensorType(dtype, (self.lines * size,)),)
        return Strip(self.writer, dtype, memory, self.line * size)

    def _rank_all(self, size: int) -> None:
        """Every element's rank and place; what fills the line up comes last."""
        writer, (ranks, places) = self.writer, self.strips
        with self.workgroup.distribute(size) as own:
            places.put(own, Coordinate(I32, own))
            if size == self.size:
                ranks.put(own, writer.scalar(self.rank(own)))
                return
            with writer.when(less(own, self.size)):
                inside = writer.let_index(own, self.size)
                ranks.put(own, writer.scalar(self.rank(inside)))
            with writer.otherwise():
                ranks.put(own, self.last)

    def _swap(self, size: int, s: Index) -> None:
        """One step of the network: pairs ``s`` apart, in order or, every other run, reversed."""
        writer = self.writer
        with self.workgroup.distribute(size // 2, "p") as pair:
            own = writer.let_index(pair, size // 2)
            low = Coordinate(I32, own) & Coordinate(I32, s - 1)
            first = writer.let_index(own * 2 - as_index(low, 0, size // 2 - 1), size)
            second = writer.let_index(first + s, size)
            found = [[strip.read(at) for strip in self.strips] for at in (first, second)]
            swapped = writer.scalar(_before(found[1], found[0]))
            run = Coordinate(I32, first) & LENGTH
            with writer.when(compare("eq", swapped, compare("eq", run, 0))):
                for at, values in zip((first, second), reversed(found), strict=True):
                    for strip, value in zip(self.strips, values, strict=True):
                        strip.put(at, value)
