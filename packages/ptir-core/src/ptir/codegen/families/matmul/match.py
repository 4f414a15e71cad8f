"""The product family: rows of activations times packed weights, with prologue and epilogue.

Few rows (decoding) stream the panels once: an item owns a run of panels, keeps a vector of 16
outputs per row and broadcasts one input after the other. Many rows (prompts) are blocked: an item
owns tiles of rows and panels and keeps them in registers.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from ptir.codegen.expressions.expr import Load
from ptir.codegen.expressions.index import Axis, Index, axis, digits, number
from ptir.codegen.expressions.unpacked import UNPACK
from ptir.codegen.families.matmul.blocked import Blocked
from ptir.codegen.families.matmul.blocked_coop import TeamBlocked
from ptir.codegen.families.matmul.blocked_digits import BlockedDigits
from ptir.codegen.families.matmul.blocked_digits import fits as blocked_digits_fit
from ptir.codegen.families.matmul.blocked_dots import BlockedBytes
from ptir.codegen.families.matmul.blocked_matrices import TeamMatrices
from ptir.codegen.families.matmul.digits import Digits
from ptir.codegen.families.matmul.digits import fits as digits_fit
from ptir.codegen.families.matmul.parts import HELD, Product, Rounded, rounds_itself
from ptir.codegen.families.matmul.streamed import Streamed
from ptir.codegen.families.matmul.streamed_coop import TeamStreamed
from ptir.codegen.families.matmul.streamed_dots import StreamedBytes
from ptir.codegen.families.reduction.rows import Rows
from ptir.codegen.fusion.graph import Builder, Graph
from ptir.codegen.schedules.epilogue import epilogue
from ptir.codegen.schedules.kernel import Group, Kernel, Site
from ptir.codegen.weights.columns import panels_behind
from ptir.codegen.weights.panels import LANES, panels_of
from ptir.codegen.weights.quantized import quantized_operands, quantized_weight
from ptir.codegen.weights.rounded import DOTS, WEIGHT, is_rounding
from ptir.ir.program import Instruction
from ptir.ops.rounded import PAIRS
from ptir.types import F32


def match(graph: Graph, position: int) -> Group | None:
    """The group of a product with unpacked weights and its epilogue."""
    product = _product(graph, position)
    if product is None:
        return None
    behind = epilogue(graph, position, _places(product))
    reads = tuple(sorted(behind.reads | product.own))
    exact = [product.packed]
    if product.rounded is not None and product.rounded.scales >= 0:
        exact += [product.rounded.scales, product.rounded.sums]
    return Group("product", behind.members, reads, (behind.exit,), product, tuple(exact))


def _product(graph: Graph, position: int) -> Product | None:
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
            product = Product(
                position, lhs, quantized.words, quantized.panels, rows, quantized=quantized
            )
            return product if _reads_panels(product) else None
    if weight is not None and weight.op == "cast":
        rhs = weight.operands[0]
    found = panels_behind(graph, rhs)
    if found is None:
        return None
    unpack, panels = graph.instruction(found[0]), found[1]
    if unpack is None or not _contracts(made, last, 1 if panels.layout == "oi" else 0):
        return None
    product = Product(position, lhs, unpack.operands[0], panels, rows)
    return product if _reads_panels(product) else None


def _reads_panels(product: Product) -> bool:
    """Whether the schedule takes the panels as they are: parts of a weight only with few rows."""
    return product.is_streamed or not (product.panels.stride or product.panels.runs)


def _rounded(graph: Graph, position: int) -> Product | None:
    """The product of rounded activations at ``position``, or None."""
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
        return Product(position, lhs, packed, panels, rows, rounded=Rounded(dot))
    weight = quantized_operands(graph, made)
    assert weight is not None, "weights are packed (``settled``)"
    rounding = graph.instruction(lhs)
    rounded = Rounded(dot, *made.operands[1:3])
    if rounding is not None and is_rounding(rounding) and rounds_itself(rows, weight.inputs):
        lhs, rounded = rounding.operands[0], Rounded(dot)
    return Product(
        position, lhs, weight.words, weight.panels, rows, quantized=weight, rounded=rounded
    )


def _contracts(made: Instruction, lhs: int, rhs: int) -> bool:
    found = (made.attributes["lhs_contract"], made.attributes["rhs_contract"])
    return found == ((lhs,), (rhs,))


def _places(product: Product) -> list[Index]:
    """Where the kernel holds results: a panel's outputs, or one by one those of the last."""
    whole, left = divmod(product.panels.outputs, LANES)
    vector = axis("p", whole) * LANES + axis("lane", LANES)
    row = axis("m", product.rows) * product.panels.outputs
    return [row + one for one in (vector, *(number(whole * LANES + n) for n in range(left)))]


