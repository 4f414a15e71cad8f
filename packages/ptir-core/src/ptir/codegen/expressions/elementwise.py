"""What elementwise ops are in scalar expressions: one row each in ``ELEMENTWISE``.

The rows spell out the semantics of DESIGN §3 (wrapping, NaN, signed zeros, division by zero) with
the few scalar ops that every dialect has, so that no dialect can get them wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

from ptir.codegen.expressions.expr import Apply, Const, Expr, compare, constant, select
from ptir.codegen.expressions.float8 import F8, from_f8, to_f8
from ptir.types import BF16, BOOL, DTYPES, F16, F32, F64, I32, U32, DType

Rule = Callable[..., Expr]

NARROW: Final = (F16, BF16)


def rounded(dtype: DType, expr: Expr) -> Expr:
    """A result computed as carried, rounded to ``dtype`` where that is narrower."""
    return Apply(dtype, "narrow", expr) if dtype in NARROW else expr


def _plain(op: str) -> Rule:
    """The scalar op of the same meaning."""

    def rule(dtype: DType, /, *args: Expr, **_: Any) -> Expr:
        return rounded(dtype, Apply(dtype, op, *args))

    return rule


def zero(dtype: DType) -> Const:
    """The constant 0."""
    return constant(dtype, 0)


def _sub(dtype: DType, a: Expr, b: Expr) -> Expr:
    """A difference; 0 - x of integers is the negation that dialects know how to write."""
    if dtype.is_integer and isinstance(a, Const) and not a.value:
        return -b
    return rounded(dtype, a - b)


def _abs(dtype: DType, x: Expr) -> Expr:
    if dtype.is_float:
        return Apply(dtype, "abs", x)
    if dtype.kind == "uint":
        return x
    return select(compare("lt", x, 0), -x, x)


def _sign(dtype: DType, x: Expr) -> Expr:
    """Floats keep -0 and NaN: what is neither above nor below zero is its own sign."""
    below = select(compare("lt", x, 0), constant(dtype, -1), x)
    if dtype.kind == "uint":
        below = x
    return select(compare("gt", x, 0), constant(dtype, 1), below)


def _is_finite(dtype: DType, x: Expr) -> Expr:
    return compare("lt", Apply(x.dtype, "abs", x), math.inf)


def _safe_divisor(dtype: DType, a: Expr, b: Expr) -> Expr:
    """``b``, or 1 where the machine's division would trap."""
    unsafe = compare("eq", b, 0)
    if dtype.kind == "int":
        least = compare("eq", a, -(1 << (dtype.bits - 1)))
        minus = compare("eq", b, -1)
        unsafe = unsafe | (least & minus)
    return select(unsafe, constant(dtype, 1), b)


def _div(dtype: DType, a: Expr, b: Expr) -> Expr:
    if dtype.is_float:
        return rounded(dtype, a / b)
    ones = constant(dtype, -1 if dtype.kind == "int" else (1 << dtype.bits) - 1)
    quotient = a / _safe_divisor(dtype, a, b)
    return select(compare("eq", b, 0), ones, quotient)


def _rem(dtype: DType, a: Expr, b: Expr) -> Expr:
    if dtype.is_float:
        return rounded(dtype, Apply(dtype, "rem", a, b))
    remainder = Apply(dtype, "rem", a, _safe_divisor(dtype, a, b))
    return select(compare("eq", b, 0), a, remainder)


def _pow(dtype: DType, a: Expr, b: Expr) -> Expr:
    if dtype.is_float:
        return rounded(dtype, Apply(dtype, "pow", a, b))
    one, square, bits = constant(dtype, 1), a, b
    result: Expr = one
    for _ in range(dtype.bits):
        odd = compare("ne", bits & one, 0)
        result = select(odd, result * square, result)
        square = square * square
        bits = bits >> one
    if dtype.kind == "uint":
        return result
    odd = compare("ne", b & one, 0)
    minus = select(odd, a, -a)
    inverse = select(compare("eq", a, -1), minus, zero(dtype))
    inverse = select(compare("eq", a, one), a, inverse)
    return select(compare("lt", b, 0), inverse, result)


