"""Planted faults beside the edges of schedules: sizes, ranks, strides, tails, long sums, counters.

Most of them were planted by others, and no case of one call met them; sweeps do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ptir_testsuite.mutants.harness import Call, Fault, is_float, mutant
from ptir_testsuite.oracles.floats import Array


def swept(name: str, *ops: str) -> Callable[[Fault], Fault]:
    """Plant a fault that sweeps are to show."""
    return mutant(name, *ops, in_sweeps=True)


# --- sizes ---


@swept("a product of 17 terms is zero", "dot_general")
def _(call: Call) -> Any:
    (lhs, _), contracted = call.operands, call["lhs_contract"]
    terms = [lhs.shape[axis] for axis in contracted]
    return call.right[0] * 0 if terms == [17] else call.right


@swept("rows of a product behind the 128th are zero", "dot_general")
def _(call: Call) -> Any:
    wrong = call.right[0].copy()
    wrong[128:] = 0
    return wrong


@swept("one element of a large sum is zero", "add")
def _(call: Call) -> Any:
    wrong = call.right[0].copy()
    if wrong.size > 5000:
        wrong.reshape(-1)[wrong.size // 2] = 0
    return wrong


@swept("a running sum drops its carry after 1024 elements", "cumulative")
def _(call: Call) -> Any:
    (x,), axis = call.operands, call["axis"]
    if call["kind"] != "sum" or x.shape[axis] <= 1024:
        return call.right
    parts = np.split(x, range(1024, x.shape[axis], 1024), axis)
    return np.concatenate([call.again(part) for part in parts], axis)


@swept("what a sort has behind 1024 places stays where it is", "sort")
def _(call: Call) -> Any:
    (x,), axis = call.operands, call["axis"]
    if x.shape[axis] <= 1024:
        return call.right
    head, tail = np.split(x, [1024], axis)
    values, indices = call.again(head)
    own = np.arange(1024, x.shape[axis], dtype=np.int32)
    own = np.moveaxis(np.broadcast_to(own, np.moveaxis(tail, axis, -1).shape), -1, axis)
    return np.concatenate([values, tail], axis), np.concatenate([indices, own], axis)


@swept("updates behind the 1024th are lost", "scatter_reduce")
def _(call: Call) -> Any:
    operand, indices, updates = call.operands
    if call["batch"] or indices.ndim != 2 or len(indices) <= 1024:
        return call.right
    return call.again(operand, indices[:1024], updates[:1024])


@swept("places are counted in 8 bits", "take", "reverse")
def _(call: Call) -> Any:
    (right,) = call.right
    wrong = right.copy()
    if wrong.ndim and wrong.shape[-1] > 256:
        wrong[..., 256:] = wrong[..., : wrong.shape[-1] - 256][..., :1]
    return wrong


@swept("a last group of one element is not folded", "segment_reduce")
def _(call: Call) -> Any:
    x, *others = call.operands
    if call["kind"] != "sum" or not x.ndim or len(x) % 256 != 1 or len(x) < 256:
        return call.right
    cut = x.copy()
    cut[-1] = 0
    return call.again(cut, *others)


# --- ranks ---


@swept("any over rank 3 is turned around", "reduce")
def _(call: Call) -> Any:
    return ~call.right[0] if call["kind"] == "any" and call.operands[0].ndim == 3 else call.right


@swept("iota of rank 3 counts down", "iota")
def _(call: Call) -> Any:
    (right,) = call.right
    return np.flip(right, call["axis"]) if right.ndim == 3 else right


@swept("select of rank 4 takes one side", "select")
def _(call: Call) -> Any:
    return call.operands[1] if call.right[0].ndim == 4 else call.right


@swept("a broadcast repeats neighbours of an inner axis", "broadcast_to")
def _(call: Call) -> Any:
    (x,), (right,) = call.operands, call.right
    if x.ndim != 3 or right.ndim != 3 or x.shape != (len(right), 1, right.shape[2]):
        return right
    return np.repeat(x.reshape(len(x), -1), right.shape[1], axis=1).reshape(right.shape)


@swept("transposes of rank 6 change two axes only", "transpose")
def _(call: Call) -> Any:
    (x,), (right,) = call.operands, call.right
    wrong = np.swapaxes(x, 0, x.ndim - 1) if x.ndim == 6 else right
    return wrong if wrong.shape == right.shape else np.ascontiguousarray(x).reshape(right.shape)


@swept("what is left of rank 6 by a fold comes out in another order", "reduce")
def _(call: Call) -> Any:
    (x,), (right,) = call.operands, call.right
    if x.ndim != 6 or right.ndim < 2:
        return right
    return np.ascontiguousarray(np.swapaxes(right, 0, right.ndim - 1)).reshape(right.shape)


@swept("only four axes are reversed", "reverse")
def _(call: Call) -> Any:
    return call.again(axes=tuple(a for a in call["axes"] if a < 4))


@swept("a fifth axis is not padded", "pad")
def _(call: Call) -> Any:
    (right,) = call.right
    wrong = right.copy()
    if right.ndim > 4:
        wrong.reshape(-1)[-1:] = call.operands[1]
        wrong[..., :1] = call.operands[1]
    return wrong


# --- strides ---


def _as_it_lies(array: Array) -> Array:
    """The elements in the order of their addresses: right for what is dense."""
    if array.flags.c_contiguous:
        return array
    return np.asarray(array).ravel(order="K").reshape(array.shape)


@swept("exp reads a view as if it were dense", "exp")
def _(call: Call) -> Any:
    return call.again(_as_it_lies(call.operands[0]))


@swept("floor reads a view as if it were dense", "floor")
def _(call: Call) -> Any:
    return call.again(_as_it_lies(call.operands[0]))


@swept("the right operand is read with the strides of the left", "mul", "dot_general")
def _(call: Call) -> Any:
    lhs, rhs = call.operands
    return call.again(lhs, _as_it_lies(rhs) if lhs.flags.c_contiguous else rhs)


@swept("a fold reads its operand backwards where its strides are negative", "reduce")
def _(call: Call) -> Any:
    (x,) = call.operands
    turned = tuple(slice(None, None, -1 if s < 0 else 1) for s in x.strides)
    return call.again(x[turned]) if call["kind"] == "sum" else call.right


# --- tails ---


def _without_tail(x: Array) -> Array:
    """The elements with no NaN behind the last whole vector of the last axis."""
    if not is_float(x) or not x.ndim or x.shape[-1] < 16:
        return x
    found, whole = x.copy(), x.shape[-1] // 16 * 16
    tail = found[..., whole:]
    tail[np.isnan(tail)] = -np.inf
    return found


@swept("max misses a NaN behind whole vectors", "reduce", "cumulative")
def _(call: Call) -> Any:
    return call.again(_without_tail(call.operands[0])) if call["kind"] == "max" else call.right


@swept("maximum misses a NaN behind whole vectors", "maximum")
def _(call: Call) -> Any:
    return call.again(*map(_without_tail, call.operands))


@swept("arg_max passes over a NaN behind whole vectors", "arg_max")
def _(call: Call) -> Any:
    return call.again(_without_tail(call.operands[0]))


# --- long sums, long counts ---


@swept("sums of 256 products are rounded to f16", "dot_general")
def _(call: Call) -> Any:
    (lhs, rhs), (left, right) = call.operands, (call["lhs_contract"], call["rhs_contract"])
    if lhs.dtype != np.float16 or len(left) != 1 or call["lhs_batch"] or call["dtype"]:
        return call.right
    a = np.moveaxis(lhs, left[0], -1).astype(np.float32)
    b = np.moveaxis(rhs, right[0], -1).astype(np.float32)
    total: Any = np.float16(0)
    for start in range(0, a.shape[-1], 256):
        some = np.tensordot(a[..., start : start + 256], b[..., start : start + 256], (-1, -1))
        total = (total + some.astype(np.float16)).astype(np.float16)
    return total


@swept("the random counter has 16 bits", "rng_bits")
def _(call: Call) -> Any:
    wrong = call.right[0].copy()
    flat, most = wrong.reshape(-1), 4 << 16
    flat[most:] = flat[: max(flat.size - most, 0)]
    return wrong
