"""The meaning of elementwise ops on NumPy arrays, exact where plain NumPy is not.

Arguments are arrays of any PTIR dtype the op is defined for (0-d ones included); results are fresh
arrays of the op's result dtype. No NumPy warning leaves this module.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final, ParamSpec

import numpy as np

from ptir.types import F32, DType, dtype_of

Array = np.ndarray[Any, np.dtype[Any]]
P = ParamSpec("P")


def numeric(body: Callable[P, Any]) -> Callable[P, Array]:
    """``body`` without floating-point warnings, its result an array even when 0-d."""

    @functools.wraps(body)
    def quiet(*args: P.args, **kwargs: P.kwargs) -> Array:
        with np.errstate(all="ignore"):
            return np.asarray(body(*args, **kwargs))

    return quiet


def through_f64(function: Callable[[Array], Any]) -> Callable[[Array], Array]:
    """``function`` computed in f64 and rounded once to the operand's dtype."""

    @numeric
    def body(x: Array) -> Any:
        return round_to(np.asarray(function(x.astype(np.float64))), dtype_of(x))

    return body


# --- casts ---


def round_to(x: Array, target: DType) -> Array:
    """An f64 array rounded once, half to even, to a float dtype."""
    if target.bits < F32.bits:
        x = _round_to_odd(x)
    return x.astype(target.numpy)


def _round_to_odd(x: Array) -> Array:
    """An f64 array as f32, the last bit set where inexact: rounding it again rounds once."""
    nearest = x.astype(np.float32)
    away = np.abs(nearest.astype(np.float64)) > np.abs(x)
    toward_zero = np.where(away, np.nextafter(nearest, np.float32(0)), nearest)
    inexact = toward_zero.astype(np.float64) != x
    bits: Array = np.bitwise_or(toward_zero.view(np.uint32), inexact)
    return bits.view(np.float32)


@numeric
def cast(x: Array, *, dtype: DType) -> Any:
    """Elements converted to ``dtype``.

    Float to integer truncates and saturates, NaN gives 0; integers wrap; to float rounds once,
    half to even; to bool is ``x != 0``, which NaN is.
    """
    source = dtype_of(x)
    if source == dtype:
        return x.copy()
    if source.is_float and source.bits < F32.bits:
        x = x.astype(np.float32)
    if dtype.kind == "bool":
        return x != 0
    if dtype.is_float:
        return _to_float(x, dtype)
    return _saturate(x, dtype) if source.is_float else x.astype(dtype.numpy)


def _to_float(x: Array, target: DType) -> Array:
    if x.dtype.kind == "f":
        return round_to(x, target) if x.dtype == np.float64 else x.astype(target.numpy)
    if target.bits >= F32.bits:
        return x.astype(target.numpy)
    if x.dtype.itemsize == 8:  # does not fit f64: keep 53 bits and whether any other was set
        odd = (x >> 11) | ((x & 0x7FF) != 0)
        small = np.abs(x.astype(np.float64)) < 2.0**53
        return round_to(np.where(small, x.astype(np.float64), odd * 2048.0), target)
    return round_to(x.astype(np.float64), target)


def _saturate(x: Array, target: DType) -> Array:
    ends = np.iinfo(target.numpy)
    low, above = float(ends.min), float(ends.max + 1)
    inside = (x > low) & (x < above)
    converted = np.where(inside, x, 0).astype(target.numpy)
    return np.where(x >= above, ends.max, np.where(x <= low, ends.min, converted)).astype(
        target.numpy
    )


@numeric
def bitcast(x: Array, *, dtype: DType) -> Any:
    """The same bits read as ``dtype``, which has the same width."""
    return x.view(dtype.numpy).copy()


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


# --- erf: W. J. Cody, Rational Chebyshev approximations for the error function, 1969 ---


def _polynomials(top: str, bottom: str) -> tuple[Array, Array]:
    """Numerator and denominator coefficients, highest power first."""
    return np.array(top.split(), np.float64), np.array(bottom.split(), np.float64)


_SMALL: Final = _polynomials(
    "1.85777706184603153e-1 3.16112374387056560e0 1.13864154151050156e2"
    " 3.77485237685302021e2 3.20937758913846947e3",
    "1 2.36012909523441209e1 2.44024637934444173e2 1.28261652607737228e3 2.84423683343917062e3",
)
_MIDDLE: Final = _polynomials(
    "2.15311535474403846e-8 5.64188496988670089e-1 8.88314979438837594e0"
    " 6.61191906371416295e1 2.98635138197400131e2 8.81952221241769090e2"
    " 1.71204761263407058e3 2.05107837782607147e3 1.23033935479799725e3",
    "1 1.57449261107098347e1 1.17693950891312499e2 5.37181101862009858e2"
    " 1.62138957456669019e3 3.29079923573345963e3 4.36261909014324716e3"
    " 3.43936767414372164e3 1.23033935480374942e3",
)
_LARGE: Final = _polynomials(
    "1.63153871373020978e-2 3.05326634961232344e-1 3.60344899949804439e-1"
    " 1.25781726111229246e-1 1.60837851487422766e-2 6.58749161529837803e-4",
    "1 2.56852019228982242e0 1.87295284992346725e0 5.27905102951428412e-1"
    " 6.05183413124413191e-2 2.33520497626869185e-3",
)
_ONE_FROM: Final = 6.0  # 1 - erf(6) is below half a unit in the last place of 1


def _ratio(polynomials: tuple[Array, Array], x: Array) -> Array:
    top, bottom = (np.polyval(coefficients, x) for coefficients in polynomials)
    return np.asarray(top / bottom)


def _erf_f64(x: Array) -> Array:
    y = np.minimum(np.abs(x), _ONE_FROM)
    small = x * _ratio(_SMALL, np.square(np.minimum(y, 0.46875)))
    middle = _ratio(_MIDDLE, np.clip(y, 0.46875, 4.0))
    z = 1.0 / np.square(np.maximum(y, 4.0))
    large = (1 / np.sqrt(np.pi) - z * _ratio(_LARGE, z)) / np.maximum(y, 4.0)
    head = np.trunc(y * 16) / 16
    decay = np.exp(-head * head) * np.exp(-(y - head) * (y + head))
    beyond = np.copysign(1 - decay * np.where(y <= 4.0, middle, large), x)
    return np.where(y <= 0.46875, small, beyond)


erf = through_f64(_erf_f64)


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
