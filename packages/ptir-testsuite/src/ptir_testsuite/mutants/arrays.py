"""Planted faults in sums, contractions, orders, movement, indexing, random words and uploads."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ptir.types import DTYPES
from ptir_testsuite.mutants.harness import MUTANTS, Call, Row, is_float, mutant
from ptir_testsuite.oracles.floats import Array

# --- sums and folds ---


@mutant("sums accumulate in half precision", "reduce")
def _(call: Call) -> Any:
    (x,) = call.operands
    if call["kind"] != "sum" or not is_float(x):
        return call.right
    narrow = x.astype(DTYPES["bf16"].numpy) if x.dtype.itemsize > 2 else x
    total = np.zeros(call.right[0].shape, narrow.dtype)
    kept = [a for a in range(x.ndim) if a not in call["axes"]]
    terms = math.prod(x.shape[a] for a in call["axes"])
    flat = narrow.transpose(*kept, *call["axes"]).reshape(*total.shape, terms)
    for i in range(terms):
        total = total + flat[..., i]
    return total


@mutant("max starts at 0", "reduce")
def _(call: Call) -> Any:
    if call["kind"] != "max":
        return call.right
    return np.maximum(call.right[0], np.zeros((), call.right[0].dtype))


@mutant("sums are off by a tenth of a percent", "reduce")
def _(call: Call) -> Any:
    (right,) = call.right
    return right * (1 + 9e-4) if call["kind"] == "sum" and is_float(right) else right


@mutant("running sums leave their own element out", "cumulative")
def _(call: Call) -> Any:
    if call["kind"] != "sum":
        return call.right
    return call.right[0] - call.operands[0]


@mutant("arg_max takes the last of equals", "arg_max")
def _(call: Call) -> Any:
    (x,), axis = call.operands, call["axis"]
    turned = call.again(np.flip(x, axis))
    return x.shape[axis] - 1 - turned


@mutant("sort is not stable", "sort")
def _(call: Call) -> Any:
    (x,), axis = call.operands, call["axis"]
    values, indices = call.again(np.ascontiguousarray(np.flip(x, axis)))
    return values, x.shape[axis] - 1 - indices


@mutant("top_k takes the last of equals", "top_k")
def _(call: Call) -> Any:
    (x,) = call.operands
    values, indices = call.again(np.ascontiguousarray(x[..., ::-1]))
    return values, x.shape[-1] - 1 - indices


# --- contraction ---


@mutant("products are off by 9e-4", "dot_general")
def _(call: Call) -> Any:
    (right,) = call.right
    return right * (1 + 9e-4) if is_float(right) else right


@mutant("one element of a large product is zero", "dot_general")
def _(call: Call) -> Any:
    wrong = call.right[0].copy()
    if wrong.size > 200:
        wrong.reshape(-1)[wrong.size // 2] = 0
    return wrong


@mutant("free axes come out in the wrong order", "dot_general")
def _(call: Call) -> Any:
    batch = len(call["lhs_batch"])
    (right,) = call.right
    free = right.shape[batch:]
    swaps = len(free) == 2 and free[0] == free[1]
    return np.swapaxes(right, batch, batch + 1) if swaps else right


@mutant("batch axes are paired in order of position", "dot_general")
def _(call: Call) -> Any:
    lhs, rhs = call.operands
    left, right = call["lhs_batch"], tuple(sorted(call["rhs_batch"]))
    sizes = [lhs.shape[a] for a in left], [rhs.shape[a] for a in right]
    return call.again(rhs_batch=right) if sizes[0] == sizes[1] else call.right


# --- movement and indexing ---


@mutant("transpose is composed backwards", "transpose")
def _(call: Call) -> Any:
    (x,), order = call.operands, call["permutation"]
    back = tuple(int(i) for i in np.argsort(order))
    turned = np.transpose(x, back)
    return turned if turned.shape == call.right[0].shape else call.right


@mutant("a window starts one too early", "slice")
def _(call: Call) -> Any:
    starts = tuple(max(0, s - 1) for s in call["starts"])
    shifts = zip(starts, call["starts"], call["limits"], strict=True)
    limits = tuple(limit - (own - start) for start, own, limit in shifts)
    return call.again(starts=starts, limits=limits)


@mutant("strides are dropped", "slice")
def _(call: Call) -> Any:
    (x,), (right,) = call.operands, call.right
    ends = zip(call["starts"], right.shape, strict=True)
    window: Any = (..., *(slice(s, s + n) for s, n in ends))
    return x[window]


@mutant("the interior of pad is dropped", "pad")
def _(call: Call) -> Any:
    x, value = call.operands
    wrong = np.full(call.right[0].shape, value, x.dtype)
    plain = call.again(interior=None)
    fits = tuple(slice(0, min(a, b)) for a, b in zip(plain.shape, wrong.shape, strict=True))
    window: Any = (..., *fits)
    wrong[window] = plain[window]
    return wrong


@mutant("negative indices count from the end", "take")
def _(call: Call) -> Any:
    x, indices = call.operands
    size = x.shape[call["axis"]]
    wide = indices.astype(object)
    inside = (wide < 0) & (wide >= -size)
    return call.again(x, np.where(inside, wide + size, np.clip(wide, 0, size - 1)).astype(np.int64))


@mutant("a window that sticks out wraps around", "dynamic_slice")
def _(call: Call) -> Any:
    x, starts = call.operands
    grid = [
        (int(s) + np.arange(n)) % max(size, 1)
        for s, n, size in zip(starts, call["sizes"], x.shape, strict=True)
    ]
    return x[np.ix_(*grid)] if x.ndim else x


@mutant("an update that sticks out is cut off", "dynamic_update_slice")
def _(call: Call) -> Any:
    x, update, starts = call.operands
    wrong = x.copy()
    for index in np.ndindex(*update.shape):
        at = tuple(max(0, int(s)) + i for s, i in zip(starts, index, strict=True))
        if all(a < n for a, n in zip(at, x.shape, strict=True)):
            wrong[at] = update[index]
    return wrong


@mutant("select reads its predicate upside down for scalars", "select")
def _(call: Call) -> Any:
    predicate, on_true, on_false = call.operands
    return call.again(~predicate, on_true, on_false) if predicate.ndim == 0 else call.right


# --- random words, buffers ---


@mutant("the random counter starts at 1", "rng_bits")
def _(call: Call) -> Any:
    size = call.right[0].size
    return call.again(shape=(size + 4,))[4:]


@mutant("neg writes into its operand", "neg")
def _(call: Call) -> Any:
    np.copyto(call.operands[0], call.right[0])
    return call.right


def _memory_order(array: Array) -> Array:
    return np.array(array.ravel(order="K"), order="C").reshape(array.shape)


MUTANTS["upload ignores strides"] = Row(
    "upload ignores strides", ("add", "transpose"), upload=_memory_order
)
