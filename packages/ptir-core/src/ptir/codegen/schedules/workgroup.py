"""Workgroups: how the threads of one divide places, bring what they hold together, and wait.

The other half of cooperative schedules is ``independent``: a serial schedule of scalars whose
workgroups of one thread become the threads of larger ones, for families in which threads have
nothing to say to each other.
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
from ptir.codegen.kernel_ir.values import ShuffleXor
from ptir.codegen.kernel_ir.writer import Writer
from ptir.codegen.schedules.kernel import EmitContext, Fusion, Kernel
from ptir.types import BOOL, I32, DType

Combined = Callable[[Sequence[Expr], Sequence[Expr]], Sequence[Expr]]
"""What two threads' values come to, value by value; the order of the two must not matter."""
ScratchSlots: TypeAlias = list[tuple[Var, str, int]]
"""Variables, the shared array for each, and where it begins there."""


def independent(
    write: Callable[[Fusion, EmitContext], Kernel],
) -> Callable[[Fusion, EmitContext], Kernel]:
    """The cooperative schedule in which every thread is a workgroup of the serial one.

    The last workgroup may have threads without work.
    """

    def coop(fusion: Fusion, context: EmitContext) -> Kernel:
        kernel = write(fusion, context)
        assert context.dialect.workgroup is not None
        threads = min(context.tiles.independent_workgroup_size, context.traits.max_workgroup_size)
        workgroups = -(-kernel.workgroups // threads)
        code = kernel.code.guarded(kernel.workgroups, threads)
        return replace(kernel, code=code, workgroups=workgroups, workgroup_size=threads)

    return coop


def power_of_two(size: int) -> int:
    """The least power of two that is not below ``size``."""
    return 1 << max(0, size - 1).bit_length()


class Workgroup:
    """The threads of one workgroup while their kernel is written."""

    def __init__(self, writer: Writer, workgroup_size: int) -> None:
        assert workgroup_size == power_of_two(workgroup_size), workgroup_size
        self.writer, self.size = writer, workgroup_size
        self.local_id: Index = axis("member", workgroup_size)
        self.width = min(writer.workgroup.subgroup_size, workgroup_size)

    # --- places ---

    @contextmanager
    def distribute(self, size: int, name: str = "i", no_unroll: bool = False) -> Iterator[Index]:
        """A block for each of ``size`` places, shared out: local id n gets n, n + size, ..."""
        name = self.writer.name(name)
        if size < self.size:
            with self.writer.when(less(self.local_id, size)):
                yield axis("member", size)
            return
        # A loop of one pass too: PoCL 3.1 computes a bare block between barriers wrongly.
        with self.writer.each(name, size, self.local_id, size, self.size, no_unroll):
            yield axis(name, size)

    def distribute_runs(self, size: int, body: Callable[[Index], None], run: int = 1) -> None:
        """Call ``body`` with every place, runs of ``run`` neighbours going to one thread."""
        run = run if size % run == 0 else 1
        with self.distribute(size // run) as block:
            if run == 1:
                body(block)
                return
            for place in range(run):
                with self.writer.vectorized_run(block, run, place):
                    body(block * run + place)

    def first(self) -> AbstractContextManager[None]:
        """A block of the first thread alone."""
        return self.writer.when(Apply(BOOL, "eq", Coordinate(I32, self.local_id), Const(I32, 0)))

    # --- bringing together ---

    def reduce(self, held: Sequence[Var], combined: Combined, segments: int = 1) -> None:
        """What all threads hold becomes what each holds, in variables that change.

        With ``segments``, threads whose local ids differ by multiples of it are brought together.
        The order is fixed by the number of threads and by how many of them exchange values.
        """
        reach = self.width if all(can_shuffle(one.dtype) for one in held) else 0
        step = reach // 2
        while step >= segments:
            self._shuffle(held, combined, step)
            step //= 2
        if segments < self.size > reach:
            if reach > segments:
                self._reduce_by_subgroup(held, combined, segments, reach)
            else:
                self._reduce_by_tree(held, combined, segments)

    def reduce_one(self, one: Var, combined: Callable[[Expr, Expr], Expr]) -> Var:
        """``reduce`` of one variable: what an ``Accumulator`` asks for."""
        self.reduce([one], lambda a, b: [combined(a[0], b[0])])
        return one

    def sum(self, held: Sequence[Var], segments: int = 1) -> None:
        """The sums of what threads hold."""
        self.reduce(held, lambda a, b: [_add(x, y) for x, y in zip(a, b, strict=True)], segments)

    def _shuffle(self, held: Sequence[Var], combined: Combined, step: int) -> None:
        with self.writer.scope():
            others = [self.writer.let(ShuffleXor(one, step)) for one in held]
            self._assign(held, combined(held, others))

    def _assign(self, held: Sequence[Var], found: Sequence[Expr]) -> None:
        writer = self.writer
        values = [writer.let(writer.scalar(one)) for one in found]
        for one, value in zip(held, values, strict=True):
            writer.assign(one, value)

    def _scratch(self, held: Sequence[Var], size: int) -> ScratchSlots:
        """An array for each value, and where it begins there."""
        used: dict[DType, int] = {}
        found: ScratchSlots = []
        for one in held:
            kind = carrier(one.dtype)
            begin = used.get(kind, 0)
            used[kind] = begin + size
            found.append((one, self.writer.reduction_scratch(kind, begin + size), begin))
        return found

    def _reduce_by_subgroup(
        self, held: Sequence[Var], combined: Combined, segments: int, reach: int
    ) -> None:
        """Subgroups put down what they came to, and every thread goes through it in order."""
        writer, subgroups = self.writer, self.size // reach
        rooms = self._scratch(held, subgroups * segments)
        with writer.when(less(self.local_id % reach, segments)):
            self._put(rooms, (self.local_id // reach) * segments + self.local_id % segments)
        writer.barrier()
        own = self.local_id % segments
        self._take(rooms, own)
        for number in range(1, subgroups):
            with writer.scope():
                self._assign(held, combined(held, self._read(rooms, own + number * segments)))
        writer.barrier()

    def _reduce_by_tree(self, held: Sequence[Var], combined: Combined, segments: int) -> None:
        """Halves are brought together until ``segments`` threads are left."""
        writer = self.writer
        rooms = self._scratch(held, self.size)
        self._put(rooms, self.local_id)
        writer.barrier()
        step = self.size // 2
        while step >= segments:
            with writer.when(less(self.local_id, step)):
                other = Index({Axis("member", step): 1}) + step
                self._assign(held, combined(held, self._read(rooms, other)))
                self._put(rooms, self.local_id)
            writer.barrier()
            step //= 2
        self._take(rooms, self.local_id % segments)
        writer.barrier()

    def _put(self, rooms: ScratchSlots, slot: Index) -> None:
        """What the thread holds, into the slots."""
        for one, room, begin in rooms:
            self.writer.put(room, slot + begin, one, whole_word(one.dtype))

    def _take(self, rooms: ScratchSlots, slot: Index) -> None:
        """What a slot of each array holds, into the thread's variables."""
        for one, room, begin in rooms:
            self.writer.assign(one, self.writer.element(Cell(one.dtype, room, slot + begin)))

    def _read(self, rooms: ScratchSlots, slot: Index) -> list[Var]:
        """What a slot of each array holds, in new variables."""
        return [
            self.writer.let(self.writer.element(Cell(one.dtype, room, slot + begin)))
            for one, room, begin in rooms
        ]


def can_shuffle(dtype: DType) -> bool:
    """Whether values of ``dtype`` are carried in 32 bits, so that threads can exchange them."""
    return dtype == BOOL or carrier(dtype).bits == I32.bits


def _add(a: Expr, b: Expr) -> Expr:
    return a + b
