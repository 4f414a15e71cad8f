"""Elementwise oracles: a function of Python numbers per op, applied element by element.

A function takes exact numbers (ints, bools, floats) and the result's dtype, and gives an int, a
float that needs no rounding, or an exact ratio that is rounded once afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ptir.types import DType, TensorType
from ptir_testsuite.oracles.expected import Expected, from_outcomes
from ptir_testsuite.oracles.floats import Array, Ratio, exponent_of, python_values
from ptir_testsuite.oracles.table import Given, oracle

Scalar = Callable[..., Any]


def by_element(name: str) -> Callable[[Scalar], Scalar]:
    """Make a function ``(*elements, dtype, **attributes)`` the oracle of the op ``name``."""

    def add(function: Scalar) -> Scalar:
        def expect(given: Given) -> list[Expected]:
            (result,) = given.results
            return [apply(function, given.arrays, given.types, result, given.attributes)]

        oracle(name)(expect)
        return function

    return add


def apply(
    function: Scalar,
    arrays: tuple[Array, ...],
    types: tuple[TensorType, ...],
    result: TensorType,
    attributes: Any,
) -> Expected:
    """The result of a scalar function on every element."""
    columns = [python_values(a, t.dtype) for a, t in zip(arrays, types, strict=True)]
    source = types[0].dtype
    outcomes = [function(*row, source, **attributes) for row in zip(*columns, strict=True)]
    return from_outcomes(outcomes, result)


def _ratio(x: float) -> Ratio:
    return x.as_integer_ratio()


# --- signs and whole numbers ---


@by_element("neg")
def _neg(x: Any, dtype: DType) -> Any:
    return -x


@by_element("abs")
def _abs(x: Any, dtype: DType) -> Any:
    return abs(x)


@by_element("sign")
def _sign(x: Any, dtype: DType) -> Any:
    if x == 0 or x != x:
        return x
    return 1 if x > 0 else -1


@by_element("floor")
def _floor(x: float, dtype: DType) -> float:
    return _whole(x, math.floor)


@by_element("ceil")
def _ceil(x: float, dtype: DType) -> float:
    return _whole(x, math.ceil)


@by_element("round")
def _round(x: float, dtype: DType) -> float:
    return _whole(x, round)


def _whole(x: float, direction: Callable[[float], int]) -> float:
    return math.copysign(float(direction(x)), x) if math.isfinite(x) else x


@by_element("is_finite")
def _is_finite(x: float, dtype: DType) -> bool:
    return math.isfinite(x)


@by_element("not")
def _not(x: Any, dtype: DType) -> Any:
    return not x if dtype.kind == "bool" else ~x


# --- arithmetic ---


@by_element("add")
def added(x: Any, y: Any, dtype: DType) -> Any:
    """The sum, not rounded yet."""
    if not dtype.is_float or not (math.isfinite(x) and math.isfinite(y)) or x == y == 0:
        return x + y
    (a, b), (c, d) = _ratio(x), _ratio(y)
    return a * d + c * b, b * d


@by_element("sub")
def _sub(x: Any, y: Any, dtype: DType) -> Any:
    return added(x, -y, dtype)


@by_element("mul")
def multiplied(x: Any, y: Any, dtype: DType) -> Any:
    """The product, not rounded yet."""
    if not dtype.is_float or not (math.isfinite(x) and math.isfinite(y)) or x == 0 or y == 0:
        return x * y
    (a, b), (c, d) = _ratio(x), _ratio(y)
    return a * c, b * d


@by_element("div")
def _div(x: Any, y: Any, dtype: DType) -> Any:
    return divided(x, y) if dtype.is_float else _divide_integers(x, y)


def _divide_integers(x: int, y: int) -> int:
    if y == 0:
        return -1
    quotient = abs(x) // abs(y)
    return quotient if (x < 0) == (y < 0) else -quotient


def divided(x: float, y: float) -> Any:
    """The quotient of floats, not rounded yet."""
    if x != x or y != y or (x == 0 and y == 0) or (math.isinf(x) and math.isinf(y)):
        return math.nan
    sign = math.copysign(1.0, x) * math.copysign(1.0, y)
    if y == 0 or math.isinf(x):
        return sign * math.inf
    if x == 0 or math.isinf(y):
        return sign * 0.0
    (a, b), (c, d) = _ratio(x), _ratio(y)
    return (a * d, b * c) if c > 0 else (-a * d, -b * c)


@by_element("reciprocal")
def _reciprocal(x: float, dtype: DType) -> Any:
    return divided(1.0, x)


@by_element("rem")
def _rem(x: Any, y: Any, dtype: DType) -> Any:
    if not dtype.is_float:
        return x if y == 0 else int(math.copysign(1, x)) * (abs(x) % abs(y))
    if not math.isfinite(x) or y != y or y == 0:
        return math.nan
    if math.isinf(y):
        return x
    (a, b), (c, d) = _ratio(abs(x)), _ratio(abs(y))
    rest = (a * d) % (c * b)
    return (int(math.copysign(1, x)) * rest, b * d) if rest else math.copysign(0.0, x)


@by_element("sqrt")
def _sqrt(x: float, dtype: DType) -> Any:
    if x == 0 or x != x or x == math.inf:
        return x
    return math.nan if x < 0 else square_root(*_ratio(x))


def square_root(numerator: int, denominator: int) -> Ratio:
    """The root of a positive ratio to 128 bits, and one bit more that says that it is inexact."""
    shift = max(0, 256 - exponent_of(numerator, denominator))
    shift += shift % 2
    scaled = (numerator << shift) // denominator
    root = math.isqrt(scaled)
    inexact = root * root != scaled or (numerator << shift) % denominator != 0
    return 2 * root + inexact, 1 << (shift // 2 + 1)


@by_element("maximum")
def _maximum(x: Any, y: Any, dtype: DType) -> Any:
    return greater(x, y)


@by_element("minimum")
def _minimum(x: Any, y: Any, dtype: DType) -> Any:
    return lesser(x, y)


def greater(x: Any, y: Any) -> Any:
    """The greater number: NaN if either is, and -0 below +0."""
    if x != x or y != y:
        return math.nan
    if x == y == 0 and isinstance(x, float):
        return math.copysign(0.0, max(math.copysign(1.0, x), math.copysign(1.0, y)))
    return x if x > y else y


def lesser(x: Any, y: Any) -> Any:
    """The lesser number: NaN if either is, and -0 below +0."""
    if x != x or y != y:
        return math.nan
    if x == y == 0 and isinstance(x, float):
        return math.copysign(0.0, min(math.copysign(1.0, x), math.copysign(1.0, y)))
    return x if x < y else y


@by_element("clamp")
def _clamp(low: Any, x: Any, high: Any, dtype: DType) -> Any:
    return lesser(greater(x, low), high)


@by_element("select")
def _select(predicate: bool, on_true: Any, on_false: Any, dtype: DType) -> Any:
    return on_true if predicate else on_false


# --- bits ---


@by_element("and")
def _and(x: Any, y: Any, dtype: DType) -> Any:
    return x & y


@by_element("or")
def _or(x: Any, y: Any, dtype: DType) -> Any:
    return x | y


@by_element("xor")
def _xor(x: Any, y: Any, dtype: DType) -> Any:
    return x ^ y


@by_element("shift_left")
def _shift_left(x: int, amount: int, dtype: DType) -> int:
    return x << amount if 0 <= amount < dtype.bits else 0


@by_element("shift_right")
def _shift_right(x: int, amount: int, dtype: DType) -> int:
    inside = 0 <= amount < dtype.bits
    return x >> amount if inside else (-1 if x < 0 else 0)


@by_element("compare")
def _compare(x: Any, y: Any, dtype: DType, *, direction: str) -> bool:
    holds = {"eq": x == y, "ne": x != y, "lt": x < y, "le": x <= y, "gt": x > y, "ge": x >= y}
    return bool(holds[direction])


# --- conversions ---


@oracle("cast")
def _cast(given: Given) -> list[Expected]:
    (result,) = given.results
    source, target = given.types[0].dtype, result.dtype
    values = python_values(given.arrays[0], source)
    return [from_outcomes([_converted(v, source, target) for v in values], result)]


def _converted(value: Any, source: DType, target: DType) -> Any:
    if target.kind == "bool":
        return value != 0
    if target.is_float:
        return _as_float(value)
    return _saturated(value, target) if source.is_float else int(value)


def _as_float(value: Any) -> Any:
    if isinstance(value, float):
        return value.as_integer_ratio() if math.isfinite(value) and value else value
    return (int(value), 1)


def _saturated(value: float, target: DType) -> int:
    if value != value:
        return 0
    signed = target.kind == "int"
    low = -(1 << (target.bits - 1)) if signed else 0
    high = (1 << (target.bits - signed)) - 1
    if math.isinf(value):
        return high if value > 0 else low
    return min(max(math.trunc(value), low), high)


@oracle("bitcast")
def _bitcast(given: Given) -> list[Expected]:
    import numpy as np

    (result,) = given.results
    raw = np.ascontiguousarray(given.arrays[0]).tobytes()
    array = np.frombuffer(raw, result.dtype.numpy).reshape(result.shape)
    return [Expected(array)]


@oracle("stop_gradient")
def _stop_gradient(given: Given) -> list[Expected]:
    return [Expected(given.arrays[0])]
