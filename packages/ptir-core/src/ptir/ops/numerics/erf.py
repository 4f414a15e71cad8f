"""The error function in f64, within 2 units in the last place.

Up to 0.84375 the Taylor series, beyond it the rational approximations of W. J. Cody, "Rational
Chebyshev approximations for the error function", Mathematics of Computation 23 (1969).
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from ptir.ops.numerics.rounding import Array, through_f64


def _polynomials(top: str, bottom: str) -> tuple[Array, Array]:
    """Numerator and denominator coefficients, highest power first."""
    return np.array(top.split(), np.float64), np.array(bottom.split(), np.float64)


_SERIES_TO: Final = 0.84375
# (erf(x) - x) / x in powers of x*x, highest first; its first term is 2/sqrt(pi) - 1
_SERIES: Final = np.array(
    [
        2 / math.sqrt(math.pi) * (-1) ** n / (math.factorial(n) * (2 * n + 1))
        for n in range(18, 0, -1)
    ]
    + [0.1283791670955126]
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
    near = np.clip(x, -_SERIES_TO, _SERIES_TO)
    small = near + near * np.polyval(_SERIES, np.square(near))
    middle = _ratio(_MIDDLE, np.clip(y, _SERIES_TO, 4.0))
    z = 1.0 / np.square(np.maximum(y, 4.0))
    large = (1 / np.sqrt(np.pi) - z * _ratio(_LARGE, z)) / np.maximum(y, 4.0)
    head = np.trunc(y * 16) / 16
    decay = np.exp(-head * head) * np.exp(-(y - head) * (y + head))
    beyond = np.copysign(1 - decay * np.where(y <= 4.0, middle, large), x)
    return np.asarray(np.where(y <= _SERIES_TO, small, beyond))


erf = through_f64(_erf_f64)
