"""What an oracle says a result must be: the nearest values, and what tolerances need to know."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from ptir.types import TensorType
from ptir_testsuite.oracles.floats import (
    Array,
    Ratio,
    as_double,
    format_of,
    rounded,
    stored,
    wrapped,
)

Outcome = Any
"""One element of an oracle: an int, a float that needs no rounding, or an exact ratio."""


@dataclass(frozen=True)
class Expected:
    """One result: ``values`` correctly rounded in its dtype, and for floats the exact number.

    ``exact`` + ``low`` is the exact number in two doubles. For sums, ``terms`` counts the
    roundings that the sum may make and ``magnitude`` adds up the terms' absolute values. Elements
    under ``free`` are left open: on the way to them any order of summation may overflow.
    """

    values: Array
    exact: Array | None = None
    low: Array | None = None
    terms: Array | None = None
    magnitude: Array | None = None
    free: Array | None = None


def exactly(values: Array) -> Expected:
    """A result that must be these very elements."""
    return Expected(np.asarray(values))


def from_outcomes(outcomes: list[Outcome], type: TensorType) -> Expected:
    """A result from its elements in row-major order."""
    if not type.dtype.is_float:
        whole = [wrapped(int(v), type.dtype) for v in outcomes]
        return exactly(stored(whole, type.dtype, type.shape))
    format = format_of(type.dtype)
    nearest, exact, low = [], [], []
    for outcome in outcomes:
        if isinstance(outcome, tuple):
            nearest.append(rounded(outcome, format))
            high, rest = as_double(outcome) if format.precision > 24 else (_double(outcome), 0.0)
        else:
            value = float(outcome)
            if math.isinf(value) and not format.has_infinity:
                value = math.nan
            nearest.append(value)
            high, rest = value, 0.0
        exact.append(high)
        low.append(rest)
    shape = type.shape
    return Expected(
        stored(nearest, type.dtype, shape),
        np.array(exact, np.float64).reshape(shape),
        np.array(low, np.float64).reshape(shape),
    )


def _double(ratio: Ratio) -> float:
    try:
        return ratio[0] / ratio[1]
    except OverflowError:
        return math.inf if ratio[0] > 0 else -math.inf
