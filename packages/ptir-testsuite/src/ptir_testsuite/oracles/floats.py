"""Float formats on exact numbers: rounding a rational once, half to even, and the size of an ULP.

Nothing here asks NumPy, ml_dtypes or a backend how to round; a format is four numbers and two
facts about its top. Every format is a subset of binary64, so a Python float holds any value.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

import numpy as np

from ptir.types import DType

Array = np.ndarray[Any, np.dtype[Any]]
Ratio = tuple[int, int]


@dataclass(frozen=True)
class Format:
    """A binary float format: precision with the hidden bit, exponents of its normal numbers.

    ``largest`` is its last finite number; what rounds beyond is infinite, or NaN without infinity.
    """

    precision: int
    emin: int
    emax: int
    largest: float
    has_infinity: bool = True

    @property
    def tiny(self) -> float:
        """The smallest number above zero."""
        return math.ldexp(1.0, self.emin - self.precision + 1)

    @property
    def normal(self) -> float:
        """The smallest normal number."""
        return math.ldexp(1.0, self.emin)

    @property
    def unit(self) -> float:
        """The unit roundoff: half the distance from 1 to the next number."""
        return math.ldexp(1.0, -self.precision)

    @property
    def beyond(self) -> float:
        """What a number that is too large becomes."""
        return math.inf if self.has_infinity else math.nan


def _ieee(precision: int, emax: int) -> Format:
    largest = math.ldexp(2.0 - math.ldexp(1.0, 1 - precision), emax)
    return Format(precision, 1 - emax, emax, largest)


FORMATS: Final[dict[str, Format]] = {
    "f64": _ieee(53, 1023),
    "f32": _ieee(24, 127),
    "bf16": _ieee(8, 127),
    "f16": _ieee(11, 15),
    "f8e5m2": _ieee(3, 15),
    "f8e4m3fn": Format(4, -6, 8, 448.0, has_infinity=False),
}


def format_of(dtype: DType) -> Format:
    """The format of a float dtype."""
    return FORMATS[dtype.name]


def exponent_of(numerator: int, denominator: int) -> int:
    """The whole number e with 2**e <= numerator/denominator < 2**(e+1); both are positive."""
    e = numerator.bit_length() - denominator.bit_length()
    too_high = (numerator << max(-e, 0)) < (denominator << max(e, 0))
    return e - 1 if too_high else e


def rounded(ratio: Ratio, format: Format) -> float:
    """The number of ``format`` nearest to an exact ratio (denominator > 0), ties to even."""
    numerator, denominator = abs(ratio[0]), ratio[1]
    if numerator == 0:
        return 0.0
    e = max(exponent_of(numerator, denominator), format.emin) - format.precision + 1
    whole, rest = divmod(numerator << max(-e, 0), denominator << max(e, 0))
    above, half = 2 * rest > denominator << max(e, 0), 2 * rest == denominator << max(e, 0)
    whole += above or (half and whole & 1)
    sign = -1.0 if ratio[0] < 0 else 1.0
    if whole.bit_length() + e > format.emax + 1:
        return sign * format.beyond
    value = math.ldexp(whole, e)
    return sign * (value if value <= format.largest else format.beyond)


def round_float(value: float, format: Format) -> float:
    """The number of ``format`` nearest to a Python float, signs, infinities and NaN kept."""
    if math.isnan(value) or value == 0:
        return value
    if math.isinf(value):
        return math.copysign(1.0, value) * format.beyond
    return math.copysign(rounded(value.as_integer_ratio(), format), value)


def ulp(value: float, format: Format) -> float:
    """The distance between numbers of ``format`` at ``value``; of the last binade beyond it."""
    if value == 0 or math.isnan(value):
        return format.tiny
    e = format.emax if math.isinf(value) else math.frexp(value)[1] - 1
    return math.ldexp(1.0, min(max(e, format.emin), format.emax) - format.precision + 1)


def as_double(ratio: Ratio) -> tuple[float, float]:
    """An exact ratio as the nearest double and what that leaves over; infinite beyond doubles."""
    nearest = rounded(ratio, FORMATS["f64"])
    if math.isinf(nearest):
        return nearest, 0.0
    rest = Fraction(*ratio) - Fraction(nearest)
    return nearest, rounded((rest.numerator, rest.denominator), FORMATS["f64"])


def doubles(array: Array) -> Array:
    """The elements as float64, exactly; 64-bit integers beyond 2**53 are the caller's to avoid."""
    with np.errstate(invalid="ignore"):  # signalling NaN
        return np.asarray(array).astype(np.float64)


def stored(values: Any, dtype: DType, shape: tuple[int, ...]) -> Array:
    """Numbers that ``dtype`` holds exactly, a list or an array, as an array of it."""
    if dtype.is_float:
        wide = np.array(values, np.float64).reshape(shape)
        with np.errstate(all="ignore"):
            return wide.astype(dtype.numpy)
    if isinstance(values, np.ndarray):
        return values.astype(dtype.numpy).reshape(shape)
    return np.array(values, dtype=dtype.numpy).reshape(shape)


def wrapped(value: int, dtype: DType) -> int:
    """``value`` modulo 2**bits, as the integer or bool that ``dtype`` holds."""
    if dtype.kind == "bool":
        return int(bool(value))
    low = value & ((1 << dtype.bits) - 1)
    return low - (1 << dtype.bits) if dtype.kind == "int" and low >> (dtype.bits - 1) else low


def python_values(array: Array, dtype: DType) -> list[Any]:
    """The elements, flat and in row-major order, as exact Python numbers."""
    flat = np.ascontiguousarray(array).reshape(-1)
    values: list[Any] = (doubles(flat) if dtype.is_float else flat).tolist()
    return values