def _extreme(whole: str, direction: str, zeros: str) -> Rule:
    """The greater or smaller: NaN from either side stays, and -0 < +0."""

    def rule(dtype: DType, a: Expr, b: Expr) -> Expr:
        if not dtype.is_float:
            return Apply(dtype, whole, a, b)
        if isinstance(a, Const):
            a, b = b, a
        if isinstance(b, Const) and _is_plain_bound(direction, b.value):
            return _bounded(dtype, direction, a, b)
        bits = DTYPES[f"u{max(32, dtype.bits)}"]
        both = Apply(bits, zeros, Apply(bits, "bits", a), Apply(bits, "bits", b))
        equal = Apply(dtype, "bits", both)
        rest = select(compare("eq", a, b), equal, a + b)
        return select(compare(direction, a, b), a, select(compare(direction, b, a), b, rest))

    return rule


def _is_plain_bound(direction: str, value: float) -> bool:
    """Whether a comparison decides against a constant: it is no NaN, and a zero only as in relu.

    Compilers do not agree on which zero ``-0.0f > x ? -0.0f : x`` gives.
    """
    if value == 0:
        return direction == "gt" and math.copysign(1.0, value) > 0
    return not math.isnan(value)


def _bounded(dtype: DType, direction: str, x: Expr, bound: Const) -> Expr:
    """``x``, and the constant where that lies beyond it; NaN compares as false, so it stays.

    Adding +0 to what is bounded by +0 changes -0 alone.
    """
    found = select(compare(direction, bound, x), bound, x)
    return found if bound.value else found + bound


maximum: Final = _extreme("max", "gt", "and")
minimum: Final = _extreme("min", "lt", "or")


def _clamp(dtype: DType, low: Expr, x: Expr, high: Expr) -> Expr:
    return minimum(dtype, maximum(dtype, x, low), high)


def _shift(op: str) -> Rule:
    """Amounts of the width or more give 0, or the sign."""

    def rule(dtype: DType, x: Expr, amount: Expr) -> Expr:
        most = constant(dtype, dtype.bits - 1)
        inside = compare("le", amount, most)
        if dtype.kind == "int":
            inside = inside & compare("ge", amount, 0)
        if op == "shift_right" and dtype.kind == "int":
            return Apply(dtype, op, x, select(inside, amount, most))
        shifted = Apply(dtype, op, x, select(inside, amount, zero(dtype)))
        return select(inside, shifted, zero(dtype))

    return rule


def _compare(dtype: DType, a: Expr, b: Expr, *, direction: str) -> Expr:
    if a.dtype == BOOL:
        a, b = (select(x, constant(I32, 1), constant(I32, 0)) for x in (a, b))
    return compare(direction, a, b)


def _select(dtype: DType, predicate: Expr, on_true: Expr, on_false: Expr) -> Expr:
    return select(predicate, on_true, on_false)


def cast(target: DType, x: Expr) -> Expr:
    """``x`` converted: saturating from floats, wrapping between integers, rounding once."""
    source = x.dtype
    if source == target:
        return x
    if source in F8:
        return cast(target, from_f8(x))
    if target in F8:
        return to_f8(target, _as_f32_to_odd(cast(F32, x) if source == BOOL else x))
    if source == BOOL:
        return select(x, constant(target, 1), constant(target, 0))
    if target == BOOL:
        return compare("ne", x, 0)
    if source.is_float and target.is_integer:
        number = compare("eq", x, x)
        return select(number, Apply(target, "convert", x), zero(target))
    if target not in NARROW:
        return Apply(target, "convert", x)
    return Apply(target, "narrow", _as_f32_to_odd(x))


