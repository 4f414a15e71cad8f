"""Changes that no program may notice: a suite that catches one holds backends to too much."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from ptir.types import DTYPES
from ptir_testsuite.mutants.harness import Call, is_float, mutant

EQUIVALENT: Final[dict[str, str]] = {
    "operands of add change places": "addition commutes, and any NaN stands for any other",
    "sums run backwards": "the order of summation is free, and both orders are within the bound",
    "NaN has the other sign": "of NaN only that it is NaN is defined, until its bits are looked at",
    "f32 products add up in f64": "more precise than the bound asks, rounded once",
    "max keeps the last of equals": "equal numbers are the same bits, but for zeros, whose order"
    " is defined",
    "the smallest exponential is flushed": "0 is one unit off, and exp may be 3 off",
    "a dense copy is made of every operand": "handles are values; where they lie is the backend's",
}
"""Each with the reason why it changes nothing that is defined."""


@mutant("operands of add change places", "add")
def _(call: Call) -> Any:
    a, b = call.operands
    return call.again(b, a)


@mutant("sums run backwards", "reduce")
def _(call: Call) -> Any:
    (x,) = call.operands
    return call.again(np.flip(x, call["axes"])) if call["kind"] == "sum" else call.right


@mutant("NaN has the other sign", "exp", "maximum", "reduce")
def _(call: Call) -> Any:
    (right,) = call.right
    return np.where(np.isnan(right), -right, right) if is_float(right) else right


@mutant("f32 products add up in f64", "dot_general")
def _(call: Call) -> Any:
    lhs, rhs = call.operands
    if lhs.dtype != np.float32 or rhs.dtype != np.float32:
        return call.right
    return call.again(lhs.astype(np.float64), rhs.astype(np.float64), dtype=DTYPES["f64"])


@mutant("max keeps the last of equals", "maximum")
def _(call: Call) -> Any:
    a, b = call.operands
    return np.where((a == b) & (a != 0), b, call.right[0])


@mutant("a dense copy is made of every operand", "transpose", "take")
def _(call: Call) -> Any:
    return call.again(*(np.array(x, order="C") for x in call.operands))


@mutant("the smallest exponential is flushed", "exp")
def _(call: Call) -> Any:
    (right,) = call.right
    if right.dtype not in (np.float32, np.float64):
        return right
    return np.where(right == np.finfo(right.dtype).smallest_subnormal, 0, right)
