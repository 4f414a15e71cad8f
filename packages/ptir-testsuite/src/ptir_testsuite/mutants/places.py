"""Planted faults in windows, places, segments, loops and quantization."""

from __future__ import annotations

from typing import Any

import numpy as np

from ptir.types import DTYPES
from ptir_testsuite.mutants.harness import Call, is_float, mutant

# --- windows ---


@mutant("the last tap of a window is left out", "reduce_window")
def _(call: Call) -> Any:
    window = tuple(max(1, n - 1) for n in call["window"])
    wrong = np.asarray(call.again(window=window))
    fits = tuple(slice(0, n) for n in call.right[0].shape)
    place: Any = (..., *fits)
    return wrong[place]


@mutant("the dilation of windows is dropped", "reduce_window", "extract_patches")
def _(call: Call) -> Any:
    wrong = np.asarray(call.again(window_dilation=None))
    place: Any = (..., *(slice(0, n) for n in call.right[0].shape))
    return wrong[place]


@mutant("windows are padded with zeros", "reduce_window")
def _(call: Call) -> Any:
    (right,) = call.right
    if call["kind"] not in ("max", "min") or right.dtype.kind == "b":
        return right
    x = call.operands[0]
    padded = any(call[side] and any(n > 0 for n in call[side]) for side in ("low", "high"))
    fold = np.maximum if call["kind"] == "max" else np.minimum
    return fold(right, np.zeros((), x.dtype)) if padded else right


@mutant("patches come out with channels first", "extract_patches")
def _(call: Call) -> Any:
    (right,) = call.right
    return np.moveaxis(right, -1, 1)


# --- places ---


@mutant("the first of several replacements wins", "scatter_reduce")
def _(call: Call) -> Any:
    if call["kind"] != "replace" or call["batch"]:
        return call.right
    operand, indices, updates = call.operands
    outer = tuple(range(indices.ndim - 1))
    return call.again(operand, np.flip(indices, outer), np.flip(updates, outer))


@mutant("scatter clamps what is out of range", "scatter_reduce")
def _(call: Call) -> Any:
    operand, indices, updates = call.operands
    last = np.array([operand.shape[a] - 1 for a in call["axes"]], np.int64)
    wide = np.minimum(np.maximum(indices.astype(np.float64), 0), last)
    return call.again(operand, wide.astype(np.int64), updates)


@mutant("half-precision scatters round after every update", "scatter_reduce")
def _(call: Call) -> Any:
    operand, indices, updates = call.operands
    narrow = is_float(operand) and operand.dtype.itemsize == 2
    if not narrow or call["kind"] != "add" or call["batch"] or indices.ndim != 2:
        return call.right
    total = operand
    for row in range(len(indices)):
        total = call.again(total, indices[row : row + 1], updates[row : row + 1])
    return total


@mutant("-0 added to -0 in its place is +0", "scatter_reduce")
def _(call: Call) -> Any:
    operand, indices, updates = call.operands
    if call["kind"] != "add" or not is_float(operand):
        return call.right
    return call.again(operand, indices, updates + np.zeros((), updates.dtype))


@mutant("the first -0 of a place is lost to a fresh total", "scatter_reduce")
def _(call: Call) -> Any:
    operand, _, _ = call.operands
    if call["kind"] != "add" or not is_float(operand):
        return call.right
    return call.right[0] + np.zeros((), operand.dtype)


@mutant("scatters of the greatest drop NaN", "scatter_reduce")
def _(call: Call) -> Any:
    operand, indices, updates = call.operands
    if call["kind"] != "max" or not is_float(operand):
        return call.right
    least = np.array(-np.inf).astype(updates.dtype)
    return call.again(operand, indices, np.where(np.isnan(updates), least, updates))


@mutant("gather counts negative indices from the end", "gather")
def _(call: Call) -> Any:
    operand, indices = call.operands
    sizes = np.array([operand.shape[a] for a in call["axes"]], np.int64)
    wide = indices.astype(np.float64)
    wide = np.where((wide < 0) & (wide >= -sizes), wide + sizes, wide)
    return call.again(operand, np.minimum(np.maximum(wide, 0), sizes - 1).astype(np.int64))


@mutant("rows without a segment go into the last one", "segment_reduce")
def _(call: Call) -> Any:
    operand, ids = call.operands
    outside = (ids < 0) | (ids >= call["segments"])
    return call.again(operand, np.where(outside, max(call["segments"] - 1, 0), ids))


# --- quantization ---


@mutant("quantize rounds halves up", "quantize")
def _(call: Call) -> Any:
    operand, scale, bias = call.operands
    nudge = np.nextafter(np.float32(1), np.float32(2))
    return call.again(operand.astype(np.float32) * nudge, scale, bias)


@mutant("dequantize multiplies and adds in one rounding", "dequantize")
def _(call: Call) -> Any:
    words, scale, bias = call.operands
    zero = np.zeros_like(bias)
    ones = np.ones_like(scale)
    plain = call.again(words, ones, zero, dtype=DTYPES["f32"]).astype(np.float64)
    product = _spread(call, plain.shape, scale) * plain
    return product + _spread(call, plain.shape, bias)


def _spread(call: Call, shape: tuple[int, ...], scale: Any) -> Any:
    wide = np.repeat(scale.astype(np.float64), call["group"], axis=call["axis"])
    return np.broadcast_to(wide, shape)
