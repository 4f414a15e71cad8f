"""Planted faults in elementwise ops: signs, zeros, NaN, rounding, accuracy, integers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ptir_testsuite.mutants.harness import Call, is_float, mutant

# --- signs, zeros, NaN ---


@mutant("negation as 0 - x loses the sign of zero", "neg")
def _(call: Call) -> Any:
    return np.zeros((), call.right[0].dtype) - call.operands[0]


@mutant("maximum drops a NaN on the left", "maximum")
def _(call: Call) -> Any:
    a, b = call.operands
    return np.where(np.isnan(a), b, call.right[0]) if is_float(a) else call.right


@mutant("minimum takes either zero", "minimum")
def _(call: Call) -> Any:
    a, b = call.operands
    return np.where((a == b), a, call.right[0])


@mutant("abs of NaN is 0", "abs")
def _(call: Call) -> Any:
    (x,) = call.operands
    return np.where(np.isnan(x), 0, call.right[0]) if is_float(x) else call.right


@mutant("ne of two NaN is false", "compare")
def _(call: Call) -> Any:
    a, b = call.operands
    if call["direction"] != "ne" or not is_float(a):
        return call.right
    return call.right[0] & ~(np.isnan(a) & np.isnan(b))


@mutant("clamp lets low win over high", "clamp")
def _(call: Call) -> Any:
    low, x, high = call.operands
    return np.maximum(np.minimum(x, high), low)


@mutant("ceil of (-1, 0) is +0", "ceil")
def _(call: Call) -> Any:
    return call.right[0] + np.zeros((), call.right[0].dtype)


@mutant("infinities count as finite", "is_finite")
def _(call: Call) -> Any:
    return ~np.isnan(call.operands[0])


# --- rounding and accuracy ---


@mutant("round takes halves away from zero", "round")
def _(call: Call) -> Any:
    (x,) = call.operands
    wide = x.astype(np.float64)
    return np.copysign(np.floor(np.abs(wide) + 0.5), wide)


@mutant("erf by the five-term formula of Abramowitz and Stegun", "erf")
def _(call: Call) -> Any:
    x = call.operands[0].astype(np.float64)
    t = 1 / (1 + 0.3275911 * np.abs(x))
    terms = (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592, 0.0)
    return np.copysign(1 - np.polyval(terms, t) * np.exp(-x * x), x)


@mutant("log1p as log(1 + x)", "log1p")
def _(call: Call) -> Any:
    (x,) = call.operands
    return np.log((x + np.ones((), x.dtype)).astype(np.float64))


@mutant("expm1 as exp(x) - 1", "expm1")
def _(call: Call) -> Any:
    (x,) = call.operands
    return np.exp(x.astype(np.float64)).astype(x.dtype) - np.ones((), x.dtype)


@mutant("exp flushes subnormal results to zero", "exp")
def _(call: Call) -> Any:
    (right,) = call.right
    wide = right.astype(np.float64)
    return np.where(wide < float(np.finfo(np.float32).tiny), 0, wide)


@mutant("sine reduces its angle with a short pi", "sin")
def _(call: Call) -> Any:
    x = call.operands[0].astype(np.float64)
    pi = float(np.float32(math.pi))
    turns = np.rint(x / (2 * pi))
    return np.where(np.abs(x) < 1e30, np.sin(x - turns * 2 * pi), call.right[0])


@mutant("tanh is 1 from 5 on", "tanh")
def _(call: Call) -> Any:
    x = call.operands[0].astype(np.float64)
    return np.where(np.abs(x) > 5, np.sign(x), call.right[0])


@mutant("rsqrt by one Newton step", "rsqrt")
def _(call: Call) -> Any:
    right = call.right[0].astype(np.float64)
    return np.where(np.isfinite(right), right * (1 + 3e-6), right)


@mutant("division multiplies by a rounded reciprocal", "div")
def _(call: Call) -> Any:
    a, b = call.operands
    return a * (np.ones((), a.dtype) / b) if is_float(a) else call.right


@mutant("float remainder rounds its quotient down", "rem")
def _(call: Call) -> Any:
    a, b = call.operands
    return np.mod(a, b) if is_float(a) else call.right


@mutant("casts to bf16 cut bits off", "cast")
def _(call: Call) -> Any:
    if call["dtype"].name != "bf16" or not is_float(call.operands[0]):
        return call.right
    wide = call.operands[0].astype(np.float32)
    cut = (np.ascontiguousarray(wide).view(np.uint32) & 0xFFFF0000).view(np.float32)
    return np.where(np.isfinite(wide), cut.reshape(wide.shape), wide)


@mutant("casts to bf16 and f16 round twice, through f32", "cast")
def _(call: Call) -> Any:
    if call["dtype"].name not in ("bf16", "f16"):
        return call.right
    return call.operands[0].astype(np.float32).astype(call.right[0].dtype)


# --- integers ---


@mutant("integer addition saturates", "add")
def _(call: Call) -> Any:
    a, b = call.operands
    if is_float(a):
        return call.right
    ends = np.iinfo(a.dtype)
    exact = a.astype(object) + b.astype(object)
    return np.minimum(np.maximum(exact, int(ends.min)), int(ends.max))


@mutant("MIN / -1 is MAX", "div")
def _(call: Call) -> Any:
    a, b = call.operands
    if a.dtype.kind != "i":
        return call.right
    ends = np.iinfo(a.dtype)
    return np.where((a == ends.min) & (b == -1), ends.max, call.right[0])


@mutant("shift amounts are taken modulo the width", "shift_left", "shift_right")
def _(call: Call) -> Any:
    x, amount = call.operands
    bits = np.array(8 * x.dtype.itemsize - 1, x.dtype)
    return call.again(x, amount & bits)


@mutant("NaN becomes the smallest integer", "cast")
def _(call: Call) -> Any:
    (x,), target = call.operands, call["dtype"]
    if not is_float(x) or not target.is_integer:
        return call.right
    return np.where(np.isnan(x.astype(np.float64)), np.iinfo(target.numpy).min, call.right[0])


@mutant("an integer to a negative power is 0", "pow")
def _(call: Call) -> Any:
    base, exponent = call.operands
    return call.right if is_float(base) else np.where(exponent < 0, 0, call.right[0])


@mutant("integer sums saturate", "reduce")
def _(call: Call) -> Any:
    if call["kind"] != "sum":
        return call.right
    ends = {"i": np.iinfo, "u": np.iinfo}.get(call.right[0].dtype.kind)
    if ends is None:
        return call.right
    exact = call.operands[0].astype(object).sum(axis=tuple(call["axes"]))
    info = ends(call.right[0].dtype)
    return np.minimum(np.maximum(exact, int(info.min)), int(info.max))
