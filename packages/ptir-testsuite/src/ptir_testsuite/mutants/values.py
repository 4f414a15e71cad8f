"""Planted faults in values: narrower arithmetic, wrong roundings, wrong ends."""

from __future__ import annotations

from typing import Any

import numpy as np

from ptir.types import DTYPES
from ptir_testsuite.mutants.harness import Call, is_float, mutant

# --- narrower and cruder arithmetic ---


@mutant("f64 products are computed in f32", "mul")
def _(call: Call) -> Any:
    a, b = call.operands
    if a.dtype != np.float64:
        return call.right
    return a.astype(np.float32) * b.astype(np.float32)


@mutant("f64 sums are computed in f32", "add")
def _(call: Call) -> Any:
    a, b = call.operands
    return a.astype(np.float32) + b.astype(np.float32) if a.dtype == np.float64 else call.right


@mutant("i32 products go through f32", "mul")
def _(call: Call) -> Any:
    a, b = call.operands
    if a.dtype != np.int32:
        return call.right
    product = np.asarray(a.astype(np.float32) * b.astype(np.float32), np.float64)
    exact = a.astype(np.int64) * b.astype(np.int64)
    small = np.abs(exact) < 2**31
    return np.where(small, np.clip(product, -(2**31), 2**31 - 1), call.right[0])


@mutant("i64 differences go through f64", "sub")
def _(call: Call) -> Any:
    a, b = call.operands
    if a.dtype != np.int64:
        return call.right
    wide = a.astype(np.float64) - b.astype(np.float64)
    inside = np.abs(wide) < 2.0**62
    return np.where(inside, np.where(inside, wide, 0).astype(np.int64), call.right[0])


@mutant("bf16 sums are cut off", "add")
def _(call: Call) -> Any:
    a, b = call.operands
    if a.dtype != DTYPES["bf16"].numpy:
        return call.right
    wide = np.ascontiguousarray(a.astype(np.float32) + b.astype(np.float32))
    cut = (wide.view(np.uint32) & 0xFFFF0000).view(np.float32).reshape(wide.shape)
    return np.where(np.isfinite(wide), cut, wide)


@mutant("f16 products overflow to the largest number", "mul")
def _(call: Call) -> Any:
    (right,) = call.right
    if right.dtype != np.float16:
        return right
    finite = np.isfinite(call.operands[0]) & np.isfinite(call.operands[1])
    return np.where(np.isinf(right) & finite, np.copysign(np.float16(65504), right), right)


@mutant("subnormal products are flushed", "mul")
def _(call: Call) -> Any:
    (right,) = call.right
    if right.dtype != np.float32:
        return right
    return np.where(np.abs(right) < np.finfo(np.float32).tiny, np.copysign(0.0, right), right)


@mutant("integer differences saturate", "sub")
def _(call: Call) -> Any:
    a, b = call.operands
    if is_float(a):
        return call.right
    ends = np.iinfo(a.dtype)
    exact = a.astype(object) - b.astype(object)
    return np.minimum(np.maximum(exact, int(ends.min)), int(ends.max))


@mutant("sqrt is one unit off", "sqrt")
def _(call: Call) -> Any:
    (right,) = call.right
    if right.dtype not in (np.float32, np.float64):
        return right
    return np.where(
        np.isfinite(right) & (right > 0), np.nextafter(right, np.inf, dtype=right.dtype), right
    )


@mutant("sqrt of -0 is +0", "sqrt")
def _(call: Call) -> Any:
    return np.where(call.right[0] == 0, np.zeros((), call.right[0].dtype), call.right[0])


@mutant("reciprocals of subnormal numbers are infinite", "reciprocal")
def _(call: Call) -> Any:
    (x,) = call.operands
    if x.dtype != np.float32:
        return call.right
    small = (np.abs(x) < np.finfo(np.float32).tiny) & (x != 0)
    return np.where(small, np.copysign(np.inf, x), call.right[0])


@mutant("the logarithm of 0 is NaN", "log")
def _(call: Call) -> Any:
    return np.where(call.operands[0] == 0, np.nan, call.right[0])


@mutant("the logarithm loses digits near 1", "log")
def _(call: Call) -> Any:
    x = call.operands[0].astype(np.float64)
    close = (np.abs(x - 1) < 0.3) & (x != 1)
    return np.where(close, call.right[0].astype(np.float64) * (1 + 4e-6), call.right[0])


@mutant("cosine is a shifted sine of f32", "cos")
def _(call: Call) -> Any:
    x = call.operands[0].astype(np.float32)
    return np.where(np.isfinite(x), np.sin(x + np.float32(np.pi / 2)), call.right[0])


