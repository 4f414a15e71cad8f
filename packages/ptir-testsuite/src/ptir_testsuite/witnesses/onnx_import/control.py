"""ONNX control flow: If as cond, or the branch taken where their types differ; Loop as while.

A Loop may grow its results by one row per turn, so its trip count is static. Where even shapes in
its body depend on the turn it is unrolled, as often as the case's conditions say.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ptir import functional as F
from ptir.capture import Tensor, call
from ptir.capture.tensor import full as scalar
from ptir.capture.trace import symbol
from ptir.errors import TypeRuleError
from ptir.ir.graph import freeze
from ptir.ir.program import Block
from ptir.ops.record import op
from ptir.types import BOOL, I32
from ptir_testsuite.witnesses.onnx_import.movement import window
from ptir_testsuite.witnesses.onnx_import.table import Node, NotImported, Reason, onnx_op, refuse


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
    """As while; turn after turn where a shape in the body depends on the turn."""
    try:
        return looped(node)
    except (NotImported, TypeRuleError):
        return unrolled(node)


def looped(node: Node) -> tuple[Tensor, ...]:
    """A while over the turn, the condition, the state, and a buffer for each row-wise result."""
    body, limit = node.attr("body"), int(node.scope.static(node[0]))
    handed, fixed = node.scope.captured([body])
    state = [x for x in node.operands[2:] if x is not None]
    count = len(state)

    def turned(values: Sequence[Tensor]) -> list[Tensor]:
        inner = node.scope.child()
        inner.values |= fixed | dict(zip(handed, values[2 + count :], strict=True))
        inner.values |= dict(zip((v.name for v in body.input), values[: 2 + count], strict=True))
        return inner.graph(body)

    given = node.optional(1)
    start = [node.scope.literal(0), scalar(True, BOOL) if given is None else given, *state]
    probe = [Tensor(symbol(x.type, "probe")) for x in (*start, *handed.values())]
    rows = [x.type for x in turned(probe)[1 + count :]]
    buffers = [scalar(0, row.dtype, (limit, *row.shape)) for row in rows]
    carried = [*start, *handed.values(), *buffers]
    parameters = [symbol(x.type, "carried") for x in carried]
    turn, keep, *inside = map(Tensor, parameters)
    found = turned([turn, keep, *inside[: count + len(handed)]])
    filled = [
        placed(buffer, row, turn)
        for buffer, row in zip(inside[count + len(handed) :], found[1 + count :], strict=True)
    ]
    after = [turn + 1, found[0].reshape(()), *found[1 : 1 + count]]
    after += [*inside[count : count + len(handed)], *filled]
    go = freeze([((turn < limit) & keep.reshape(())).ref], parameters)
    step = freeze([x.ref for x in after], parameters)
    done = [Tensor(r) for r in op("while").multi(*(x.ref for x in carried), regions=(go, step))]
    turns = int(node.scope.static(done[0]))
    return (
        *done[2 : 2 + count],
        *(window(b, 0, 0, turns) for b in done[2 + count + len(handed) :]),
    )


def placed(buffer: Tensor, row: Tensor, at: Tensor) -> Tensor:
    """A buffer with one row written at a place."""
    starts = [at.astype(I32).reshape(1), *[scalar(0, I32, (1,))] * row.ndim]
    update = row.reshape((1, *row.shape))
    return call("dynamic_update_slice", buffer, update, F.concat(starts))


def unrolled(node: Node) -> tuple[Tensor, ...]:
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
