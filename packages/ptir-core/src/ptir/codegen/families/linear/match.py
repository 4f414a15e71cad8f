"""The linear family: rows of activations times packed weights, with prologue and epilogue.

Few rows (decoding) read each panel once (a gemv): a workgroup owns a run of panels, keeps a vector
of 16 outputs per row and broadcasts one input after the other. Many rows (prompts) go tile by tile
(a gemm): a workgroup owns tiles of rows and panels and keeps them in registers.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from ptir.codegen.expressions.expr import Load
from ptir.codegen.expressions.index import Axis, Index, axis, number, unravel_index
from ptir.codegen.expressions.unpacked import UNPACK
from ptir.codegen.families.linear.gemm import Gemm
from ptir.codegen.families.linear.gemm_cooperative import CooperativeGemm
from ptir.codegen.families.linear.gemm_dots import Int8DotGemm
from ptir.codegen.families.linear.gemm_mma import MmaGemm
from ptir.codegen.families.linear.gemm_slices import SlicedGemm
from ptir.codegen.families.linear.gemm_slices import fits as gemm_slices_fit
from ptir.codegen.families.linear.gemv import Gemv
from ptir.codegen.families.linear.gemv_cooperative import CooperativeGemv
from ptir.codegen.families.linear.gemv_dots import Int8DotGemv
from ptir.codegen.families.linear.gemv_slices import SlicedGemv
from ptir.codegen.families.linear.gemv_slices import fits as slices_fit
from ptir.codegen.families.linear.parts import HELD, Linear, RoundedActivations, rounds_itself
from ptir.codegen.families.reduction.rows import RowReduction
from ptir.codegen.fusion.graph import Builder, Graph
from ptir.codegen.schedules.epilogue import epilogue
from ptir.codegen.schedules.kernel import EmitContext, Fusion, Kernel
from ptir.codegen.weights.match import quantized_operands, quantized_weight
from ptir.codegen.weights.panel_views import panels_of_slices
from ptir.codegen.weights.panels import LANES, panels_of
from ptir.codegen.weights.rounded import DOTS, WEIGHT, is_rounding
from ptir.ir.program import Instruction
from ptir.ops.rounded import PAIRS
from ptir.types import F32


def match(graph: Graph, position: int) -> Fusion | None:
    """The fusion of a contraction with unpacked weights and its epilogue."""
    linear = _linear(graph, position)
    if linear is None:
        return None
    behind = epilogue(graph, position, _places(linear))
    reads = tuple(sorted(behind.inputs | linear.own))
    exact = [linear.packed]
    if linear.rounded is not None and linear.rounded.scales >= 0:
        exact += [linear.rounded.scales, linear.rounded.sums]
    return Fusion("linear", behind.instructions, reads, (behind.output,), linear, tuple(exact))


def _linear(graph: Graph, position: int) -> Linear | None:
    made = graph.block.instructions[position]
    if made.op == "composite":
        return _rounded(graph, position)
    if made.op != "dot_general" or made.types[0].dtype != F32:
        return None
    lhs, rhs = made.operands
    rows = math.prod(graph.type(lhs).shape[:-1])
    last = graph.type(lhs).rank - 1
    if graph.type(lhs).dtype != F32 or made.attributes["lhs_batch"]:
        return None
    weight = graph.instruction(rhs)
    for contract in (0, 1):
        if not _contracts(made, last, contract):
            continue
        quantized = quantized_weight(graph, weight, contract)
        if quantized is not None:
            linear = Linear(
                position, lhs, quantized.words, quantized.panels, rows, quantized=quantized
            )
            return linear if _reads_panels(linear) else None
    if weight is not None and weight.op == "cast":
        rhs = weight.operands[0]
    found = panels_of_slices(graph, rhs)
    if found is None:
        return None
    unpack, panels = graph.instruction(found[0]), found[1]
    if unpack is None or not _contracts(made, last, 1 if panels.layout == "oi" else 0):
        return None
    linear = Linear(position, lhs, unpack.operands[0], panels, rows)
    return linear if _reads_panels(linear) else None


def _reads_panels(linear: Linear) -> bool:
    """Whether the schedule takes the panels as they are: parts of a weight only with few rows."""
    return linear.is_gemv or not (linear.panels.stride or linear.panels.runs)


def _rounded(graph: Graph, position: int) -> Linear | None:
    """The contraction of rounded activations at ``position``, or None."""
    made = graph.block.instructions[position]
    if made.name not in WEIGHT:
        return None
    lhs, dot = made.operands[0], DOTS[made.name]
    rows = math.prod(graph.type(lhs).shape[:-1])
    if made.name == PAIRS:
        unpack = graph.instruction(made.operands[1])
        assert unpack is not None and unpack.name == UNPACK, "weights are packed (``settled``)"
        packed = unpack.operands[0]
        panels = panels_of(graph.type(packed), unpack.attributes)
        return Linear(position, lhs, packed, panels, rows, rounded=RoundedActivations(dot))
    weight = quantized_operands(graph, made)
    assert weight is not None, "weights are packed (``settled``)"
    rounding = graph.instruction(lhs)
    rounded = RoundedActivations(dot, *made.operands[1:3])
    if rounding is not None and is_rounding(rounding) and rounds_itself(rows, weight.inputs):
        lhs, rounded = rounding.operands[0], RoundedActivations(dot)
    return Linear(
        position, lhs, weight.words, weight.panels, rows, quantized=weight, rounded=rounded
    )


def _contracts(made: Instruction, lhs: int, rhs: int) -> bool:
    found = (made.attributes["lhs_contract"], made.attributes["rhs_contract"])
    return found == ((lhs,), (rhs,))


def _places(linear: Linear) -> list[Index]:
    """Where the kernel holds results: a panel's outputs, or one by one those of the last."""
    whole, left = divmod(linear.panels.outputs, LANES)
    vector = axis("p", whole) * LANES + axis("lane", LANES)
    row = axis("m", linear.rows) * linear.panels.outputs
    return [row + one for one in (vector, *(number(whole * LANES + n) for n in range(left)))]