@mutant("exp overflows to the largest number", "exp")
def _(call: Call) -> Any:
    (right,), (x,) = call.right, call.operands
    if right.dtype != np.float32:
        return right
    return np.where(np.isinf(right) & np.isfinite(x), np.finfo(np.float32).max, right)


@mutant("exp of f64 is infinite a little before its end", "exp")
def _(call: Call) -> Any:
    (x,) = call.operands
    if x.dtype != np.float64:
        return call.right
    return np.where(x > 709.78271114955742909, np.inf, call.right[0])


@mutant("a tiny number leaves itself when it divides itself", "rem")
def _(call: Call) -> Any:
    a, b = call.operands
    if a.dtype != np.float32:
        return call.right
    return np.where((np.abs(a) == np.abs(b)) & (np.abs(a) < 1.5e-38) & (a != 0), a, call.right[0])


@mutant("a power is squared beyond the largest number", "pow")
def _(call: Call) -> Any:
    _base, exponent = call.operands
    (right,) = call.right
    if right.dtype not in (np.float32, np.float64):
        return right
    large = np.abs(right) > np.finfo(right.dtype).max * 0.999
    return np.where(np.isfinite(right) & large & (exponent < 1), np.inf, right)


@mutant("log1p is 0 below half a unit", "log1p")
def _(call: Call) -> Any:
    (x,) = call.operands
    if x.dtype not in (np.float32, np.float64):
        return call.right
    return np.where(np.abs(x) < np.finfo(x.dtype).eps / 2, x * 0, call.right[0])


@mutant("round adds a half and rounds down", "round")
def _(call: Call) -> Any:
    (x,) = call.operands
    if x.dtype not in (np.float32, np.float64):
        return call.right
    half = np.array(0.5, x.dtype)
    away = np.copysign(np.floor(np.abs(x) + half), x)
    tie = np.abs(x - np.trunc(x)) == half
    return np.where(tie | ~np.isfinite(x), call.right[0], away)


@mutant("tanh near 0 is a fraction", "tanh")
def _(call: Call) -> Any:
    x = call.operands[0].astype(np.float64)
    rough = x * (27 + x * x) / (27 + 9 * x * x)
    return np.where(np.abs(x) < 1, rough, call.right[0])


# --- signs, NaN, steps ---


@mutant("the sign of NaN is 0", "sign")
def _(call: Call) -> Any:
    (x,) = call.operands
    return np.where(np.isnan(x), 0, call.right[0]) if is_float(x) else call.right


@mutant("the sign of unsigned numbers is taken as signed", "sign")
def _(call: Call) -> Any:
    (x,) = call.operands
    if x.dtype.kind != "u":
        return call.right
    signed = x.view(np.dtype(f"i{x.dtype.itemsize}")) < 0
    return np.where(signed, np.array(-1).astype(x.dtype), call.right[0])


@mutant("floor cuts off", "floor")
def _(call: Call) -> Any:
    (x,) = call.operands
    return np.trunc(x.astype(np.float64))


@mutant("abs of MIN is MAX", "abs")
def _(call: Call) -> Any:
    (x,) = call.operands
    if x.dtype.kind != "i":
        return call.right
    ends = np.iinfo(x.dtype)
    return np.where(x == ends.min, ends.max, call.right[0])


@mutant("minimum drops a NaN on the right", "minimum")
def _(call: Call) -> Any:
    a, b = call.operands
    return np.where(np.isnan(b), a, call.right[0]) if is_float(a) else call.right


@mutant("clamp drops NaN", "clamp")
def _(call: Call) -> Any:
    low, x, _high = call.operands
    return np.where(np.isnan(x), low, call.right[0]) if is_float(x) else call.right


@mutant("rem takes the sign of the divisor", "rem")
def _(call: Call) -> Any:
    a, b = call.operands
    if a.dtype.kind != "i":
        return call.right
    safe = np.where(b == 0, 1, b)
    return np.where(b == 0, call.right[0], np.mod(a, safe))


@mutant("integer division rounds down", "div")
def _(call: Call) -> Any:
    a, b = call.operands
    if a.dtype.kind != "i":
        return call.right
    safe = np.where((b == 0) | (b == -1), 1, b)
    return np.where((b == 0) | (b == -1), call.right[0], a // safe)


@mutant("a number to the power 0 is NaN for NaN", "pow")
def _(call: Call) -> Any:
    base, exponent = call.operands
    if not is_float(base):
        return call.right
    return np.where(np.isnan(base) & (exponent == 0), np.nan, call.right[0])


@mutant("negative bases have no powers", "pow")
def _(call: Call) -> Any:
    base, _ = call.operands
    return np.where(base < 0, np.nan, call.right[0]) if is_float(base) else call.right
