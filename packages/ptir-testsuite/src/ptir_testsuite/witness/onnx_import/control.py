"""ONNX control flow: If as cond, or the branch taken where their types differ; Loop unrolled.

A Loop may grow its results by one row per turn, so its count must be known: it is run as many
times as the case's trip count and conditions say.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ptir import functional as F
from ptir.capture import Tensor
from ptir.capture.trace import symbol
from ptir.errors import TypeRuleError
from ptir.ir.graph import freeze
from ptir.ir.program import Block
from ptir.ops.record import op
from ptir_testsuite.witness.onnx_import.table import Node, NotImported, Reason, onnx_op, refuse


def branch(node: Node, graph: Any, handed: dict[str, Tensor], fixed: dict[str, Tensor]) -> Block:
    """A region: what it reads of the graphs around it are its parameters."""
    parameters = {name: symbol(x.type, name) for name, x in handed.items()}
    inner = node.scope.child()
    inner.values |= fixed | {name: Tensor(ref) for name, ref in parameters.items()}
    return freeze([output.ref for output in inner.graph(graph)], list(parameters.values()))


def both(
    node: Node, graphs: Sequence[Any], handed: dict[str, Tensor], fixed: dict[str, Tensor]
) -> tuple[Block, ...] | None:
    """Two regions, or None where one cannot be built: the other branch may not even type."""
    try:
        return tuple(branch(node, graph, handed, fixed) for graph in graphs)
    except (NotImported, TypeRuleError):
        return None


@onnx_op("If")
def if_(node: Node) -> tuple[Tensor, ...]:
    """Both branches as regions; where their types differ, the one that this case takes."""
    graphs = [node.attr("then_branch"), node.attr("else_branch")]
    predicate = node[0].reshape(())
    handed, fixed = node.scope.captured(graphs)
    regions = both(node, graphs, handed, fixed)
    if regions is None or regions[0].output_types != regions[1].output_types:
        taken = graphs[0] if bool(node.scope.static(predicate)) else graphs[1]
        return tuple(node.scope.child().graph(taken))
    refs = [predicate.ref, *(operand.ref for operand in handed.values())]
    return tuple(map(Tensor, op("cond").multi(*refs, regions=regions)))


@onnx_op("Loop")
def loop(node: Node) -> tuple[Tensor, ...]:
    """Turn after turn, as long as the count and the conditions of this case say."""
    body = node.attr("body")
    count, keep = node.static(0), node.optional(1)
    limit = 2**62 if count is None else int(count)
    state: list[Any] = list(node.operands[2:])
    rows: list[list[Tensor]] = [[] for _ in body.output[1 + len(state) :]]
    turn = 0
    while turn < limit and (keep is None or bool(node.scope.static(keep))):
        inner = node.scope.child()
        start = node.scope.literal(turn)
        names = [value.name for value in body.input]
        inner.values |= dict(zip(names, [start, keep, *state], strict=True))
        keep, *results = inner.graph(body)
        state, found = results[: len(state)], results[len(state) :]
        for row, value in zip(rows, found, strict=True):
            row.append(value)
        turn += 1
    if not turn and rows:
        raise refuse("Loop without turns, whose rows have no type", Reason.SHAPE)
    return (*state, *(F.stack(row) for row in rows))