def prologue(graph: Graph, fusion: Fusion, made: Mapping[int, Fusion]) -> tuple[int, Fusion] | None:
    """The row reduction whose rows are the activations of a gemv."""
    linear: Linear = fusion.detail
    source = graph.behind_views(linear.lhs, made)
    found = made.get(source)
    if found is None or not isinstance(found.detail, RowReduction) or not linear.is_gemv:
        return None
    rows = found.detail
    same = (rows.count, rows.size) == (linear.rows, linear.inputs)
    fits = rows.count * rows.size <= HELD
    return (linear.lhs, found) if same and fits and _unmoved(graph, linear.lhs, source) else None


def _unmoved(graph: Graph, value: int, source: int) -> bool:
    """Whether the views between two values keep every element where it is in memory."""
    while value != source:
        made = graph.instruction(value)
        if made is None or made.op not in ("reshape", "stop_gradient"):
            return False
        value = made.operands[0]
    return True


def materialized(graph: Graph, fusion: Fusion, made: frozenset[int]) -> Collection[int]:
    """Activations that a workgroup does not keep to itself: a row lies in memory in one piece."""
    linear: Linear = fusion.detail
    return () if linear.is_held else (rows_in_memory(graph, linear, made),)


def rows_in_memory(graph: Graph, linear: Linear, made: frozenset[int]) -> int:
    """The value to store so that each row of activations lies in memory without gaps.

    ``made`` are the values that kernels store anyway.
    """
    base = graph.behind_views(linear.lhs, made)
    builder = Builder(graph, lambda value: value == base)
    type, size = graph.type(linear.lhs), linear.inputs
    flat = axis("m", linear.rows) * size + axis("k", size)
    found = builder.at(linear.lhs, unravel_index(flat, type.shape))
    straight = isinstance(found, Load) and found.index.coefficient(Axis("k", size)) == 1
    if straight and linear.rounded is not None and not linear.is_gemv:
        per = 32 // type.dtype.bits
        flat = axis("m", linear.rows) * size + axis("k", size // per) * per
        first = builder.at(linear.lhs, unravel_index(flat, type.shape))
        straight = isinstance(first, Load) and (first.index % per).bounds == (0, 0)
    return base if straight else linear.lhs


def emit(fusion: Fusion, context: EmitContext) -> Kernel:
    """The schedule for the number of rows."""
    linear: Linear = fusion.detail
    return _schedule(linear, context)(fusion, context).kernel()


def _schedule(linear: Linear, context: EmitContext) -> type[Gemv] | type[Gemm]:
    if linear.quantized is None:
        return Gemv if linear.is_gemv else Gemm
    if linear.rounded is not None:
        return Int8DotGemv if linear.is_gemv else Int8DotGemm
    if linear.is_gemv:
        return SlicedGemv if slices_fit(linear, context) else Gemv
    return SlicedGemm if gemm_slices_fit(linear, context) else Gemm


def emit_cooperative(fusion: Fusion, context: EmitContext) -> Kernel | None:
    """The cooperative schedule for the number of rows; none for bytes or parts of a weight."""
    linear: Linear = fusion.detail
    is_bytes = linear.rounded is not None and linear.quantized is not None
    if is_bytes or linear.panels.runs:
        return None
    if linear.is_gemv:
        return CooperativeGemv(fusion, context).kernel()
    matrices = MmaGemm(fusion, context)
    return (matrices if matrices.shape is not None else CooperativeGemm(fusion, context)).kernel()
