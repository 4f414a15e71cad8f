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
from ptir.ir.graph import freeze
from ptir.ir.program import Block
from ptir.ops.record import op
from ptir_testsuite.witness.onnx_import.scope import Scope, free_names
from ptir_testsuite.witness.onnx_import.table import Node, NotImported, Reason, onnx_op, refuse


def branch(node: Node, graph: Any, names: Sequence[str], operands: Sequence[Tensor]) -> Block:
    """A region: what it reads of the graphs around it are its parameters."""
    parameters = [symbol(x.type, name) for name, x in zip(names, operands, strict=True)]
    inner = Scope(node.scope.opset, node.scope.inputs, node.scope.feeds, node.scope)
    inner.values |= {name: Tensor(ref) for name, ref in zip(names, parameters, strict=True)}
    return freeze([output.ref for output in inner.graph(graph)], parameters)


def both(
    node: Node, graphs: Sequence[Any], names: Sequence[str], operands: Sequence[Tensor]
) -> tuple[Block, ...] | None:
    """Two regions, or None where a shape in one of them depends on a value around it."""
    try:
        return tuple(branch(node, graph, names, operands) for graph in graphs)
    except NotImported as refused:
        if refused.reason != Reason.SHAPE:
            raise
        return None


@onnx_op("If")
def if_(node: Node) -> tuple[Tensor, ...]:
    """Both branches as regions; where their types differ, the one that this case takes."""
    graphs = [node.attr("then_branch"), node.attr("else_branch")]
    predicate = node[0].reshape(())
    names = sorted({name for graph in graphs for name in free_names(graph)})
    values = [(name, node.scope.lookup(name)) for name in names]
    known = [(name, value) for name, value in values if value is not None]
    operands = [value for _, value in known]
    regions = both(node, graphs, [n for n, _ in known], operands)
    if regions is None or regions[0].output_types != regions[1].output_types:
        taken = graphs[0] if bool(node.scope.static(predicate)) else graphs[1]
        return tuple(node.scope.child().graph(taken))
    refs = [predicate.ref, *(operand.ref for operand in operands)]
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
