"""Planted faults in where things go: axes, orders, ends, folds, uploads, and what is kept."""

from __future__ import annotations

from typing import Any

import numpy as np

from ptir.types import DTYPES
from ptir_testsuite.mutants.harness import MUTANTS, Call, Row, is_float, mutant
from ptir_testsuite.oracles.floats import Array

# --- layout ---


@mutant("reshape reads columns first", "reshape")
def _(call: Call) -> Any:
    return np.reshape(call.operands[0], call["shape"], order="F")


@mutant("new axes are broadcast at the end", "broadcast_to")
def _(call: Call) -> Any:
    (x,), shape = call.operands, call["shape"]
    grown = np.reshape(x, x.shape + (1,) * (len(shape) - x.ndim))
    try:
        return np.broadcast_to(grown, shape)
    except ValueError:
        return call.right


@mutant("only the first axis is reversed", "reverse")
def _(call: Call) -> Any:
    return call.again(axes=call["axes"][:1])


@mutant("operands are put together in reverse", "concat")
def _(call: Call) -> Any:
    return np.concatenate(call.operands[::-1], axis=call["axis"])


@mutant("an empty operand ends a concat", "concat")
def _(call: Call) -> Any:
    axis = call["axis"]
    (right,) = call.right
    wrong = right.copy()
    sizes = [x.shape[axis] for x in call.operands]
    if 0 in sizes[:-1]:
        place = (slice(None),) * axis + (slice(sum(sizes[: sizes.index(0)]), None),)
        wrong[place] = 0
    return wrong


@mutant("tile repeats elements", "tile")
def _(call: Call) -> Any:
    (x,) = call.operands
    for axis, count in enumerate(call["repeats"]):
        x = np.repeat(x, count, axis)
    return x


@mutant("iota counts along the last axis", "iota")
def _(call: Call) -> Any:
    return call.again(axis=len(call["shape"]) - 1)


@mutant("iota adds up in its own dtype", "iota")
def _(call: Call) -> Any:
    (right,) = call.right
    if not is_float(right) or right.dtype.itemsize > 2:
        return right
    size = call["shape"][call["axis"]]
    line, one = [np.zeros((), right.dtype)], np.ones((), right.dtype)
    for _ in range(size - 1):
        line.append(line[-1] + one)
    shape = [1] * right.ndim
    shape[call["axis"]] = size
    return np.broadcast_to(np.array(line[:size], right.dtype).reshape(shape), right.shape)


@mutant("negative padding is ignored", "pad")
def _(call: Call) -> Any:
    low, high = call["low"], call["high"]
    wrong = np.asarray(call.again(low=tuple(max(0, n) for n in low)))
    fits: Any = (..., *(slice(0, n) for n in call.right[0].shape))
    found = wrong[fits]
    return found if found.shape == call.right[0].shape and high else call.right


@mutant("padding is put on the other side", "pad")
def _(call: Call) -> Any:
    return call.again(low=call["high"], high=call["low"])


@mutant("a slice of a reversed view reads forwards", "slice")
def _(call: Call) -> Any:
    (right,) = call.right
    return right[::-1] if right.ndim > 1 else right


# --- places ---


@mutant("take reads the first axis", "take")
def _(call: Call) -> Any:
    wrong = np.asarray(call.again(axis=0))
    return wrong if wrong.shape == call.right[0].shape else call.right


@mutant("places out of range read the first one", "take")
def _(call: Call) -> Any:
    x, indices = call.operands
    wide = indices.astype(object)
    inside = (wide >= 0) & (wide < x.shape[call["axis"]])
    return call.again(x, np.where(inside, wide, 0).astype(np.int64))


@mutant("updates of one place are added once", "scatter_reduce")
def _(call: Call) -> Any:
    operand, indices, updates = call.operands
    if call["kind"] != "add" or call["batch"] or indices.ndim != 2:
        return call.right
    _, first = np.unique(indices, axis=0, return_index=True)
    rows = np.sort(first)
    return call.again(operand, indices[rows], updates[rows])


@mutant("scatter starts from zeros", "scatter_reduce")
def _(call: Call) -> Any:
    operand, indices, updates = call.operands
    if call["kind"] != "add":
        return call.right
    return call.again(np.zeros_like(operand), indices, updates)


@mutant("segments without rows are 0", "segment_reduce")
def _(call: Call) -> Any:
    _, ids = call.operands
    wrong = call.right[0].copy()
    empty = [s for s in range(call["segments"]) if not np.any(ids == s)]
    wrong[empty] = 0
    return wrong


# --- folds and orders ---


@mutant("the last element is left out", "reduce")
def _(call: Call) -> Any:
    (x,), axes = call.operands, call["axes"]
    if len(axes) != 1 or x.shape[axes[0]] < 2:
        return call.right
    return call.again(np.take(x, range(x.shape[axes[0]] - 1), axis=axes[0]))


@mutant("one axis too few is summed", "reduce")
def _(call: Call) -> Any:
    if len(call["axes"]) < 2:
        return call.right
    (x,), (_, *rest) = call.operands, call["axes"]
    if not x.size:
        return call.right
    for axis in rest:
        x = np.take(x, [0], axis)
    return call.again(x)


