"""Transcendental oracles: mpmath at 160 bits, rounded once; special values spelled out."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

from mpmath import mp, mpf  # type: ignore[import-untyped]

from ptir.types import DType
from ptir_testsuite.oracles.elementwise import by_element, square_root
from ptir_testsuite.oracles.floats import Ratio

PRECISION: Final = 160
FAR: Final = 20_000  # a power of two beyond every format, in either direction
TOO_LARGE: Final[Ratio] = (1 << FAR, 1)
TOO_SMALL: Final[Ratio] = (1, 1 << FAR)


def ratio_of(number: Any) -> Ratio:
    """An mpmath number as an exact ratio."""
    sign, mantissa, exponent, _ = number._mpf_
    signed = -int(mantissa) if sign else int(mantissa)
    return (signed << exponent, 1) if exponent >= 0 else (signed, 1 << -exponent)


def _unary(
    name: str,
    function: Callable[[Any], Any],
    at_infinities: tuple[float, float],
    zero: Callable[[float], float] = lambda x: x,
    range_of: Callable[[float], Any] = lambda x: None,
) -> None:
    """Add the oracle of ``function``.

    Given are its values at -inf and +inf, at a zero, and where it leaves every format or is NaN.
    """

    @by_element(name)
    def expect(x: float, dtype: DType) -> Any:
        if x != x:
            return x
        if math.isinf(x):
            return at_infinities[x > 0]
        if x == 0:
            return zero(x)
        special = range_of(x)
        if special is not None:
            return special
        with mp.workprec(PRECISION):
            return ratio_of(function(mpf(x)))


def _exp_range(x: float) -> Ratio | None:
    return TOO_LARGE if x > 10_000 else TOO_SMALL if x < -10_000 else None


def _expm1_range(x: float) -> Ratio | None:
    return TOO_LARGE if x > 10_000 else (-(1 << FAR) + 1, 1 << FAR) if x < -10_000 else None


def _expm1(x: Any) -> Any:
    return mp.expm1(x) if abs(x) > mpf(2) ** -100 else x + x * x / 2


def _log1p_range(x: float) -> float | None:
    return math.nan if x < -1 else -math.inf if x == -1 else None


def _log1p(x: Any) -> Any:
    return mp.log1p(x) if abs(x) > mpf(2) ** -100 else x - x * x / 2


def _one(x: float) -> float:
    return 1.0


def _tanh_range(x: float) -> Ratio | None:
    if abs(x) < 10_000:
        return None
    return int(math.copysign(1, x)) * ((1 << FAR) - 1), 1 << FAR


_unary("exp", mp.exp, (0.0, math.inf), _one, _exp_range)
_unary("expm1", _expm1, (-1.0, math.inf), range_of=_expm1_range)
_unary(
    "log",
    mp.log,
    (math.nan, math.inf),
    lambda x: -math.inf,
    lambda x: math.nan if x < 0 else None,
)
_unary("log1p", _log1p, (math.nan, math.inf), range_of=_log1p_range)
_unary("sin", mp.sin, (math.nan, math.nan))
_unary("cos", mp.cos, (math.nan, math.nan), _one)
_unary("tanh", mp.tanh, (-1.0, 1.0), range_of=_tanh_range)
_unary("erf", mp.erf, (-1.0, 1.0), range_of=_tanh_range)


@by_element("rsqrt")
def _rsqrt(x: float, dtype: DType) -> Any:
    if x != x or x < 0:
        return math.nan
    if x == 0:
        return math.copysign(math.inf, x)
    if math.isinf(x):
        return 0.0
    numerator, denominator = x.as_integer_ratio()
    return square_root(denominator, numerator)


@by_element("pow")
def _pow(x: Any, y: Any, dtype: DType) -> Any:
    return float_power(x, y) if dtype.is_float else integer_power(x, y, dtype)


def integer_power(x: int, y: int, dtype: DType) -> int:
    """Base to the power exponent modulo 2**bits; a negative exponent gives 1, -1 or 0."""
    if y >= 0:
        return pow(x, y, 1 << dtype.bits)
    return {1: 1, -1: -1 if y % 2 else 1}.get(x, 0)


def float_power(x: float, y: float) -> Any:
    """IEEE 754 pow: the special cases in the standard's order, then mpmath."""
    if y == 0 or x == 1:
        return 1.0
    if x != x or y != y:
        return math.nan
    whole = math.isinf(y) or y == math.floor(y)
    odd = math.isfinite(y) and whole and y % 2 == 1
    if math.isinf(y):
        return 1.0 if abs(x) == 1 else math.inf if (abs(x) > 1) == (y > 0) else 0.0
    if x == 0 or math.isinf(x):
        size = 0.0 if (abs(x) < 1) == (y > 0) else math.inf
        return math.copysign(size, x) if odd else size
    if x < 0 and not whole:
        return math.nan
    sign = -1 if x < 0 and odd else 1
    numerator, denominator = _magnitude(abs(x), y)
    return sign * numerator, denominator


def _magnitude(x: float, y: float) -> Ratio:
    if x == 1:
        return (1, 1)
    with mp.workprec(PRECISION + 80):
        size = mpf(y) * mp.log(mpf(x), 2)
        if abs(size) > FAR:
            return TOO_LARGE if size > 0 else TOO_SMALL
        return ratio_of(mp.power(mpf(x), mpf(y)))
