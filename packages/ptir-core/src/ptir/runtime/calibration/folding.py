"""Where the inputs of matrices can be divided by scales without anything else changing.

A division by channel moves from the inputs back through what commutes with it, to parameters that
take it in: a norm's weight, or the outputs of the projection before. So the model stays one of its
architecture. What each op does with it is a row of ``MOVES``, by what is computed, not by family.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from ptir.errors import PtirError
from ptir.ir.program import Instruction
from ptir.runtime.calibration.program import EXPERTS, LINEAR, Flow, Product

Array = np.ndarray[Any, Any]
NOWHERE: Final = -1
"""A channel that is not divided."""


class _StuckError(PtirError):
    """Something that a division does not move through."""


@dataclass
class Fold:
    """Which parameters take a division in, and which channels must have one scale.

    ``vectors`` maps ports to the channel of each element and what is added before they are used,
    ``outputs`` ports of matrices to the channel of each output. ``tied`` are the representatives
    of channels that share a scale, ``tied[channel]`` each.
    """

    tied: Array
    vectors: dict[int, tuple[Array, float]] = field(default_factory=dict)
    outputs: dict[int, Array] = field(default_factory=dict)


def fold_of(flow: Flow, products: tuple[Product, ...]) -> Fold | None:
    """How the inputs of ``products``, which are all that reads them, can be divided; or None."""
    inputs, places = products[0].inputs, {one.position for one in products}
    if not places.issuperset(flow.users[inputs]):
        return None
    if not all(flow.only_multiplied(port) for one in products for port in one.weights):
        return None
    shape = flow.block.types[inputs].shape
    fold = Fold(np.arange(shape[-1]))
    try:
        _moved(flow, fold, inputs, np.broadcast_to(fold.tied, shape))
    except _StuckError:
        return None
    return fold


def _moved(flow: Flow, fold: Fold, value: int, channels: Array) -> None:
    """Divide a value by the scale of each element's channel, by moving that to where it is made."""
    made = flow.maker(value)
    if made is None or made.name not in MOVES:
        raise _StuckError(f"nothing divides the result of {made.name if made else 'an input'}")
    MOVES[made.name](flow, fold, made, channels)


def _on(flow: Flow, fold: Fold, by: Instruction, operand: int, channels: Array) -> None:
    """Go on with an operand, unless something else reads what would be divided."""
    value = by.operands[operand]
    if by.operands.count(value) > 1:
        raise _StuckError("an operand is read twice")
    for at in flow.users[value]:
        other = flow.block.instructions[at]
        if other is not by and not (other.op == "slice" and _untouched(other, channels)):
            raise _StuckError(f"{other.name} reads it too")
    _moved(flow, fold, value, channels)


def _untouched(slice: Instruction, channels: Array) -> bool:
    """Whether a slice takes none of what is divided."""
    return bool((channels[_places(slice)] == NOWHERE).all())


def _places(one: Instruction) -> tuple[slice, ...]:
    bounds = zip(*(one.attributes[key] for key in ("starts", "limits", "strides")), strict=True)
    return tuple(slice(*each) for each in bounds)


# --- what moves a division on ---


def _reshape(flow: Flow, fold: Fold, one: Instruction, channels: Array) -> None:
    _on(flow, fold, one, 0, channels.reshape(flow.block.types[one.operands[0]].shape))


def _transpose(flow: Flow, fold: Fold, one: Instruction, channels: Array) -> None:
    _on(flow, fold, one, 0, channels.transpose(np.argsort(one.attributes["permutation"])))


def _slice(flow: Flow, fold: Fold, one: Instruction, channels: Array) -> None:
    whole = np.full(flow.block.types[one.operands[0]].shape, NOWHERE)
    whole[_places(one)] = channels
    _on(flow, fold, one, 0, whole)


def _mul(flow: Flow, fold: Fold, one: Instruction, channels: Array) -> None:
    """One factor, whichever takes it."""
    kept = dict(fold.vectors), dict(fold.outputs), fold.tied.copy()
    try:
        _on(flow, fold, one, 0, channels)
    except _StuckError:
        fold.vectors, fold.outputs, fold.tied = kept
        _on(flow, fold, one, 1, channels)


def _swiglu(flow: Flow, fold: Fold, one: Instruction, channels: Array) -> None:
    """silu(gate) * up: the second operand."""
    _on(flow, fold, one, 1, channels)


def _maximum(flow: Flow, fold: Fold, one: Instruction, channels: Array) -> None:
    """With 0: scales are greater than that."""
    if _number(flow, one.operands[1]) != 0:
        raise _StuckError("the greater of two values")
    _on(flow, fold, one, 0, channels)