@mutant("min of a line with NaN is its least number", "reduce")
def _(call: Call) -> Any:
    (x,) = call.operands
    if call["kind"] != "min" or not is_float(x):
        return call.right
    return call.again(np.where(np.isnan(x), np.array(np.inf).astype(x.dtype), x))


@mutant("the product of nothing is 0", "reduce")
def _(call: Call) -> Any:
    (x,) = call.operands
    return np.zeros_like(call.right[0]) if call["kind"] == "prod" and not x.size else call.right


@mutant("all of nothing is false", "reduce")
def _(call: Call) -> Any:
    (x,) = call.operands
    return np.zeros_like(call.right[0]) if call["kind"] == "all" and not x.size else call.right


@mutant("running maxima drop NaN", "cumulative")
def _(call: Call) -> Any:
    (x,) = call.operands
    if call["kind"] != "max" or not is_float(x):
        return call.right
    return call.again(np.where(np.isnan(x), np.array(-np.inf).astype(x.dtype), x))


@mutant("running sums go along the last axis", "cumulative")
def _(call: Call) -> Any:
    return call.again(axis=call.operands[0].ndim - 1)


@mutant("running sums of half precision round at every step", "cumulative")
def _(call: Call) -> Any:
    (x,) = call.operands
    if call["kind"] != "sum" or not is_float(x) or x.dtype.itemsize > 2:
        return call.right
    wrong, turned = call.right[0].copy(), np.moveaxis(x, call["axis"], 0)
    total = np.zeros(turned.shape[1:], x.dtype)
    for step, row in enumerate(turned):
        total = total + row
        np.moveaxis(wrong, call["axis"], 0)[step] = total
    return wrong


@mutant("arg_min takes the last of equals", "arg_min")
def _(call: Call) -> Any:
    (x,), axis = call.operands, call["axis"]
    return x.shape[axis] - 1 - call.again(np.flip(x, axis))


@mutant("arg_max overlooks NaN", "arg_max")
def _(call: Call) -> Any:
    (x,) = call.operands
    if not is_float(x):
        return call.right
    return call.again(np.where(np.isnan(x), np.array(-np.inf).astype(x.dtype), x))


@mutant("descending lines are ascending ones reversed", "sort")
def _(call: Call) -> Any:
    if not call["descending"]:
        return call.right
    values, indices = call.again(descending=False)
    return np.flip(values, call["axis"]), np.flip(indices, call["axis"])


@mutant("top_k overlooks NaN", "top_k")
def _(call: Call) -> Any:
    (x,) = call.operands
    if not is_float(x):
        return call.right
    return call.again(np.where(np.isnan(x), np.array(-np.inf).astype(x.dtype), x))


@mutant("products of bf16 add up in bf16", "dot_general")
def _(call: Call) -> Any:
    lhs, rhs = call.operands
    contracted = call["lhs_contract"], call["rhs_contract"]
    if lhs.dtype != DTYPES["bf16"].numpy or [len(c) for c in contracted] != [1, 1]:
        return call.right
    left, right = (np.moveaxis(x, c[0], 0) for x, c in zip((lhs, rhs), contracted, strict=True))
    if left.ndim != 2 or right.ndim != 2 or call["lhs_batch"]:
        return call.right
    total = np.zeros((left.shape[1], right.shape[1]), lhs.dtype)
    for a, b in zip(left, right, strict=True):
        total = total + np.multiply.outer(a, b)
    return total


@mutant("groups of quantization are one too long", "dequantize")
def _(call: Call) -> Any:
    words, scale, bias = call.operands
    axis = call["axis"]
    return call.again(words, np.roll(scale, 1, axis), np.roll(bias, 1, axis))


@mutant("nibbles are unpacked high first", "dequantize")
def _(call: Call) -> Any:
    words, scale, bias = call.operands
    if call["bits"] != 4:
        return call.right
    low = np.uint32(0x0F0F0F0F)
    return call.again((words & low) << np.uint32(4) | (words >> np.uint32(4)) & low, scale, bias)


@mutant("vectors of a table have no signs", "unpack_vectors")
def _(call: Call) -> Any:
    codes, table, signs = call.operands
    return call.again(codes, table, np.zeros_like(signs))


@mutant("vectors of a table are looked up one line too far", "unpack_vectors")
def _(call: Call) -> Any:
    codes, table, signs = call.operands
    return call.again(codes, np.roll(table, -1, 0), signs)


@mutant("random words ignore the upper half of the key", "rng_bits")
def _(call: Call) -> Any:
    (key,) = call.operands
    halved = key.copy()
    halved[-1:] = 0
    return call.again(halved)


# --- uploads ---


def _forgetful(array: Array) -> Array:
    return np.array(array, order="C") if array.size < 1000 else np.zeros_like(array, order="C")


def _canonical(array: Array) -> Array:
    """NaN and zeros written anew: the sign of zero is gone."""
    dense = np.array(array, order="C")
    return dense + np.zeros((), dense.dtype) if is_float(dense) else dense


UPLOADS = (
    Row("large uploads are zeros", ("add", "sort"), upload=_forgetful),
    Row("uploads lose the sign of zero", ("neg", "sign"), upload=_canonical),
)
MUTANTS.update({row.name: row for row in UPLOADS})
