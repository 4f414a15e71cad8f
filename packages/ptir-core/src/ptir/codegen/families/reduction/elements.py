"""The reduce family: reductions, arg-max and window reductions, a vector of outputs at a time.

Serial schedule: a workgroup owns a run of outputs; for each vector of them the reduced elements are
visited in order. This serves reductions that row_reduction leaves (along leading axes), whose
neighbouring outputs read neighbouring elements, and the windows of a sliding window.
"""

from __future__ import annotations

import math
from typing import Any

from ptir.codegen.expressions.elementwise import rounded
from ptir.codegen.expressions.expr import Coordinate, Expr, compare, constant, select
from ptir.codegen.expressions.index import Index, axis, number, unravel_index
from ptir.codegen.expressions.movement import tapped
from ptir.codegen.fusion.graph import Graph
from ptir.codegen.schedules.accumulators import accumulator, identity, take_better
from ptir.codegen.schedules.epilogue import HeroKernel, with_epilogue
from ptir.codegen.schedules.kernel import EmitContext, Fusion, Kernel, finish_kernel
from ptir.codegen.schedules.workgroup import independent
from ptir.ir.program import Instruction
from ptir.ops.sliding import window_dimensions
from ptir.types import I32


def match(graph: Graph, position: int) -> Fusion:
    """Every reduction of numbers or masks, along axes or in windows, and every arg-max."""
    return with_epilogue("reduce", graph, position)


def emit(fusion: Fusion, context: EmitContext) -> Kernel:
    """A loop over outputs, inside it one over what is reduced."""
    fold = _Reduce(fusion, context)
    writer, lanes = fold.writer, context.dialect.lanes
    vectors = fold.outputs // lanes
    workgroups = context.workgroups(vectors, fold.outputs * fold.length * 4)
    first, last = writer.work_range(vectors, workgroups)
    if vectors:
        with writer.vectors(vectors, first, last) as places:
            fold.write(places)
    if fold.outputs % lanes:
        with writer.when(compare("eq", last, vectors)):
            for place in range(vectors * lanes, fold.outputs):
                with writer.scope():
                    fold.write(number(place))
    return finish_kernel(fusion, writer, workgroups)


class _Reduce(HeroKernel):
    def __init__(self, fusion: Fusion, context: EmitContext) -> None:
        super().__init__(fusion, context)
        made = self.made
        self._operand = made.operands[0]
        self._shape = context.graph.type(self._operand).shape
        self._axes = _axes(made)
        self._type = made.types[0]
        self.outputs = self._type.size
        if made.op == "reduce_window":
            self.length = math.prod(made.attributes["window"])
        else:
            self.length = math.prod(self._shape[a] for a in self._axes)

    def _element(self, flat: Index) -> Expr:
        """The reduced element numbered ``j`` of an output."""
        if self.made.op == "reduce_window":
            return self._tap(flat)
        kept = iter(unravel_index(flat, self._type.shape))
        inner = [self._shape[a] for a in sorted(self._axes)]
        folded = iter(unravel_index(axis("j", self.length), inner))
        at = tuple(next(folded if a in self._axes else kept) for a in range(len(self._shape)))
        return self.builder.at(self._operand, at)

    def _tap(self, flat: Index) -> Expr:
        """What tap ``j`` of the window sees: an element, or the identity outside and in gaps."""
        geometry: dict[str, Any] = {k: v for k, v in self.made.attributes.items() if k != "kind"}
        window = unravel_index(axis("j", self.length), geometry["window"])
        places = unravel_index(flat, self._type.shape)
        inside, at = tapped(places, window, window_dimensions(self._shape, **geometry))
        outside = identity(self.made.attributes["kind"], self._type.dtype)
        if not math.prod(self._shape):
            return outside
        return select(inside, self.builder.at(self._operand, at), outside)

    def write(self, flat: Index) -> None:
        """Reduce one output, or one per lane."""
        writer, wide = self.writer, self.writer.lane is not None
        if self.made.op == "arg_max":
            self._write_arg(flat, wide)
            return
        dtype, kind = self._type.dtype, self.made.attributes["kind"]
        fold = accumulator(writer, kind, dtype, wide)
        if self.length:
            with writer.each("j", self.length):
                fold.add(self._element(flat))
        self.store(flat, rounded(dtype, fold.result()))

    def _write_arg(self, flat: Index, wide: bool) -> None:
        """The place of the first NaN, else of the first greatest element."""
        writer, dtype = self.writer, self.context.graph.type(self._operand).dtype
        begun = writer.wide if wide else writer.scalar
        best = writer.declare(begun(identity("max", dtype)), writer.name("best"))
        where = writer.declare(begun(constant(I32, 0)), writer.name("place"))
        with writer.each("j", self.length) as j:
            index = Coordinate(I32, j)
            take_better(writer, best, where, self._element(flat), index)
        self.store(flat, where)


def _axes(made: Instruction) -> tuple[int, ...]:
    if made.op == "reduce_window":
        return ()
    if made.op == "arg_max":
        return (made.attributes["axis"],)
    return tuple(made.attributes["axes"])


emit_cooperative = independent(emit)