def _as_f32_to_odd(x: Expr) -> Expr:
    """A number as f32, its last bit set where inexact: rounding it again then rounds once."""
    source = x.dtype
    if source.is_integer and source.bits == 64:
        return _wide_to_odd(x)
    if source.is_integer:
        x = Apply(F32, "convert", _shortened(x) if source.bits == 32 else x)
    return _f64_to_odd(x) if x.dtype == F64 else x


def _shortened(x: Expr) -> Expr:
    """A 32-bit integer that f32 holds: of a large one, the low bits become a single one."""
    dtype, digits = x.dtype, 24
    low = constant(dtype, (1 << (dtype.bits - digits)) - 1)
    one = constant(dtype, 1 << (dtype.bits - digits))
    lost = compare("ne", x & low, 0)
    high = x & ~low
    short = high | select(lost, one, zero(dtype))
    large = compare("ge", x, 1 << digits)
    if dtype.kind == "int":
        below = compare("lt", x, -(1 << digits))
        large = large | below
    return select(large, short, x)


def _wide_to_odd(x: Expr) -> Expr:
    """A 64-bit integer as f32; what rounds up beyond all integers may stay rounded up."""
    nearest = Apply(F32, "convert", x)
    back = Apply(x.dtype, "convert", nearest)
    away = compare("gt", back, x)
    if x.dtype.kind == "int":
        negative = compare("lt", x, 0)
        away = select(negative, compare("lt", back, x), away)
    return _made_odd(nearest, away, compare("ne", back, x))


def _f64_to_odd(x: Expr) -> Expr:
    nearest = Apply(F32, "convert", x)
    back = Apply(F64, "convert", nearest)
    away = compare("gt", Apply(F64, "abs", back), Apply(F64, "abs", x))
    return _made_odd(nearest, away, compare("ne", back, x))


def _made_odd(nearest: Expr, away: Expr, inexact: Expr) -> Expr:
    """An f32 moved towards zero where it was rounded ``away``, odd where it is inexact."""
    one, none = constant(U32, 1), constant(U32, 0)
    bits = Apply(U32, "bits", nearest) - select(away, one, none)
    return Apply(F32, "bits", bits | select(inexact, one, none))


def _cast(target: DType, x: Expr, /, **_: Any) -> Expr:
    return cast(target, x)


def _bitcast(target: DType, x: Expr, /, **_: Any) -> Expr:
    return x if x.dtype == target else Apply(target, "bits", x)


def _rsqrt(dtype: DType, x: Expr) -> Expr:
    return rounded(dtype, constant(dtype, 1) / Apply(dtype, "sqrt", x))


def _reciprocal(dtype: DType, x: Expr) -> Expr:
    return rounded(dtype, constant(dtype, 1) / x)


def _same(dtype: DType, x: Expr) -> Expr:
    return x


PLAIN: Final = (
    *("neg", "add", "mul", "and", "or", "xor", "not"),
    *("exp", "expm1", "log", "log1p", "sqrt", "sin", "cos", "tanh", "erf"),
    *("floor", "ceil", "round"),
)

ELEMENTWISE: Final[dict[str, Rule]] = {name: _plain(name) for name in PLAIN} | {
    "abs": _abs,
    "sub": _sub,
    "sign": _sign,
    "rsqrt": _rsqrt,
    "reciprocal": _reciprocal,
    "is_finite": _is_finite,
    "stop_gradient": _same,
    "div": _div,
    "rem": _rem,
    "pow": _pow,
    "maximum": maximum,
    "minimum": minimum,
    "clamp": _clamp,
    "shift_left": _shift("shift_left"),
    "shift_right": _shift("shift_right"),
    "compare": _compare,
    "select": _select,
    "cast": _cast,
    "bitcast": _bitcast,
}
"""``rule(result dtype, *operands, **attributes)`` by op name."""

COSTLY: Final = frozenset(
    ("exp", "expm1", "log", "log1p", "sin", "cos", "tanh", "erf", "pow", "div", "rem", "sqrt")
) | frozenset(("rsqrt", "reciprocal"))
"""Ops that are worth storing rather than computing again."""
