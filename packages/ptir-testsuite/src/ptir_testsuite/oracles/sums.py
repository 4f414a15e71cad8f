"""Exact sums and products of floats, with what the bound for free orders of summation needs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ptir.types import TensorType
from ptir_testsuite.oracles.expected import Expected, Outcome, from_outcomes
from ptir_testsuite.oracles.floats import FORMATS, Format, Ratio, format_of


@dataclass(frozen=True)
class Total:
    """One sum: its exact value, the roundings it may make, its magnitude, whether it is open."""

    outcome: Outcome
    terms: int
    magnitude: float
    free: bool = False


def accumulator(type: TensorType) -> Format:
    """The format that sums of a dtype are made in: f32 for the half-precision types."""
    return FORMATS["f32"] if type.dtype.bits < 32 else format_of(type.dtype)


def scaled(values: Sequence[float]) -> tuple[list[int], int]:
    """Finite floats as integers times one power of two, 2**-k: the integers, and k."""
    ratios = [v.as_integer_ratio() for v in values]
    k = max((d.bit_length() - 1 for _, d in ratios), default=0)
    return [n << (k - d.bit_length() + 1) for n, d in ratios], k


def special_sum(values: Iterable[float]) -> float:
    """The sum of terms of which at least one is not finite."""
    found = {v if v == v else None for v in values if not math.isfinite(v)}
    return math.nan if len(found) > 1 or None in found else found.pop() or math.nan


def total(
    products: Sequence[float] | None,
    exact: Ratio,
    size: Ratio,
    terms: int,
    into: Format,
    one_sign: bool,
) -> Total:
    """A sum from its exact value and magnitude; ``products`` only where one is not finite."""
    if products is not None:
        return Total(special_sum(products), terms, 0.0)
    magnitude = _double(size)
    may_overflow = magnitude >= into.largest * (1 - into.unit * (terms + 1))
    return Total(exact, terms, magnitude, may_overflow and not one_sign)


def _double(ratio: Ratio) -> float:
    try:
        return ratio[0] / ratio[1]
    except OverflowError:
        return math.inf


def sum_of(values: Sequence[float], into: Format) -> Total:
    """The sum of floats."""
    if not all(map(math.isfinite, values)):
        return total(values, (0, 1), (0, 1), len(values), into, True)
    whole, k = scaled(values)
    exact, size = sum(whole), sum(map(abs, whole))
    roundings = max(len(values) - 1, 0)
    return total(None, (exact, 1 << k), (size, 1 << k), roundings, into, abs(exact) == size)


def running_sums(values: Sequence[float], into: Format) -> list[Total]:
    """The sums of the first one, the first two, ... of all floats."""
    finite = next((i for i, v in enumerate(values) if not math.isfinite(v)), len(values))
    whole, k = scaled(values[:finite])
    found, exact, size = list[Total](), 0, 0
    for place, term in enumerate(whole):
        exact, size = exact + term, size + abs(term)
        one_sign = abs(exact) == size
        found.append(total(None, (exact, 1 << k), (size, 1 << k), place, into, one_sign))
    special: list[float] = []
    for place, value in enumerate(values[finite:], finite):
        special += [] if math.isfinite(value) else [value]
        found.append(total(special, (0, 1), (0, 1), place + 1, into, True))
    return found


def dot_of(lhs: Sequence[float], rhs: Sequence[float], into: Format) -> Total:
    """The sum of products of floats."""
    if not (all(map(math.isfinite, lhs)) and all(map(math.isfinite, rhs))):
        products = [a * b for a, b in zip(lhs, rhs, strict=True)]
        return total(products, (0, 1), (0, 1), len(lhs), into, True)
    (a, j), (b, k) = scaled(lhs), scaled(rhs)
    whole = [x * y for x, y in zip(a, b, strict=True)]
    exact, size, d = sum(whole), sum(map(abs, whole)), 1 << (j + k)
    return total(None, (exact, d), (size, d), len(a), into, abs(exact) == size)


def product_of(values: Sequence[float], into: Format) -> Total:
    """The product of floats; open where an order of factors may overflow or lose small bits."""
    roundings = max(len(values) - 1, 0)
    if not all(map(math.isfinite, values)):
        zero = any(v == 0 for v in values)
        special = math.nan if zero else math.prod(map(_sign, values))
        return Total(special, roundings, 0.0, special == special and _may_vanish(values, into))
    high = sum(max(math.frexp(v)[1], 0) for v in values if v) > into.emax
    low = _may_vanish(values, into)
    numerator, denominator = 1, 1
    for value in values:
        n, d = value.as_integer_ratio()
        numerator, denominator = numerator * n, denominator * d
    free = (high or low) and len(values) > 1
    outcome: Any = (numerator, denominator) if numerator else 0.0
    return Total(outcome, roundings, abs(_double((abs(numerator), denominator))), free)


def _sign(value: float) -> float:
    return value if not math.isfinite(value) else math.copysign(1.0, value)


def _may_vanish(values: Sequence[float], into: Format) -> bool:
    """Whether the small factors alone leave the normal numbers."""
    exponents = [math.frexp(v)[1] - 1 for v in values if v and math.isfinite(v)]
    return sum(min(e, 0) for e in exponents) < into.emin


def from_totals(totals: Sequence[Total], type: TensorType) -> Expected:
    """A result from its sums in row-major order."""
    plain = from_outcomes([t.outcome for t in totals], type)

    def column(values: Iterable[Any], dtype: Any) -> Any:
        return np.array(list(values), dtype).reshape(type.shape)

    return Expected(
        plain.values,
        plain.exact,
        plain.low,
        column((t.terms for t in totals), np.int64),
        column((t.magnitude for t in totals), np.float64),
        column((t.free for t in totals), np.bool_),
    )
