"""The map family: elementwise ops, views and lookups fused into one expression per element.

Serial schedule: a workgroup owns a run of elements, a whole vector of lanes at a time; what is left
over at the end of the value is done one by one.
"""

from __future__ import annotations

from functools import cached_property
from typing import Final

from ptir.codegen.expressions.expr import Apply, Const, Expr, Load, Var, walk
from ptir.codegen.expressions.index import ZERO, Axis, Index, axis, unravel_index
from ptir.codegen.fusion.graph import Graph
from ptir.codegen.kernel_ir.conditions import less
from ptir.codegen.kernel_ir.writer import Writer
from ptir.codegen.schedules.kernel import EmitContext, Fusion, Kernel, finish_kernel
from ptir.types import BOOL, I32, TensorType

RUN: Final = 4
"""Neighbours that a thread of a workgroup writes: 16 bytes of f32."""
COST = 4
"""Elementary operations that one element is taken for."""


def match(graph: Graph, position: int) -> None:
    """No fusion: what is in no other family's is stored by ``fusion_of``, value by value."""


def fusion_of(graph: Graph, value: int) -> Fusion:
    """The kernel that stores ``value``, everything before it inlined."""
    made = graph.maker[value]
    return Fusion("map", frozenset((made,)), graph.block.instructions[made].operands, (value,))


def emit(fusion: Fusion, context: EmitContext) -> Kernel:
    """One loop over the elements of the only output, or one over runs and one inside."""
    element = MapEmitter(fusion, context)
    writer = context.writer()
    pieces = element.runs if element.run else element.type.size // element.lanes
    workgroups = context.workgroups(pieces, element.type.size * COST)
    part = writer.work_range(pieces, workgroups)
    if element.run:
        with writer.each("o", element.runs, *part) as o:
            element.write(writer, o * element.run, element.run, None)
    else:
        element.write(writer, ZERO, element.type.size, part)
    return finish_kernel(fusion, writer, workgroups, may_alias=element.may_alias())


class MapEmitter:
    """The output of a map kernel, element by element; ``run`` is 0 when it is one long run."""

    def __init__(self, fusion: Fusion, context: EmitContext) -> None:
        (self.value,) = fusion.outputs
        self.type: TensorType = context.graph.type(self.value)
        self.lanes = context.dialect.lanes
        self._builder = context.builder()
        self._builder.stored = lambda v: v != self.value and context.is_materialized(v)
        self._elsewhere: set[int] = set()
        self._loaded: set[int] = set()

    def may_alias(self) -> frozenset[int]:
        """The operands of the output's size and type that were read only where it is written.

        To be asked when all is written.
        """
        graph = self._builder.graph
        types = {value: graph.type(value) for value in self._loaded - self._elsewhere}
        exit = (self.type.dtype, self.type.size)
        return frozenset(value for value, type in types.items() if (type.dtype, type.size) == exit)

    def store(self, writer: Writer, flat: Index) -> None:
        """Write the element at a flat position."""
        expr = self.at(flat)
        for node in walk(expr):
            if isinstance(node, Load):
                (self._loaded if node.index == flat else self._elsewhere).add(node.source)
        writer.store(self.value, self.type.dtype, flat, expr)

    def at(self, flat: Index) -> Expr:
        """The element at a flat position."""
        return self._builder.at(self.value, unravel_index(flat, self.type.shape))

    @property
    def runs(self) -> int:
        """How many runs there are."""
        return self.type.size // self.run if self.run else 1

    @cached_property
    def run(self) -> int:
        """The last axis where only along it consecutive lanes read consecutive elements."""
        vectors = self.type.size // self.lanes
        if not vectors or not self.type.shape or self.type.shape[-1] < self.lanes:
            return 0
        flat = self.at(axis("v", vectors) * self.lanes + axis("lane", self.lanes))
        loads = [node for node in walk(flat) if isinstance(node, Load)]
        lane = Axis("lane", self.lanes)
        straight = all(node.index.coefficient(lane) in (0, 1) for node in loads)
        return 0 if straight else self.type.shape[-1]

    def write(self, writer: Writer, begin: Index, size: int, part: tuple[Var, Var] | None) -> None:
        """Elements from ``begin`` on: whole vectors (a part of them), then what is left over."""
        vectors = size // self.lanes
        if vectors:
            with writer.vectors(vectors, *(part or ())) as places:
                self.store(writer, begin + places)
        left = range(vectors * self.lanes, size)
        if left:
            is_last = Apply(BOOL, "eq", part[1], Const(I32, vectors)) if part else None
            with writer.when(is_last):
                for place in left:
                    self.store(writer, begin + place)


def emit_cooperative(fusion: Fusion, context: EmitContext) -> Kernel:
    """Every thread of a workgroup writes runs of neighbours, 16 bytes at once where that can be.

    Neighbouring threads write neighbouring runs.
    """
    element = MapEmitter(fusion, context)
    writer, size = context.writer(), element.type.size
    run = RUN if size % RUN == 0 else 1
    threads = min(context.tiles.map_workgroup_size, context.traits.max_workgroup_size)
    runs = size // run
    block = ZERO
    if runs > 1:
        own = Index({Axis("item", -(-runs // threads)): threads, Axis("member", threads): 1})
        block = writer.let_index(own, runs, "run")
    with writer.when(less(block if runs > 1 else Var(I32, "member"), runs)):
        for place in range(run):
            with writer.vectorized_run(block, run, place):
                element.store(writer, block * run + place)
    return finish_kernel(
        fusion, writer, -(-runs // threads), may_alias=element.may_alias(), workgroup_size=threads
    )
