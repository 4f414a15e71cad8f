"""Operand values: the awkward ones of every dtype, and reproducible draws from palettes."""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final

import numpy as np

from ptir.types import DType, TensorType
from ptir_testsuite.oracles.floats import Array, format_of, round_float, stored

HALVES: Final = (0.5, -0.5, 1.5, -1.5, 2.5, -2.75, 0.1, 3.0, -7.0)


@cache
def awkward(dtype: DType) -> tuple[Any, ...]:
    """The values of ``dtype`` that tell right answers from nearly right ones, ordered."""
    if dtype.kind == "bool":
        return False, True
    return _awkward_floats(dtype) if dtype.is_float else _awkward_integers(dtype)


def _awkward_floats(dtype: DType) -> tuple[float, ...]:
    format = format_of(dtype)
    odd = math.ldexp(1.0, format.precision) - 1  # the largest odd whole number
    ends = (format.tiny, format.normal, format.normal - format.tiny, format.largest)
    powers = (odd, odd + 1, 2.0**31, 2.0**32, 300.0, 1e10, 88.5, 0.99999)
    twice = [1 + 2.0**-b + 2.0**-e for b in (3, 4, 8, 11) for e in (20, 40)]
    signed = [v for v in (0.0, 1.0, *ends, *powers, math.inf) for v in (v, -v)]
    found = [round_float(v, format) for v in (*signed, *HALVES)]
    found += [v for v in twice if round_float(v, format) == v]  # wrong when rounded twice
    unique = {(v, math.copysign(1.0, v)): v for v in found if v == v}
    return (math.nan, *unique.values())