def prologue(graph: Graph, group: Group, made: Mapping[int, Group]) -> tuple[int, Group] | None:
    """The row program whose rows are the activations of a product of few rows."""
    product: Product = group.detail
    source = graph.behind_views(product.lhs, made)
    found = made.get(source)
    if found is None or not isinstance(found.detail, Rows) or not product.is_streamed:
        return None
    rows = found.detail
    same = (rows.count, rows.size) == (product.rows, product.inputs)
    fits = rows.count * rows.size <= HELD
    return (product.lhs, found) if same and fits and _unmoved(graph, product.lhs, source) else None


def _unmoved(graph: Graph, value: int, source: int) -> bool:
    """Whether the views between two values keep every element where it is in memory."""
    while value != source:
        made = graph.instruction(value)
        if made is None or made.op not in ("reshape", "stop_gradient"):
            return False
        value = made.operands[0]
    return True


def materialized(graph: Graph, group: Group, made: frozenset[int]) -> Collection[int]:
    """Activations that an item does not keep to itself: each row lies in memory without gaps."""
    product: Product = group.detail
    return () if product.is_held else (_rows_in_memory(graph, product, made),)


def _rows_in_memory(graph: Graph, product: Product, made: frozenset[int]) -> int:
    """The value to store so that each row of activations lies in memory without gaps.

    ``made`` are the values that kernels store anyway.
    """
    base = graph.behind_views(product.lhs, made)
    builder = Builder(graph, lambda value: value == base)
    type, size = graph.type(product.lhs), product.inputs
    flat = axis("m", product.rows) * size + axis("k", size)
    found = builder.at(product.lhs, digits(flat, type.shape))
    straight = isinstance(found, Load) and found.index.coefficient(Axis("k", size)) == 1
    if straight and product.rounded is not None and not product.is_streamed:
        per = 32 // type.dtype.bits
        flat = axis("m", product.rows) * size + axis("k", size // per) * per
        first = builder.at(product.lhs, digits(flat, type.shape))
        straight = isinstance(first, Load) and (first.index % per).bounds == (0, 0)
    return base if straight else product.lhs


def write(group: Group, site: Site) -> Kernel:
    """The schedule for the number of rows."""
    product: Product = group.detail
    return _schedule(product, site)(group, site).kernel()


def _schedule(product: Product, site: Site) -> type[Streamed] | type[Blocked]:
    if product.quantized is None:
        return Streamed if product.is_streamed else Blocked
    if product.rounded is not None:
        return StreamedBytes if product.is_streamed else BlockedBytes
    if product.is_streamed:
        return Digits if digits_fit(product, site) else Streamed
    return BlockedDigits if blocked_digits_fit(product, site) else Blocked


def coop(group: Group, site: Site) -> Kernel | None:
    """The coop schedule for the number of rows; none for bytes or parts of a weight."""
    product: Product = group.detail
    is_bytes = product.rounded is not None and product.quantized is not None
    if is_bytes or product.panels.runs:
        return None
    if product.is_streamed:
        return TeamStreamed(group, site).kernel()
    matrices = TeamMatrices(group, site)
    return (matrices if matrices.shape is not None else TeamBlocked(group, site)).kernel()
