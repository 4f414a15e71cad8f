"""Planted faults in bits: comparisons, bitwise ops, shifts and casts."""

from __future__ import annotations

from typing import Any

import numpy as np

from ptir_testsuite.mutants.harness import Call, is_float, mutant

# --- comparisons, bits ---


@mutant("le is lt", "compare")
def _(call: Call) -> Any:
    return call.again(direction="lt") if call["direction"] == "le" else call.right


@mutant("-0 is less than 0", "compare")
def _(call: Call) -> Any:
    a, b = call.operands
    if call["direction"] != "lt" or not is_float(a):
        return call.right
    both = (a == 0) & (b == 0) & np.signbit(a) & ~np.signbit(b)
    return call.right[0] | both


@mutant("unsigned numbers are compared as signed ones", "compare")
def _(call: Call) -> Any:
    a, b = call.operands
    if a.dtype.kind != "u":
        return call.right
    signed = np.dtype(f"i{a.dtype.itemsize}")
    return call.again(np.ascontiguousarray(a).view(signed), np.ascontiguousarray(b).view(signed))


@mutant("shifts to the right are logical", "shift_right")
def _(call: Call) -> Any:
    x, amount = call.operands
    if x.dtype.kind != "i":
        return call.right
    bare = np.dtype(f"u{x.dtype.itemsize}")
    shifted = call.again(np.ascontiguousarray(x).view(bare), amount.astype(bare))
    return np.asarray(shifted).astype(x.dtype)


@mutant("xor of bools is or", "xor")
def _(call: Call) -> Any:
    a, b = call.operands
    return a | b if a.dtype.kind == "b" else call.right


@mutant("or is xor", "or")
def _(call: Call) -> Any:
    return call.operands[0] ^ call.operands[1]


@mutant("and keeps the lower half", "and")
def _(call: Call) -> Any:
    (right,) = call.right
    if right.dtype.kind == "b" or right.dtype.itemsize < 4:
        return right
    return right & np.array((1 << 4 * right.dtype.itemsize) - 1).astype(right.dtype)


@mutant("not of bool is -x - 1", "not")
def _(call: Call) -> Any:
    (x,) = call.operands
    return ~x.astype(np.int8) if x.dtype.kind == "b" else call.right


@mutant("bitcasts to f32 flush subnormal numbers", "bitcast")
def _(call: Call) -> Any:
    (right,) = call.right
    if right.dtype != np.float32:
        return right
    return np.where(np.abs(right) < np.finfo(np.float32).tiny, np.copysign(0, right), right)


# --- casts ---


@mutant("casts to integers round", "cast")
def _(call: Call) -> Any:
    (x,), target = call.operands, call["dtype"]
    if not is_float(x) or not target.is_integer:
        return call.right
    wide = x.astype(np.float64)
    return call.again(np.where(np.abs(wide) < 1e6, np.rint(wide), wide))


@mutant("casts to integers wrap", "cast")
def _(call: Call) -> Any:
    (x,), target = call.operands, call["dtype"]
    if not is_float(x) or not target.is_integer or target.bits > 32:
        return call.right
    wide = x.astype(np.float64)
    inside = np.abs(wide) < 2.0**62
    return np.where(inside, np.where(inside, wide, 0).astype(np.int64), call.right[0])


@mutant("u32 is cast to floats as i32", "cast")
def _(call: Call) -> Any:
    (x,) = call.operands
    if x.dtype != np.uint32 or not call["dtype"].is_float:
        return call.right
    return call.again(np.ascontiguousarray(x).view(np.int32))


@mutant("i64 is cast to f32 through f64", "cast")
def _(call: Call) -> Any:
    (x,) = call.operands
    if x.dtype != np.int64 or call["dtype"].name != "f32":
        return call.right
    return x.astype(np.float64).astype(np.float32)


@mutant("a half is false", "cast")
def _(call: Call) -> Any:
    (x,) = call.operands
    if call["dtype"].name != "bool" or not is_float(x):
        return call.right
    return np.abs(x.astype(np.float64)) >= 1


@mutant("narrow integers are extended without their sign", "cast")
def _(call: Call) -> Any:
    (x,), target = call.operands, call["dtype"]
    if x.dtype.kind != "i" or target.bits <= 8 * x.dtype.itemsize or target.is_float:
        return call.right
    return call.again(np.ascontiguousarray(x).view(np.dtype(f"u{x.dtype.itemsize}")))


@mutant("casts to f16 flush subnormal numbers", "cast")
def _(call: Call) -> Any:
    (right,) = call.right
    if call["dtype"].name != "f16":
        return right
    return np.where(np.abs(right) < np.finfo(np.float16).tiny, np.copysign(0, right), right)


@mutant("casts to f8 overflow to NaN", "cast")
def _(call: Call) -> Any:
    (right,) = call.right
    if call["dtype"].name != "f8e5m2":
        return right
    wide = right.astype(np.float64)
    return np.where(np.isinf(wide), np.nan, wide)