def _attention(flow: Flow, fold: Fold, one: Instruction, channels: Array) -> None:
    """Values; heads that share them share their scales."""
    values = flow.block.types[one.operands[2]].shape
    heads = _alike(channels, (0, 2))
    grouped = heads.reshape(values[1], -1, heads.shape[-1])
    for group in grouped:
        for head in group[1:]:
            _tie(fold, group[0], head)
    first = grouped[:, 0][None, :, None, :]
    _on(flow, fold, one, 2, np.broadcast_to(first, values))


def _cache_update(flow: Flow, fold: Fold, one: Instruction, channels: Array) -> None:
    """What is put into a cache; what was there before came from the same place."""
    if one.operands[0] in flow.fed:
        raise _StuckError("the cache was written before")
    row = _alike(channels, (0, 2))[None, :, None, :]
    _on(flow, fold, one, 1, np.broadcast_to(row, flow.block.types[one.operands[1]].shape))


# --- what takes a division in ---


def _norm(flow: Flow, fold: Fold, one: Instruction, channels: Array) -> None:
    """The weight, and the bias of a layer norm."""
    last = _alike(channels, tuple(range(channels.ndim - 1)))
    for value in one.operands[1:]:
        _vector(flow, fold, one, value, last)


def _linear(flow: Flow, fold: Fold, one: Instruction, channels: Array) -> None:
    """The outputs of the matrices, and their biases."""
    last = _alike(channels, tuple(range(channels.ndim - 1)))
    axis = 1 if one.attributes["layout"] == "io" else 0
    _matrices(flow, fold, one.operands[1], axis, last)
    for value in one.operands[2:]:
        _vector(flow, fold, one, value, last)


def _experts(flow: Flow, fold: Fold, one: Instruction, channels: Array) -> None:
    """The same outputs of every expert."""
    last = _alike(channels, tuple(range(channels.ndim - 1)))
    _matrices(flow, fold, one.operands[1], 0, np.tile(last, one.attributes["experts"]))


def _matrices(flow: Flow, fold: Fold, value: int, axis: int, outputs: Array) -> None:
    first = 0
    for port in flow.joined(value, axis):
        count = flow.block.types[port].shape[axis]
        part = outputs[first : first + count]
        first += count
        if (part == NOWHERE).all():
            continue
        if port not in flow.parameters or not flow.only_multiplied(port):
            raise _StuckError("a weight is computed, or read elsewhere")
        fold.outputs[port] = part


def _vector(flow: Flow, fold: Fold, reader: Instruction, value: int, channels: Array) -> None:
    """A vector that is a parameter, several joined, a parameter plus a number, or 0."""
    made = flow.maker(value)
    if made is not None and made.op == "concat":
        first = 0
        for part in made.operands:
            count = flow.block.types[part].shape[0]
            _vector(flow, fold, made, part, channels[first : first + count])
            first += count
        return
    if (channels == NOWHERE).all() or _number(flow, value) == 0:
        return
    port, plus = value, 0.0
    if made is not None and made.op == "add":
        reader, (port, number) = made, made.operands
        plus = _number(flow, number)
    if port not in flow.parameters or np.isnan(plus):
        raise _StuckError("a vector is computed")
    if any(flow.block.instructions[at] is not reader for at in flow.users[port]):
        raise _StuckError("a vector is read elsewhere")
    fold.vectors[port] = channels, plus


def _number(flow: Flow, value: int) -> float:
    """The number that all elements of a value are; NaN where it is no constant of one number."""
    made = flow.maker(value)
    while made is not None and made.op in ("broadcast_to", "reshape"):
        made = flow.maker(made.operands[0])
    if made is None or made.op != "constant":
        return float("nan")
    held = np.asarray(made.attributes["value"].numpy()).reshape(-1)
    return float(held[0]) if held.size and (held == held[0]).all() else float("nan")


def _alike(channels: Array, axes: tuple[int, ...]) -> Array:
    """Channels without ``axes``, along which they are the same."""
    first = channels
    for axis in sorted(axes, reverse=True):
        first = first.take(0, axis)
    if (np.expand_dims(first, tuple(sorted(axes))) != channels).any():
        raise _StuckError("rows are divided by different scales")
    return first


def _tie(fold: Fold, one: Array, other: Array) -> None:
    """Give channels, pair by pair, one scale."""
    if (one == NOWHERE).any() or (other == NOWHERE).any():
        raise _StuckError("only some of the heads that share values are divided")
    for a, b in zip(fold.tied[one].tolist(), fold.tied[other].tolist(), strict=True):
        fold.tied[fold.tied == b] = a


Move = Callable[[Flow, Fold, Instruction, Array], None]
MOVES: Final[Mapping[str, Move]] = {
    "reshape": _reshape,
    "transpose": _transpose,
    "slice": _slice,
    "mul": _mul,
    "swiglu": _swiglu,
    "maximum": _maximum,
    "attention": _attention,
    "cache_update": _cache_update,
    "rms_norm": _norm,
    "layer_norm": _norm,
    LINEAR: _linear,
    EXPERTS: _experts,
}
"""By what makes a value: how a division of it moves to what that is made of."""
