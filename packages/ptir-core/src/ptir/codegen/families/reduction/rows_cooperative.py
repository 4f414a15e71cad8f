"""Row reductions in cooperative kernels: a workgroup per row, or a thread where rows are short.

The thread of local id n visits the elements n, n + size, ... (in runs of 4 where rows allow),
always the same ones, so what is kept of a row in shared memory needs no barrier. A stage ends with
a reduction of what threads hold.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Final

from ptir.codegen.expressions.expr import Coordinate, Expr, constant
from ptir.codegen.expressions.index import Index, axis
from ptir.codegen.families.reduction.rows import RowEmitter, RowReduction, emit
from ptir.codegen.fusion.graph import Builder
from ptir.codegen.kernel_ir.writer import Writer
from ptir.codegen.schedules.accumulators import accumulator, better, identity, take_better
from ptir.codegen.schedules.epilogue import builder_of
from ptir.codegen.schedules.kernel import EmitContext, Fusion, Kernel, finish_kernel
from ptir.codegen.schedules.workgroup import Workgroup, independent, power_of_two
from ptir.ir.program import Instruction
from ptir.types import F32, I32

SHORT: Final = 16
"""Elements up to which a row belongs to one thread."""
LEAST: Final = 32
"""Threads of a workgroup, at least."""
RUN: Final = 4


def emit_cooperative(fusion: Fusion, context: EmitContext) -> Kernel:
    """A workgroup per row."""
    rows: RowReduction = fusion.detail
    if rows.size <= SHORT:
        return independent(emit)(fusion, context)
    writer, builder = context.writer(), builder_of(fusion, context)
    workgroup = Workgroup(writer, threads_for(rows.size, context))
    row, kept = axis("item", rows.count), fitting(rows, context.traits.shared_memory_bytes // 2)
    CooperativeRows(writer, builder, kept, row, workgroup).write()
    return finish_kernel(fusion, writer, rows.count, workgroup_size=workgroup.size)


def threads_for(size: int, context: EmitContext) -> int:
    """The threads of a workgroup for rows of ``size`` elements."""
    tiles = context.tiles
    wanted = power_of_two(-(-size // tiles.row_elements_per_thread))
    return min(max(LEAST, wanted), tiles.row_workgroup_size, context.traits.max_workgroup_size)


def fitting(rows: RowReduction, nbytes: int) -> RowReduction:
    """The rows, with no more elements kept than so many bytes hold: others are computed again."""
    return replace(rows, cached=rows.cached[: nbytes // (rows.size * F32.itemsize)])


class CooperativeRows(RowEmitter):
    """Writes the stages of one row for all threads of a workgroup."""

    def __init__(
        self, writer: Writer, builder: Builder, rows: RowReduction, row: Index, workgroup: Workgroup
    ) -> None:
        super().__init__(writer, builder, rows, row)
        self.workgroup = workgroup

    def _once(self) -> AbstractContextManager[None]:
        """A block of the first thread."""
        return self.workgroup.first()

    def _array(self, name: str) -> str:
        """Shared memory; every thread uses the places that are its own."""
        return self.writer.shared(F32, self.rows.size)

    def each(self, body: Callable[[Index], None]) -> None:
        """Call ``body`` with every place of the row that is the thread's own."""
        self.workgroup.distribute_runs(self.rows.size, body, RUN)

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
        fold = accumulator(writer, made.attributes["kind"], made.types[0].dtype, False)
        self._each_element(made, lambda element, place: fold.add(element))
        total = fold.reduce_workgroup(self.workgroup.reduce_one)
        return self._rounded(writer.let(writer.scalar(total)))

    def _arg(self, made: Instruction) -> Expr:
        """The first NaN, else the first greatest element's place."""
        writer, dtype = self.writer, self.graph.type(made.operands[0]).dtype
        best = writer.declare(identity("max", dtype), writer.name("best"))
        where = writer.declare(constant(I32, self.rows.size), writer.name("place"))

        def body(element: Expr, place: Index) -> None:
            take_better(writer, best, where, element, Coordinate(I32, place))

        self._each_element(made, body)
        self.workgroup.reduce([best, where], better)
        return where
