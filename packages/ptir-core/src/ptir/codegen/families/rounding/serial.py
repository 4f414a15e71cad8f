"""The rounding family: rows of activations as bytes, with a scale and a sum of each group.

A gemm reads them from memory; a gemv rounds in its own kernel, with the same statements
(``round_group``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from ptir.codegen.expressions.expr import Apply, Expr, Var, compare, constant, select
from ptir.codegen.expressions.index import Axis, Index, axis, unravel_index
from ptir.codegen.families.linear.parts import rounds_itself
from ptir.codegen.fusion.graph import Graph
from ptir.codegen.kernel_ir.writer import Writer
from ptir.codegen.schedules.kernel import EmitContext, Fusion, Kernel, alone, finish_kernel
from ptir.codegen.weights.panels import LANES
from ptir.codegen.weights.rounded import is_rounding, only_linear, readers_of
from ptir.ops.rounded import LEAST, MOST
from ptir.types import F32, I8, I32

WORK: Final = 8
"""Elementary operations that one element is taken for."""
HALVES: Final = 1.5 * 2.0**23
"""From here on floats are whole numbers; sums with small numbers stay in its binade."""
BITS: Final = 0x4B400000
"""The bits of ``HALVES``, the lowest eight of which are zeros."""
NAN: Final = constant(F32, math.nan)


def inlined(graph: Graph, position: int) -> bool:
    """Whether only gemvs read what an instruction rounds: they do it themselves."""
    made = graph.block.instructions[position]
    if not is_rounding(made) or graph.outputs & set(graph.results[position]):
        return False
    *rows, inputs = made.types[0].shape
    few = rounds_itself(math.prod(rows), inputs)
    return few and only_linear(graph.block, readers_of(graph, position))


def match(graph: Graph, position: int) -> Fusion | None:
    """The fusion of one rounding."""
    if inlined(graph, position):
        return None
    return alone("rounding", graph, position, graph.block.instructions[position].operands)


def emit(fusion: Fusion, context: EmitContext) -> Kernel:
    """A workgroup rounds a run of groups."""
    made = context.graph.block.instructions[fusion.detail]
    values, scales, sums = fusion.outputs
    size = made.attributes["group"]
    writer, builder, pieces = context.writer(), context.builder(), context.graph.type(scales).size
    shape = context.graph.type(made.operands[0]).shape
    workgroups = context.workgroups(pieces, pieces * size * WORK)
    with writer.each("g", pieces, *writer.work_range(pieces, workgroups)) as g:
        first = g * size
        scale, total = round_group(
            writer,
            size,
            lambda place: builder.at(made.operands[0], unravel_index(first + place, shape)),
            lambda place, value: writer.store(values, I8, first + place, value),
        )
        writer.store(scales, F32, g, scale)
        writer.store(sums, I32, g, total)
    return finish_kernel(fusion, writer, workgroups)


def round_group(
    writer: Writer, size: int, element: Callable[[Index], Expr], put: Callable[[Index, Expr], None]
) -> tuple[Expr, Expr]:
    """Round one group of ``size`` elements; gives its scale and the sum of its values.

    Sizes are compared as integers, in which what is not a number is greater than everything.
    Adding ``HALVES`` rounds half to even and leaves the value in the lowest bits.
    """
    lane, vectors = Axis("lane", LANES), size // LANES
    place = axis("v", vectors) * LANES + axis("lane", LANES)
    zero = writer.widened(constant(I32, 0))
    most, total = (Var(I32, writer.name(name), True) for name in ("most", "total"))
    writer.declare_all((most, zero), (total, zero))
    with writer.each("v", vectors), writer.lanes(lane):
        size_of = Apply(I32, "bits", element(place)) & 0x7FFFFFFF
        writer.assign(most, writer.wide(Apply(I32, "max", size_of, most)))
    greatest = Apply(F32, "bits", writer.reduce_lanes("max", most))
    factor = select(
        compare("gt", greatest, LEAST), constant(F32, MOST) / greatest, constant(F32, 0.0)
    )
    scale = writer.let(writer.scalar(_scale(greatest)))
    step = writer.let(writer.scalar(factor))
    with writer.each("v", vectors), writer.lanes(lane):
        moved = element(place) * step + HALVES
        bits = Apply(I32, "bits", moved)
        put(place, Apply(I8, "convert", bits))
        writer.assign(total, writer.wide(total + bits))
    below = constant(I32, _wrapped(-size * BITS))
    return scale, writer.reduce_lanes("add", total) + below


def _scale(greatest: Expr) -> Expr:
    """A 127th of the greatest; not a number where that is not finite."""
    finite = compare("lt", greatest, math.inf)
    return select(finite, greatest * (1 / MOST), NAN)


def _wrapped(number: int) -> int:
    """A number as 32 bits hold it."""
    return (number + (1 << 31)) % (1 << 32) - (1 << 31)
