"""Accuracy as data: which bound each op promises in each dtype, and the named relaxations.

The classes: ``exact`` (every bit, any NaN for a NaN), ``rounded`` (the nearest number), ``ulp``
(so many units in the last place of the exact result) and ``dot`` (sums of any order, the TOSA
bound: an error of at most K roundings of the sum of magnitudes, for each element, and two checks
of the whole tensor). Records say which; this module says what it means in numbers.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

from ptir.ops.record import Op
from ptir.types import DTYPES, DType

Kind = Literal["exact", "rounded", "ulp", "dot"]


@dataclass(frozen=True)
class Bound:
    """What a float result may be off by: its class, and how many ULP in the class ``ulp``.

    ``extra`` is a relaxed share of a sum's magnitude, on top of what the class ``dot`` allows.
    """

    kind: Kind
    ulps: float = 0.0
    extra: float = 0.0

    def __str__(self) -> str:
        return f"{self.ulps:g} ULP" if self.kind == "ulp" else self.kind


EXACT: Final = Bound("exact")

BIAS: Final = 2.0
"""The mean error of a tensor of T sums may be ``BIAS * sqrt(K / T)`` roundings (TOSA 1.0)."""

SQUARES: Final = 0.4
"""The mean squared error of a tensor of sums may be ``SQUARES * K`` roundings squared (TOSA)."""

FEWEST: Final = 64
"""Sums from which the checks of the whole tensor apply; fewer say nothing about a mean."""


@dataclass(frozen=True)
class Relaxation:
    """A published departure that a backend may choose by name; reports print it."""

    name: str
    doc: str
    flushes: bool = False
    dot_unit: float | None = None


RELAXATIONS: Final = {
    r.name: r
    for r in (
        Relaxation(
            "flush-to-zero",
            "subnormal operands and results may be replaced by a zero of their sign",
            flushes=True,
        ),
        Relaxation(
            "tf32",
            "f32 products of dot_general may use operands rounded to 11 bits",
            dot_unit=2.0**-11,
        ),
    )
}


@dataclass(frozen=True)
class Terms:
    """What a backend is held to: ops it claims to round correctly, and relaxations it chose."""

    rounds: frozenset[str] = frozenset()
    relaxations: tuple[str, ...] = ()

    @property
    def flushes(self) -> bool:
        """Whether subnormal numbers may be flushed to zero."""
        return any(RELAXATIONS[name].flushes for name in self.relaxations)

    @property
    def dot_unit(self) -> float | None:
        """The unit roundoff of products in contractions, if relaxed."""
        units = [u for name in self.relaxations if (u := RELAXATIONS[name].dot_unit)]
        return max(units, default=None)


_CLASS = re.compile(r"(?P<kind>exact|rounded or ulp|rounded|ulp|dot|sum)(:(?P<ulps>[0-9.]+))?")


def bound_of(op: Op, dtype: DType, terms: Terms = Terms()) -> Bound:
    """What results of ``op`` in ``dtype`` are held to; raises ``ValueError`` for an odd record."""
    if not dtype.is_float:
        return EXACT
    text = op.accuracy_of(dtype)
    match = _CLASS.fullmatch(text)
    if match is None:
        raise ValueError(
            f"op {op.name}: accuracy {text!r} is no class; see ptir_testsuite.oracles.accuracy"
        )
    kind, ulps = match["kind"], float(match["ulps"] or 0)
    if kind == "rounded or ulp":
        return Bound("rounded") if op.name in terms.rounds else Bound("ulp", ulps)
    relaxed = ("contraction" in op.traits and dtype.name == "f32" and terms.dot_unit) or 0.0
    return Bound("dot" if kind == "sum" else kind, ulps, 2 * relaxed)  # type: ignore[arg-type]


def table(ops: Iterable[Op]) -> list[tuple[str, dict[str, str]]]:
    """The accuracy class of every op with a float dtype, by float dtype."""
    rows = []
    for op in ops:
        if op.profile == "extension":  # what its lowering or its backend says
            continue
        allowed = {d for dtypes in op.dtypes.values() for d in dtypes if d.is_float}
        row = {n: op.accuracy_of(d) for n, d in DTYPES.items() if d in allowed}
        if row:
            rows.append((op.name, row))
    return rows


def accuracy_hash(ops: Iterable[Op]) -> str:
    """A digest of the table, the constants above and the relaxations: what a verdict rests on."""
    state = hashlib.blake2b(digest_size=16)
    state.update(repr((table(ops), BIAS, SQUARES, FEWEST, RELAXATIONS)).encode())
    return state.hexdigest()
