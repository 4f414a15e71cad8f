"""The cache family: new rows written into a key-value cache, in place.

``cache_update`` writes ``new[b,:,t]`` at ``start[b] + t`` for ``t < count[b]`` inside the cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ptir.codegen.expressions.expr import Coordinate, as_index, compare
from ptir.codegen.expressions.index import Index, number, ravel_index, unravel_index
from ptir.codegen.fusion.graph import Builder, Graph
from ptir.codegen.kernel_ir.writer import Writer
from ptir.codegen.schedules.kernel import EmitContext, Fusion, Kernel, alone, finish_kernel
from ptir.codegen.schedules.workgroup import independent
from ptir.ir.program import Instruction
from ptir.types import I32


def is_update(made: Instruction | None) -> bool:
    """Whether an instruction is the composite ``cache_update``."""
    return made is not None and made.op == "composite" and made.name == "cache_update"


def match(graph: Graph, position: int) -> Fusion:
    """Every cache update on its own."""
    return alone("cache", graph, position, in_place=True)


def emit(fusion: Fusion, context: EmitContext) -> Kernel:
    """A workgroup writes a run of (row, head, step) entries."""
    made = context.graph.block.instructions[fusion.detail]
    b, h, t, _ = context.graph.type(made.operands[1]).shape
    writer, entries = context.writer(), b * h * t
    workgroups = context.workgroups(entries, context.graph.type(made.operands[1]).size * 2)
    with writer.each("e", entries, *writer.work_range(entries, workgroups)) as e:
        row, head, step = unravel_index(e, (b, h, t))
        append(writer, context.builder(), made, fusion.outputs[0], (row, head, step))
    return finish_kernel(fusion, writer, workgroups)


def append(
    writer: Writer, builder: Builder, made: Instruction, result: int, entry: tuple[Index, ...]
) -> None:
    """Write one entry of ``new`` into the cache, if it is to be written at all."""
    _, new, start, count = made.operands
    type, (row, head, step) = made.types[0], entry
    capacity, size = type.shape[2:]
    with written(writer, builder, (start, count), row, step, capacity) as place:

        def copy(at: Index) -> None:
            target = ravel_index((row, head, place, at), type.shape)
            writer.store(result, type.dtype, target, builder.at(new, (*entry, at)))

        writer.each_element(size, copy, written_out=True)


@contextmanager
def written(
    writer: Writer,
    builder: Builder,
    bounds: tuple[int, int],
    row: Index,
    step: Index,
    capacity: int,
) -> Iterator[Index]:
    """A block that runs where a step is to be written; gives the step's place in the cache.

    The place is compared as a distance from the end, so that no start can overflow.
    """
    start, count = (builder.at(value, (row,)) for value in bounds)
    here = Coordinate(I32, step)
    first = compare("ge", start, -here)
    last = compare("lt", start, Coordinate(I32, number(capacity) - step))
    mask = first & (last & compare("lt", here, count))
    with writer.when(writer.scalar(mask)):
        place = writer.let(writer.scalar(start + here))
        yield as_index(place, 0, capacity - 1)


emit_cooperative = independent(emit)
