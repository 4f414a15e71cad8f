"""The reference of elementwise ops on NumPy arrays, exact where plain NumPy is not.

Arguments are arrays of any PTIR dtype the op is defined for (0-d ones included); results are fresh
arrays of the op's result dtype. No NumPy warning leaves this module.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from ptir.ops.numerics.rounding import Array, numeric, round_to, through_f64
from ptir.types import dtype_of

# --- unary ---


@numeric
def neg(x: Array) -> Any:
    """``-x``; integers wrap, unsigned ones included."""
    return np.negative(x)


@numeric
def abs(x: Array) -> Any:
    """``|x|``; the smallest signed integer is its own."""
    return np.absolute(x)


@numeric
def sign(x: Array) -> Any:
    """-1, 0 or 1; floats keep ``-0`` and NaN."""
    one = np.ones((), x.dtype)
    if not dtype_of(x).is_float:
        return np.sign(x)
    return np.where(np.isnan(x) | (x == 0), x, np.copysign(one, x))


exp = through_f64(np.exp)
expm1 = through_f64(np.expm1)
log = through_f64(np.log)
log1p = through_f64(np.log1p)
sin = through_f64(np.sin)
cos = through_f64(np.cos)
tanh = through_f64(np.tanh)
rsqrt = through_f64(lambda x: 1.0 / np.sqrt(x))


@numeric
def sqrt(x: Array) -> Any:
    """The correctly rounded square root; negative numbers give NaN, ``-0`` gives ``-0``."""
    return np.sqrt(x)


@numeric
def reciprocal(x: Array) -> Any:
    """The correctly rounded ``1 / x``."""
    return np.ones((), x.dtype) / x


@numeric
def floor(x: Array) -> Any:
    """The largest whole number not above ``x``."""
    return np.floor(x)


@numeric
def ceil(x: Array) -> Any:
    """The smallest whole number not below ``x``; keeps the sign of a zero result."""
    return np.ceil(x)


@numeric
def round(x: Array) -> Any:
    """The nearest whole number, halves to even."""
    return np.rint(x)


@numeric
def is_finite(x: Array) -> Any:
    """Whether elements are neither infinite nor NaN."""
    return np.isfinite(x)


@numeric
def not_(x: Array) -> Any:
    """Logical not of bool, bitwise not of integers."""
    return np.invert(x)


@numeric
def stop_gradient(x: Array) -> Any:
    """The elements themselves."""
    return x


# --- binary ---


@numeric
def add(a: Array, b: Array) -> Any:
    """``a + b``, wrapping or correctly rounded."""
    return np.add(a, b)


@numeric
def sub(a: Array, b: Array) -> Any:
    """``a - b``, wrapping or correctly rounded."""
    return np.subtract(a, b)


@numeric
def mul(a: Array, b: Array) -> Any:
    """``a * b``, wrapping or correctly rounded."""
    return np.multiply(a, b)


@numeric
def div(a: Array, b: Array) -> Any:
    """``a / b``; integers truncate, by zero give all ones, and the smallest over -1 wraps."""
    if dtype_of(a).is_float:
        return np.divide(a, b)
    exact = a - np.fmod(a, b)
    return np.where(b == 0, ~np.zeros((), a.dtype), np.floor_divide(exact, b))


@numeric
def rem(a: Array, b: Array) -> Any:
    """The remainder of truncating division, signed like ``a``; integers by zero give ``a``."""
    if dtype_of(a).is_float:
        return np.fmod(a, b)
    return np.where(b == 0, a, np.fmod(a, b))


@numeric
def pow(a: Array, b: Array) -> Any:
    """``a`` to the power ``b``; integers wrap, and a negative exponent gives 1, -1 or 0."""
    kind = dtype_of(a)
    if kind.is_float:
        wide = np.power(a.astype(np.float64), b.astype(np.float64))
        return round_to(np.asarray(wide), kind)
    result, square, bits = np.ones_like(a), a, b.view(f"u{kind.itemsize}")
    for _ in range(kind.bits):
        result = np.where(bits & 1, result * square, result)
        square, bits = square * square, bits >> 1
    by_parity = np.where(b & 1, a, -a)
    inverse = np.where(a == 1, a, np.where(a == -1, by_parity, np.zeros((), a.dtype)))
    return np.where(b < 0, inverse, result)


@numeric
def maximum(a: Array, b: Array) -> Any:
    """The larger element; NaN if either is, and ``-0 < +0``."""
    return np.where((a == 0) & (b == 0), a + b, np.maximum(a, b))


@numeric
def minimum(a: Array, b: Array) -> Any:
    """The smaller element; NaN if either is, and ``-0 < +0``."""
    return np.where((a == 0) & (b == 0), -(-a + -b), np.minimum(a, b))


@numeric
def and_(a: Array, b: Array) -> Any:
    """Logical and of bool, bitwise and of integers."""
    return np.bitwise_and(a, b)


@numeric
def or_(a: Array, b: Array) -> Any:
    """Logical or of bool, bitwise or of integers."""
    return np.bitwise_or(a, b)


@numeric
def xor(a: Array, b: Array) -> Any:
    """Logical exclusive or of bool, bitwise exclusive or of integers."""
    return np.bitwise_xor(a, b)


@numeric
def shift_left(a: Array, amount: Array) -> Any:
    """Bits moved up, zeros enter; an amount (read as unsigned) of the width or more gives 0."""
    inside, safe = _amount(amount)
    return np.where(inside, np.left_shift(a, safe), np.zeros((), a.dtype))


@numeric
def shift_right(a: Array, amount: Array) -> Any:
    """Bits moved down: the sign enters for signed, zeros for unsigned; amounts as shift_left."""
    inside, safe = _amount(amount)
    sign_bits = np.where(a < 0, ~np.zeros((), a.dtype), np.zeros((), a.dtype))
    return np.where(inside, np.right_shift(a, safe), sign_bits)


def _amount(amount: Array) -> tuple[Array, Array]:
    inside = (amount >= 0) & (amount < dtype_of(amount).bits)
    return inside, np.where(inside, amount, np.zeros((), amount.dtype))


_COMPARE: Final[dict[str, Callable[[Array, Array], Any]]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}


@numeric
def compare(a: Array, b: Array, *, direction: str) -> Any:
    """Whether ``a direction b``; with NaN only ``ne`` holds."""
    return _COMPARE[direction](a, b)


# --- ternary ---


@numeric
def select(predicate: Array, on_true: Array, on_false: Array) -> Any:
    """``on_true`` where the predicate holds, else ``on_false``."""
    return np.where(predicate, on_true, on_false)


def clamp(low: Array, operand: Array, high: Array) -> Array:
    """``minimum(maximum(operand, low), high)``: NaN propagates, ``high`` wins over ``low``."""
    return minimum(maximum(operand, low), high)
