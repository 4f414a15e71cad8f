"""Where functions leave a float format: arguments beside overflow, underflow, rounding and zeros.

Derived from the format alone, by tables of inverse functions; nothing here knows an op. A row gives
arguments at which some function of floats reaches an end of the format; tried are the nearest
float and those beside it, so that an edge that is one float off shows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from typing import Any, Final

from mpmath import mp, mpf  # type: ignore[import-untyped]

from ptir.types import DTYPES, DType, TensorType
from ptir_testsuite.oracles.floats import (
    FORMATS,
    Array,
    Format,
    format_of,
    round_float,
    rounded,
    stored,
)

PRECISION: Final = 200
"""Bits in which arguments are computed; it is far more than any format has."""

Ends = dict[str, Any]
"""The numbers at which results change their kind, by name."""


def ends_of(format: Format) -> Ends:
    """The ends of a format, as numbers of mpmath.

    ``over`` is the first number that rounds beyond the largest, ``under`` the last that rounds to
    zero, ``unit`` what is lost beside 1.
    """
    half = mpf(2) ** (format.emax - format.precision)
    return {
        "largest": mpf(format.largest),
        "over": mpf(format.largest) + half,
        "normal": mpf(format.normal),
        "tiny": mpf(format.tiny),
        "under": mpf(format.tiny) / 2,
        "unit": mpf(format.unit),
    }


OUTER: Final = ("largest", "over", "normal", "tiny", "under")
"""The ends that results reach; ``unit`` is for arguments that are as good as 0."""

Inverse = Callable[[Any], Any]

INVERSES: Final[dict[str, tuple[tuple[str, ...], Inverse]]] = {
    "exp": (OUTER, mp.log),
    "exp of half": (OUTER, lambda v: 2 * mp.log(v)),  # where a square of exp(x / 2) leaves
    "exp2": (OUTER, lambda v: mp.log(v, 2)),
    "exp10": (OUTER, mp.log10),
    "sinh and cosh": (("largest", "over"), lambda v: mp.log(2 * v)),
    "exp beside 1": (("unit",), mp.log),  # expm1 is -1, a sigmoid is 1
    "exp of a square": (OUTER, lambda v: mp.sqrt(abs(mp.log(v)))),
    "a square": (OUTER, mp.sqrt),
    "a cube": (OUTER, mp.cbrt),
    "one over": (OUTER, lambda v: 1 / v),
    "one over a root": (OUTER, lambda v: 1 / v**2),
    "twice": (OUTER, lambda v: v / 2),
    "itself": (OUTER, lambda v: v),
    "what is lost": (("unit",), lambda u: u),
    "its square is lost": (("unit",), lambda u: mp.sqrt(2 * u)),
    "its cube is lost": (("unit",), lambda u: mp.cbrt(3 * u)),
    "beside 1": (("unit",), lambda u: 1 + 2 * u),
    "tanh rounds to 1": (("unit",), lambda u: mp.atanh(1 - u / 2)),
    "erf rounds to 1": (("unit",), lambda u: mp.erfinv(1 - u / 2)),
}
"""The ends at which a function is inverted, and its inverse there."""

QUARTERS: Final = (1, 2, 3, 4, 5, 100, 1001, 10**5)
"""Multiples of pi/2, beside which sine and cosine cross zero, and of pi/4, where they meet."""


@cache
def edges(dtype: DType) -> tuple[float, ...]:
    """The arguments of a float dtype beside which functions of one number change their kind."""
    format = format_of(dtype)
    with mp.workprec(PRECISION):
        wanted = [*_inverted(format), *_angles(), *_steps(format), *_ends_of_others()]
        sides = dict.fromkeys(s for x in wanted for s in _beside(x, format))
    return tuple(sign * x for x in sides for sign in (1.0, -1.0))


def _inverted(format: Format) -> Iterator[Any]:
    ends = ends_of(format)
    for names, inverse in INVERSES.values():
        yield from (abs(inverse(ends[name])) for name in names)


def _angles() -> Iterator[Any]:
    yield from (count * mp.pi / parts for count in QUARTERS for parts in (2, 4))


def _steps(format: Format) -> Iterator[Any]:
    """Halves, and the last numbers that have any: where adding a half before a floor goes wrong."""
    yield from (mpf(1) / 2, mpf(3) / 2, mpf(5) / 2)
    last = mpf(2) ** (format.precision - 1)
    yield from (last, last - mpf(1) / 2, last / 2 - mpf(1) / 2, 2 * last)


def _ends_of_others() -> Iterator[Any]:
    """The ends of every integer dtype and of every float format, beyond which casts change."""
    for dtype in DTYPES.values():
        if dtype.is_integer:
            high = mpf(2) ** (dtype.bits - (dtype.kind == "int"))
            yield from (high, high - 1, high - mpf(1) / 2, high + 1)
    for format in FORMATS.values():
        ends = ends_of(format)
        yield from (ends[name] for name in OUTER)


def _beside(x: Any, format: Format) -> Iterator[float]:
    """The number of a format nearest to a positive one, and its neighbours; finite ones only."""
    middle = nearest(x, format)
    if not math.isfinite(middle):
        middle = format.largest
    for near in (below(middle, format), middle, above(middle, format)):
        if 0 <= near <= format.largest:
            yield near


def nearest(x: Any, format: Format) -> float:
    """The number of ``format`` nearest to a number of mpmath."""
    sign, mantissa, exponent, _ = x._mpf_
    numerator = -int(mantissa) if sign else int(mantissa)
    if exponent >= 0:
        return rounded((numerator << exponent, 1), format)
    return rounded((numerator, 1 << -exponent), format)


def above(x: float, format: Format) -> float:
    """The next larger number of a format, for x >= 0; infinite after the largest."""
    e = max(math.frexp(x)[1] - 1, format.emin) if x else format.emin
    step = x + math.ldexp(1.0, e - format.precision + 1)
    return step if step <= format.largest else math.inf


def below(x: float, format: Format) -> float:
    """The next smaller number of a format, for x > 0; below zero for 0."""
    if x == 0:
        return -format.tiny
    mantissa, e = math.frexp(x)
    e = max(e - 1 - (mantissa == 0.5), format.emin)
    return x - math.ldexp(1.0, e - format.precision + 1)


# --- two arguments ---

BASES: Final = (2.0, 0.5, 10.0, 3.0, 1.25, 100.0, -2.0, -3.0)
EXPONENTS: Final = (2.0, 3.0, 0.5, -1.0, -2.0, -0.5, 7.0, 1001.0)

Partner = Callable[[Any, Any], Any]

PARTNERS: Final[dict[str, tuple[tuple[float, ...], Partner, bool]]] = {
    "b ** y": (BASES, lambda b, v: mp.log(v) / mp.log(abs(b)), False),
    "x ** e": (EXPONENTS, lambda e, v: v ** (1 / mpf(e)), True),
    "b * y": (BASES, lambda b, v: v / abs(b), False),
    "x / b": (BASES, lambda b, v: v * abs(b), True),
    "b / y": (BASES, lambda b, v: abs(b) / v, False),
}
"""Functions of two numbers: values of the one, what the other must be for a result, and whether
that is the first."""


@cache
def pairs(dtype: DType) -> tuple[tuple[float, float], ...]:
    """Pairs of a float dtype at which functions of two numbers change their kind."""
    format = format_of(dtype)
    with mp.workprec(PRECISION):
        found = dict.fromkeys(_signed(_partners(format)))
        ends = dict.fromkeys(s for x in _inverted(format) for s in _beside(x, format))
        found |= dict.fromkeys(_signed((x, x) for x in ends))
        found |= dict.fromkeys(_sums(format))
    return tuple((x, y) for x, y in found if math.isfinite(x) and math.isfinite(y))


def at_edges(types: Sequence[TensorType]) -> list[Array] | None:
    """Operands at the edges, flat; None where there are none: for integers, and for three."""
    kinds = {t.dtype for t in types}
    if len(kinds) != 1 or not types[0].dtype.is_float or len(types) > 2:
        return None
    (dtype,) = kinds
    columns = [edges(dtype)] if len(types) == 1 else list(zip(*pairs(dtype), strict=True))
    return [stored(column, dtype, (len(column),)) for column in columns]


def _partners(format: Format) -> Iterator[tuple[float, float]]:
    ends = ends_of(format)
    beside_1 = (1 + 2 * format.unit, 1 - format.unit)
    for given, partner, first in PARTNERS.values():
        for one in (*given, *beside_1) if not first else given:
            known = nearest(mpf(one), format)
            for name in OUTER:
                if known in (0.0, 1.0):
                    continue
                other = partner(mpf(known), ends[name])
                sides = [math.copysign(s, other) for s in _beside(abs(other), format)]
                yield from ((s, known) if first else (known, s) for s in sides)


def _signed(found: Iterable[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    for x, y in found:
        yield from ((x, y), (-x, y))


def _sums(format: Format) -> Iterator[tuple[float, float]]:
    """Sums beside the largest number and beside 1, where half a unit decides."""
    for x in (format.largest, 1.0, format.normal):
        unit = x - below(x, format)
        for part in (unit / 4, unit / 2, unit):
            for y in {round_float(y, format): 0 for y in (part * 0.75, part, part * 1.5)}:
                yield from ((x, y), (x, -y), (-y, x), (-x, -y))
