"""What follows a hero element by element in its kernel: found once, written once.

For families whose kernel holds each element of the hero's result once, at a flat position.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ptir.codegen.expressions.expr import Expr, Var
from ptir.codegen.expressions.index import Index, axis, number, unravel_index
from ptir.codegen.fusion.graph import Builder, Graph, Unfusible, follows
from ptir.codegen.fusion.regions import region_outputs
from ptir.codegen.kernel_ir.writer import Writer
from ptir.codegen.schedules.kernel import EmitContext, Fusion
from ptir.codegen.weights.panels import LANES
from ptir.ir.program import Instruction


@dataclass(frozen=True)
class Epilogue:
    """The instructions of a kernel, what it stores, and what those behind the hero read."""

    instructions: frozenset[int]
    output: int
    inputs: frozenset[int]


def epilogue(graph: Graph, position: int, places: Iterable[Index]) -> Epilogue:
    """What may follow the hero at ``position``, whose kernel works at these flat ``places``."""
    (hero,) = graph.results[position]
    size, where = graph.type(hero).size, tuple(places)

    def joins(reader: int) -> bool:
        after = graph.block.instructions[reader]
        return follows(after) and after.types[0].size == size

    members, exit = frozenset((position,)), hero
    for value, inside in region_outputs(graph, (hero,), joins):
        region = frozenset((position, *inside))
        if not _aligned(graph, hero, value, region, where):
            break
        members, exit = region, value
    inner = {v for p in members for v in graph.results[p]}
    behind = members - {position}
    reads = {v for p in behind for v in graph.block.instructions[p].operands} - inner
    return Epilogue(members, exit, frozenset(reads))


def with_epilogue(family: str, graph: Graph, position: int, vectors: int = 1) -> Fusion:
    """The fusion of a hero and its epilogue, whose kernel holds so many whole vectors at a time.

    Elements after the last of those are held one by one.
    """
    made = graph.block.instructions[position]
    size, step = made.types[0].size, vectors * LANES
    whole, left = divmod(size, step)
    places = [number(place) for place in range(size - left, size)]
    if whole:
        starts = (axis("v", whole) * step + part * LANES for part in range(vectors))
        places += [start + axis("lane", LANES) for start in starts]
    found = epilogue(graph, position, places)
    reads = tuple(sorted({*made.operands, *found.inputs}))
    return Fusion(family, found.instructions, reads, (found.output,), position)


def _aligned(
    graph: Graph, hero: int, value: int, instructions: frozenset[int], places: tuple[Index, ...]
) -> bool:
    """Whether ``value`` needs the hero's elements exactly where the kernel holds them."""
    inside = {v for p in instructions for v in graph.results[p]}
    held = graph.type(hero)
    for flat in places:
        at = (unravel_index(flat, held.shape), Var(held.dtype, "held"))
        try:
            builder = Builder(graph, lambda v: v not in inside, {hero: at})
            builder.at(value, unravel_index(flat, graph.type(value).shape))
        except Unfusible:
            return False
    return True


def builder_of(fusion: Fusion, context: EmitContext) -> Builder:
    """Expressions over what is stored outside of the fusion."""
    inside = {v for p in fusion.instructions for v in context.graph.results[p]}
    builder = context.builder()
    builder.stored = lambda v: v not in inside and context.is_materialized(v)
    return builder


class HeroKernel:
    """What every kernel around one instruction, its *hero*, knows while it is written."""

    def __init__(self, fusion: Fusion, context: EmitContext) -> None:
        self.fusion, self.context, self.graph = fusion, context, context.graph
        position = self.position_in(fusion)
        self.made: Instruction = self.graph.block.instructions[position]
        self.hero = self.graph.results[position][0]
        self.writer: Writer = context.writer()
        self.builder = builder_of(fusion, context)

    @staticmethod
    def position_in(fusion: Fusion) -> int:
        """The instruction's position, which is all the detail that most families have."""
        position: int = fusion.detail
        return position

    def store(self, flat: Index, expr: Expr) -> None:
        """Store the output's element, or one per lane, where the hero's is ``expr``."""
        store(self.writer, self.builder, (self.hero, expr), self.fusion.outputs[0], flat)


def store(writer: Writer, builder: Builder, held: tuple[int, Expr], exit: int, flat: Index) -> None:
    """Store the output's element, or one per lane, where the hero's is what ``held`` says."""
    writer.store(exit, builder.graph.type(exit).dtype, flat, result(builder, held, exit, flat))


def result(builder: Builder, held: tuple[int, Expr], exit: int, flat: Index) -> Expr:
    """The output's element where the hero's is what ``held`` says."""
    (hero, expr), graph = held, builder.graph
    register = (unravel_index(flat, graph.type(hero).shape), expr)
    return builder.holding({hero: register}).at(exit, unravel_index(flat, graph.type(exit).shape))