def _awkward_integers(dtype: DType) -> tuple[int, ...]:
    signed = dtype.kind == "int"
    low, high = -(1 << (dtype.bits - 1)) if signed else 0, (1 << (dtype.bits - signed)) - 1
    odd = [(1 << p) + 1 for p in (8, 11, 24, 53)]  # the first wholes that a float format lacks
    odd += [(1 << 30) + (1 << 22) + 1, (1 << 62) + (1 << 38) + 1]  # wrong when rounded twice
    wanted = [0, 1, -1, 2, -2, 3, -7, 10, 100, low, low + 1, high, high - 1, *odd]
    wanted += [dtype.bits - 1, dtype.bits, dtype.bits + 1, high // 2 + 1, high // 3]
    return tuple(dict.fromkeys(v for v in wanted if low <= v <= high))


def few(dtype: DType) -> tuple[Any, ...]:
    """A dozen of the awkward values, for ops whose operands meet in threes and more."""
    if not dtype.is_float:
        return awkward(dtype)[:12]
    format = format_of(dtype)
    ends = (format.largest, format.tiny)
    return (0.0, -0.0, 1.0, -1.0, math.nan, format.beyond, -format.beyond, *ends, -2.5, 0.5)


class Draws:
    """Reproducible draws: raw PCG64 words, whose stream NumPy keeps the same for ever."""

    def __init__(self, *recipe: object) -> None:
        text = "\n".join(map(str, recipe)).encode()
        seed = int.from_bytes(hashlib.blake2b(text, digest_size=16).digest())
        self._bits = np.random.PCG64(seed)

    def words(self, count: int) -> Array:
        """``count`` random words of 64 bits."""
        return np.atleast_1d(np.asarray(self._bits.random_raw(count), np.uint64))

    def below(self, end: int, count: int) -> Array:
        """``count`` whole numbers in 0 .. end - 1, as i64."""
        return ((self.words(count) >> np.uint64(1)) % np.uint64(end)).astype(np.int64)

    def one(self, end: int) -> int:
        """One whole number in 0 .. end - 1."""
        return int(self.below(end, 1)[0])

    def choice(self, options: Sequence[Any]) -> Any:
        """One of the options."""
        return options[self.one(len(options))]


PERIOD: Final = 251
"""How many elements there are before they repeat; a prime, which is the size of no block."""

Palette = Callable[[DType, int, int, Draws], Any]


def _normal(dtype: DType, lowest: int, span: int, count: int, draws: Draws) -> Array:
    """Numbers of both signs with every mantissa, and exponents from ``lowest`` on."""
    hidden = 1 << (format_of(dtype).precision - 1)
    mantissas = (hidden + draws.below(hidden, count)).astype(np.float64) / hidden
    signs = 1.0 - 2.0 * draws.below(2, count)
    return np.asarray(np.ldexp(signs * mantissas, lowest + draws.below(span, count)))


def _plain(dtype: DType, count: int, reach: int, draws: Draws) -> Any:
    """Moderate numbers of both signs; integers mostly within ``reach``, an axis size."""
    if dtype.kind == "bool":
        return draws.below(2, count)
    if dtype.is_float:
        return _normal(dtype, -3, 7, count, draws)
    low = -2 if dtype.kind == "int" else 0
    return low + draws.below(min(reach + 4 - low, 100), count)


def _awkward(dtype: DType, count: int, reach: int, draws: Draws) -> Any:
    """Awkward values, few of them NaN or infinite and none so large that sums overflow."""
    values = awkward(dtype)
    if not dtype.is_float:
        return [values[i] for i in draws.below(len(values), count)]
    finite = [v for v in values if abs(v) < format_of(dtype).largest / 4096]
    special = [v for v in values if not math.isfinite(v)]
    picks, odds = draws.below(len(finite), count), draws.below(40 * len(special), count)
    drawn = zip(picks.tolist(), odds.tolist(), strict=True)
    return [special[o] if o < len(special) else finite[p] for p, o in drawn]


def _ties(dtype: DType, count: int, reach: int, draws: Draws) -> Any:
    """Very few different values, so that equal ones meet."""
    if dtype.kind == "bool":
        return draws.below(2, count)
    values = np.array((0.0, -0.0, 1.0, -1.0, 2.0) if dtype.is_float else (0, 1, 2))
    return values[draws.below(len(values), count)]


def _ones(dtype: DType, count: int, reach: int, draws: Draws) -> Any:
    """Ones throughout: a sum that is narrower than it must be stops growing."""
    return np.ones(count)


def _cycle(dtype: DType, count: int, reach: int, draws: Draws) -> Any:
    """Moderate numbers that repeat, so that what they must give is found out once for each."""
    return np.resize(_plain(dtype, min(count, PERIOD), reach, draws), count)


def _places(dtype: DType, count: int, reach: int, draws: Draws) -> Any:
    """Moderate numbers; half of the integers are from all over an axis of size ``reach``."""
    if not dtype.is_integer:
        return _plain(dtype, count, reach, draws)
    low = -2 if dtype.kind == "int" else 0
    near, far = (low + draws.below(end - low, count) for end in (4, reach + 2))
    return np.where(draws.below(2, count), near, far)


def _bits(dtype: DType, count: int, reach: int, draws: Draws) -> Any:
    """Numbers from all over the dtype, every magnitude alike."""
    if dtype.kind == "bool":
        return draws.below(2, count)
    if not dtype.is_float:
        narrow = draws.words(count).astype(f"u{dtype.itemsize}")
        return narrow.view(dtype.numpy)
    format = format_of(dtype)
    top = format.emax - format.emin - (not format.has_infinity)
    return _normal(dtype, format.emin, top, count, draws)


PALETTES: Final[dict[str, Palette]] = {
    "plain": _plain,
    "awkward": _awkward,
    "ties": _ties,
    "ones": _ones,
    "bits": _bits,
    "cycle": _cycle,
    "places": _places,
}


def draw(type: TensorType, palette: str, draws: Draws, reach: int = 0) -> Array:
    """An array of ``type`` with values from a palette."""
    values = PALETTES[palette](type.dtype, type.size, reach, draws)
    return stored(values, type.dtype, type.shape)


def all_tuples(types: Sequence[TensorType]) -> list[Array]:
    """Operands in which every combination of awkward values meets, flat."""
    pick = awkward if len(types) < 3 else few
    rows = list(itertools.product(*(pick(t.dtype) for t in types)))
    columns = list(zip(*rows, strict=True))
    return [stored(c, t.dtype, (len(rows),)) for c, t in zip(columns, types, strict=True)]
