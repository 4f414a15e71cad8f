"""The scatter family: updates combined, in order, into a tensor at places known at run time.

Serial schedule: the result is written over the operand's memory (or a copy of it). A workgroup owns
whole batches, or where there is one batch a run of the columns that a place addresses, so that
every element is combined by one workgroup, in the order of the updates. 16-bit totals grow in an
f32 copy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from ptir.codegen.expressions.elementwise import NARROW, cast, maximum, minimum
from ptir.codegen.expressions.expr import Apply, Expr, Load, as_index, compare, constant
from ptir.codegen.expressions.index import ZERO, Axis, Index, axis, ravel_index, unravel_index
from ptir.codegen.expressions.movement import Coordinates, both
from ptir.codegen.fusion.graph import Graph
from ptir.codegen.kernel_ir.statements import Whole
from ptir.codegen.schedules.epilogue import HeroKernel
from ptir.codegen.schedules.kernel import (
    EmitContext,
    Fusion,
    Kernel,
    alone,
    finish_kernel,
    scratch_value,
)
from ptir.codegen.schedules.workgroup import independent
from ptir.types import BOOL, F32, I32, DType

FOLD: Final[dict[str, Callable[[DType, Expr, Expr], Expr]]] = {
    "add": lambda dtype, a, b: a + b,
    "mul": lambda dtype, a, b: a * b,
    "max": maximum,
    "min": minimum,
    "replace": lambda dtype, a, b: b,
}

Range: TypeAlias = tuple[Whole, Whole]
"""Where a loop begins and ends."""


def match(graph: Graph, position: int) -> Fusion:
    """Every scatter on its own."""
    return alone("scatter", graph, position, in_place=True)


def emit(fusion: Fusion, context: EmitContext) -> Kernel:
    """A loop over batches, inside it one over places, inside that one over columns."""
    return _Scatter(fusion, context).kernel()


class _Scatter(HeroKernel):
    def __init__(self, fusion: Fusion, context: EmitContext) -> None:
        super().__init__(fusion, context)
        attributes = self.made.attributes
        self.axes, self.kind = tuple(attributes["axes"]), attributes["kind"]
        self.type = self.made.types[0]
        self.dtype = self.type.dtype
        shape, self.batch = self.type.shape, attributes["batch"]
        self.columns_of = [a for a in range(len(shape)) if a >= self.batch and a not in self.axes]
        self.batches = math.prod(shape[: self.batch])
        self.columns = math.prod(shape[a] for a in self.columns_of)
        self.lead = context.graph.type(self.made.operands[1]).shape[self.batch : -1]
        self.places = math.prod(self.lead)
        self.grows = self.dtype in NARROW and self.kind in ("add", "mul")
        self.held = scratch_value(fusion, 0) if self.grows else fusion.outputs[0]

    def kernel(self) -> Kernel:
        """The whole kernel; batches are shared out, or else columns."""
        writer, by_batch = self.writer, self.batches > 1
        pieces = self.batches if by_batch else self.columns
        work = self.batches * self.places * self.columns * 4
        workgroups = self.context.workgroups(pieces, work)
        part = writer.work_range(pieces, workgroups)
        ranges: tuple[Range, Range] = (part, (0, self.columns)) if by_batch else ((0, 1), part)
        if self.grows:
            self._each(*ranges, self._widen)
        if self.places:
            batches = writer.loop(Axis("b", self.batches), *ranges[0])
            with batches, writer.each("p", self.places):
                self._place(*ranges[1])
        if self.grows:
            self._each(*ranges, self._narrow)
        scratch = (self.type.with_dtype(F32),) if self.grows else ()
        return finish_kernel(self.fusion, writer, workgroups, scratch)

    def _place(self, first: Whole, last: Whole) -> None:
        """Combine the update of one place into its columns, if it lies inside."""
        writer, batch = self.writer, self._batch()
        spot = (*batch, *unravel_index(axis("p", self.places), self.lead))
        inside: Expr = constant(BOOL, -1)
        found: list[Index] = []
        for number, size in enumerate(self.type.shape[a] for a in self.axes):
            entry = self.builder.at(self.made.operands[1], (*spot, ZERO + number))
            inside = both(inside, _inside(entry, size))
            narrowed = entry if entry.dtype == I32 else Apply(I32, "convert", entry)
            found.append(as_index(narrowed, 0, size - 1))
        kept = writer.when(writer.scalar(inside))
        with kept, writer.each("c", self.columns, first, last) as c:
            column = unravel_index(c, self._column_shape())
            update = self.builder.at(self.made.operands[2], (*spot, *column))
            self._fold(ravel_index(self._at(batch, found, column), self.type.shape), update)

    def _fold(self, flat: Index, update: Expr) -> None:
        dtype = F32 if self.grows else self.dtype
        if self.grows:
            update = cast(F32, update)
        before = Load(dtype, self.held, flat)
        self.writer.store(self.held, dtype, flat, FOLD[self.kind](dtype, before, update))

    def _each(self, batches: Range, columns: Range, body: Callable[[Index], None]) -> None:
        """Call ``body`` with the place of every element of the workgroup's part."""
        rows = [self.type.shape[a] for a in self.axes]
        writer, count = self.writer, math.prod(rows)
        outer = writer.loop(Axis("b", self.batches), *batches)
        middle = writer.loop(Axis("row", count), 0, count)
        with outer, middle, writer.each("c", self.columns, *columns) as c:
            found = unravel_index(axis("row", count), rows)
            column = unravel_index(c, self._column_shape())
            body(ravel_index(self._at(self._batch(), found, column), self.type.shape))

    def _widen(self, flat: Index) -> None:
        loaded = cast(F32, Load(self.dtype, self.fusion.outputs[0], flat))
        self.writer.store(self.held, F32, flat, loaded)

    def _narrow(self, flat: Index) -> None:
        total = cast(self.dtype, Load(F32, self.held, flat))
        self.writer.store(self.fusion.outputs[0], self.dtype, flat, total)

    def _batch(self) -> Coordinates:
        return unravel_index(axis("b", self.batches), self.type.shape[: self.batch])

    def _column_shape(self) -> list[int]:
        return [self.type.shape[a] for a in self.columns_of]

    def _at(
        self, batch: Coordinates, found: Sequence[Index], column: Coordinates
    ) -> tuple[Index, ...]:
        """The operand's coordinates of a column of a place."""
        at = [ZERO] * self.type.rank
        for axes, values in (
            (range(self.batch), batch),
            (self.axes, found),
            (self.columns_of, column),
        ):
            for where, value in zip(axes, values, strict=True):
                at[where] = value
        return tuple(at)


def _inside(entry: Expr, size: int) -> Expr:
    """Whether an index lies in ``0 .. size - 1``; compared in a type that holds the size."""
    if entry.dtype.bits < I32.bits:
        entry = Apply(I32, "convert", entry)
    last = compare("le", entry, size - 1)
    if entry.dtype.kind == "uint":
        return last
    return both(compare("ge", entry, 0), last)


emit_cooperative = independent(emit)
