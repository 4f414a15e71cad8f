"""ONNX Scan, and the recurrent layers RNN, GRU and LSTM, all as the op scan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from ptir import functional as F
from ptir.capture import Tensor, call
from ptir.capture.tensor import full as scalar
from ptir.capture.trace import symbol
from ptir.ir.graph import freeze
from ptir.ops.record import op
from ptir_testsuite.witnesses.onnx_import.elementwise import activation
from ptir_testsuite.witnesses.onnx_import.movement import window
from ptir_testsuite.witnesses.onnx_import.table import Node, onnx_op, refuse

Many = Sequence[Tensor]
Body = Callable[[Many, Many, Many], tuple[Many, Many]]


def scanned(
    body: Body, carries: Many, rows: Many, outside: Many, *, length: int, reverse: bool = False
) -> tuple[list[Tensor], list[Tensor]]:
    """``body(carries, row of each sequence, outside)`` once per row: last carries, stacked results.

    What the body needs from ``outside`` it carries along unchanged.
    """
    parameters = [
        *(symbol(x.type, "carry") for x in (*carries, *outside)),
        *(symbol(x.type.with_shape(x.shape[1:]), "row") for x in rows),
    ]
    inner = [Tensor(ref) for ref in parameters]
    kept, all_carried = len(carries), len(carries) + len(outside)
    after, results = body(inner[:kept], inner[all_carried:], inner[kept:all_carried])
    block = freeze([x.ref for x in (*after, *inner[kept:all_carried], *results)], parameters)
    found = op("scan").multi(
        *(x.ref for x in (*carries, *outside, *rows)),
        regions=(block,),
        carries=all_carried,
        length=length,
        reverse=reverse,
    )
    tensors = list(map(Tensor, found))
    return tensors[:kept], tensors[all_carried:]


def moved(x: Tensor, source: int, target: int) -> Tensor:
    """One axis moved, the others in order."""
    order = [a for a in range(x.ndim) if a != source % x.ndim]
    order.insert(target % x.ndim, source % x.ndim)
    return x.transpose(*order)


@onnx_op("Scan", since=9)
def scan(node: Node) -> tuple[Tensor, ...]:
    """States and sequences; every sequence and result along an axis and in a direction."""
    return scan_over(node, list(node.present))


@onnx_op("Scan")
def batched_scan(node: Node) -> tuple[Tensor, ...]:
    """Before version 9: a first axis of rows that are scanned one by one."""
    if node.optional(0) is not None:
        raise refuse("Scan with sequence lengths")
    inputs = [x for x in node.operands[1:] if x is not None]
    batch = inputs[0].shape[0]
    each = [
        scan_over(node, [window(x, 0, b, b + 1).reshape(x.shape[1:]) for x in inputs])
        for b in range(batch)
    ]
    return tuple(F.stack(list(rows)) for rows in zip(*each, strict=True))


def scan_over(node: Node, inputs: list[Tensor]) -> tuple[Tensor, ...]:
    """The body over the sequences among ``inputs``, which come last."""
    graph, count = node.attr("body"), int(node.attr("num_scan_inputs"))
    carries, rows = inputs[: len(inputs) - count], inputs[len(inputs) - count :]
    axes = node.attr("scan_input_axes") or [0] * count
    backwards = node.attr("scan_input_directions") or [0] * count
    rows = [moved(x, axis, 0) for x, axis in zip(rows, axes, strict=True)]
    rows = [turned(x, flag) for x, flag in zip(rows, backwards, strict=True)]
    outer, fixed = node.scope.captured([graph])

    def body(state: Many, row: Many, outside: Many) -> tuple[Many, Many]:
        inner = node.scope.child()
        inner.values |= fixed
        inner.values |= dict(zip((v.name for v in graph.input), [*state, *row], strict=True))
        inner.values |= dict(zip(outer, outside, strict=True))
        results = inner.graph(graph)
        return results[: len(state)], results[len(state) :]

    last, stacked = scanned(body, carries, rows, list(outer.values()), length=rows[0].shape[0])
    places = node.attr("scan_output_axes") or [0] * len(stacked)
    flags = node.attr("scan_output_directions") or [0] * len(stacked)
    stacked = [turned(x, flag) for x, flag in zip(stacked, flags, strict=True)]
    return (*last, *(moved(x, 0, axis) for x, axis in zip(stacked, places, strict=True)))


def turned(x: Tensor, backwards: int) -> Tensor:
    """The first axis read backwards, if asked."""
    return call("reverse", x, axes=(0,)) if backwards else x


# --- recurrent layers ---


@dataclass(frozen=True)
class Cell:
    """One direction of a recurrent layer: its weights by gate, and how it is to run."""

    node: Node
    hidden: int
    activations: Sequence[str]

    def gates(self, x: Tensor, count: int) -> list[Tensor]:
        """``x`` cut into one part per gate along its last axis."""
        return [window(x, x.ndim - 1, i * self.hidden, (i + 1) * self.hidden) for i in range(count)]

    def act(self, number: int, x: Tensor) -> Tensor:
        """The activation function of a place, its input clipped if so asked."""
        clip = self.node.attr("clip")
        if clip is not None:
            x = F.maximum(F.minimum(x, clip), -clip)
        return activation(self.activations[number], x, {})


def product(x: Tensor, weight: Tensor) -> Tensor:
    """x[B,I] times weight[G,I]: [B,G]."""
    return call("dot_general", x, weight, lhs_contract=(1,), rhs_contract=(1,))


def rnn_step(cell: Cell, state: Many, x: Tensor, weights: Many) -> list[Tensor]:
    """f(x W + h R + biases)."""
    w, r, b = weights[:3]
    bias = sum_of_halves(b)
    return [cell.act(0, product(x, w) + product(state[0], r) + bias)]


def sum_of_halves(b: Tensor) -> Tensor:
    """The bias of the input plus that of the recurrence."""
    half = b.shape[0] // 2
    return window(b, 0, 0, half) + window(b, 0, half, 2 * half)


def gru_step(cell: Cell, state: Many, x: Tensor, weights: Many) -> list[Tensor]:
    """Gates z (update), r (reset) and the candidate h."""
    (w, r, b), h, n = weights[:3], state[0], cell.hidden
    inputs = cell.gates(product(x, w) + window(b, 0, 0, 3 * n), 3)
    bias = window(b, 0, 3 * n, 6 * n)
    recurrent = cell.gates(product(h, r) + bias, 3)
    update = cell.act(0, inputs[0] + recurrent[0])
    reset = cell.act(0, inputs[1] + recurrent[1])
    if cell.node.attr("linear_before_reset", 0):
        candidate = inputs[2] + reset * recurrent[2]
    else:
        again = product(reset * h, window(r, 0, 2 * n, 3 * n))
        candidate = inputs[2] + again + window(bias, 0, 2 * n, 3 * n)
    return [(1.0 - update) * cell.act(1, candidate) + update * h]


def lstm_step(cell: Cell, state: Many, x: Tensor, weights: Many) -> list[Tensor]:
    """Gates i, o, f and the candidate c; peepholes look at the cell state."""
    (w, r, b, p), (h, c) = weights, state
    i, o, f, g = cell.gates(product(x, w) + product(h, r) + sum_of_halves(b), 4)
    look_i, look_o, look_f = cell.gates(p, 3)
    entered = cell.act(0, i + look_i * c)
    forgot = 1.0 - entered if cell.node.attr("input_forget", 0) else cell.act(0, f + look_f * c)
    after = forgot * c + entered * cell.act(1, g)
    return [cell.act(0, o + look_o * after) * cell.act(2, after), after]


@dataclass(frozen=True)
class Layer:
    """How many gates a layer has, its step, its activations, and how many states it keeps."""

    gates: int
    step: Callable[[Cell, Many, Tensor, Many], list[Tensor]]
    activations: tuple[str, ...]
    states: int = 1


LAYERS: Final = {
    "RNN": Layer(1, rnn_step, ("Tanh",)),
    "GRU": Layer(3, gru_step, ("Sigmoid", "Tanh")),
    "LSTM": Layer(4, lstm_step, ("Sigmoid", "Tanh", "Tanh"), 2),
}
DIRECTIONS: Final = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}


@onnx_op(*LAYERS)
def recurrent(node: Node) -> tuple[Tensor, ...]:
    """A layer in one or both directions, over x[T,B,I], or x[B,T,I] in layout 1."""
    layer, batched = LAYERS[node.op], bool(node.attr("layout", 0))
    x = node[0].transpose(1, 0, 2) if batched else node[0]
    lengths = node.ints(4)
    if lengths is not None and set(lengths) != {x.shape[0]}:
        raise refuse(f"{node.op} over sequences of unequal length")
    directions = DIRECTIONS[node.attr("direction", "forward")]
    runs = [one_direction(node, layer, x, d, flag) for d, flag in enumerate(directions)]
    ys, *lasts = (F.stack(list(parts), axis=at) for parts, at in _by_part(runs))
    if batched:
        return (ys.transpose(2, 0, 1, 3), *(last.transpose(1, 0, 2) for last in lasts))
    return (ys, *lasts)


def _by_part(runs: Sequence[Many]) -> list[tuple[tuple[Tensor, ...], int]]:
    """The results of all directions side by side, and the axis on which they are stacked."""
    return [(parts, 1 if i == 0 else 0) for i, parts in enumerate(zip(*runs, strict=True))]


def one_direction(node: Node, layer: Layer, x: Tensor, d: int, reverse: bool) -> list[Tensor]:
    """All hidden states [T,B,H], then the last of each state [B,H]."""
    hidden, batch = int(node[2].shape[-1]), x.shape[1]
    batched = bool(node.attr("layout", 0))

    def given(index: int, *shape: int) -> Tensor:
        operand = node.optional(index)
        if operand is None:
            return scalar(0, x.dtype, shape)
        if batched and index in (5, 6):
            operand = operand.transpose(1, 0, 2)
        return window(operand, 0, d, d + 1).reshape(operand.shape[1:])

    count, named = len(layer.activations), list(node.attr("activations") or ())
    cell = Cell(node, hidden, named[d * count : (d + 1) * count] or layer.activations)
    weights = [given(1), given(2), given(3, 2 * layer.gates * hidden)]
    weights += [given(7, 3 * hidden)] if layer.states == 2 else []
    states = [given(5 + i, batch, hidden) for i in range(layer.states)]

    def body(state: Many, row: Many, outside: Many) -> tuple[Many, Many]:
        after = layer.step(cell, state, row[0], outside)
        return after, after[:1]

    last, (ys,) = scanned(body, states, [x], weights, length=x.shape[0], reverse=reverse)
    return [ys, *last]
