"""How far an array is from the one that was wanted: relative to the largest, and in ulps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from ptir.errors import UsageError
from ptir.types import DType, dtype_of

Array = np.ndarray[Any, Any]

DEFAULTS: Final[Mapping[str, float]] = MappingProxyType(
    {"f64": 1e-9, "f32": 1e-4, "f16": 1e-2, "bf16": 5e-2}
)
"""What floats may be off, relative to the largest magnitude that was wanted.

Sums in another order, through all layers of a model, stay below; of other types nothing may differ.
"""
REST: Final = 1e-1
"""The same for floats of 8 bits."""


@dataclass(frozen=True)
class Tolerance:
    """What two results may differ in, relative to the largest magnitude of the wanted one.

    ``relative`` None means ``DEFAULTS`` of the element type.
    """

    relative: float | None = None

    def __post_init__(self) -> None:
        """Raise ``UsageError`` for what is no bound."""
        if self.relative is not None and not 0 <= self.relative < float("inf"):
            raise UsageError(f"tolerance {self.relative}: must be a number from 0")

    def of(self, dtype: DType) -> float:
        """The bound for an element type."""
        if not dtype.is_float:
            return 0.0
        return DEFAULTS.get(dtype.name, REST) if self.relative is None else self.relative

    def allows(self, found: Difference) -> bool:
        """Whether a result that differs so much is right."""
        return found.relative <= self.of(found.dtype)


@dataclass(frozen=True)
class Difference:
    """What two arrays of one type differ in.

    NaN is right where NaN was wanted, and an infinity where the same one was.
    """

    dtype: DType
    elements: int
    differing: int
    """Elements that are not equal."""
    relative: float
    """The largest distance over the largest finite magnitude that was wanted.

    Infinite where only one of the two is a finite number; 1 where a float was wanted to be zero
    everywhere and is not, or where whole numbers or truth values differ.
    """
    ulps: float
    """The largest distance in representable numbers between the two; infinite as above."""
    place: tuple[int, ...]
    """Where the largest distance is; of equal arrays the first element, of empty ones none."""
    got: float
    wanted: float
    """What is there."""


def difference(got: Array, wanted: Array) -> Difference:
    """What ``got`` differs from ``wanted`` in, both of one shape and PTIR element type.

    Raises ``UsageError`` where the types differ.
    """
    dtype = dtype_of(wanted)
    if got.shape != wanted.shape or dtype_of(got) != dtype:
        one, other = (f"{dtype_of(a).name}{list(a.shape)}" for a in (got, wanted))
        raise UsageError(f"got {one} where {other} was wanted; compare results of one program")
    if not wanted.size:
        return Difference(dtype, 0, 0, 0.0, 0.0, (), 0.0, 0.0)
    if dtype.is_float:
        return _of_floats(got, wanted, dtype)
    unequal = got != wanted
    flat = int(unequal.argmax())
    differing = int(unequal.sum())
    apart = np.abs(got.astype(np.float64) - wanted.astype(np.float64))
    measured = 1.0 if differing else 0.0
    return _at(flat, got, wanted, dtype, differing, measured, float(apart.max()))


def _of_floats(got: Array, wanted: Array, dtype: DType) -> Difference:
    exact_got, exact_wanted = got.astype(np.float64), wanted.astype(np.float64)
    same = (exact_got == exact_wanted) | (np.isnan(exact_got) & np.isnan(exact_wanted))
    finite = np.isfinite(exact_got) & np.isfinite(exact_wanted)
    with np.errstate(invalid="ignore", over="ignore"):
        apart = np.where(same, 0.0, np.where(finite, np.abs(exact_got - exact_wanted), np.inf))
    steps = np.where(same, 0.0, np.where(finite, _apart_in_ulps(got, wanted, dtype), np.inf))
    known = np.abs(exact_wanted[np.isfinite(exact_wanted)])
    scale = float(known.max(initial=0.0))
    worst = float(apart.max())
    relative = worst / scale if scale else float(worst > 0) if np.isfinite(worst) else worst
    differing = int((~same).sum())
    return _at(int(apart.argmax()), got, wanted, dtype, differing, relative, float(steps.max()))


def _at(
    flat: int,
    got: Array,
    wanted: Array,
    dtype: DType,
    differing: int,
    relative: float,
    ulps: float,
) -> Difference:
    place = tuple(int(n) for n in np.unravel_index(flat, wanted.shape))
    numbers = float(got[place]), float(wanted[place])
    return Difference(dtype, wanted.size, differing, relative, ulps, place, *numbers)


def _apart_in_ulps(got: Array, wanted: Array, dtype: DType) -> Array:
    """How many steps from one representable number to the next lie between two arrays, as f64."""
    one, other = _ordinal(got, dtype), _ordinal(wanted, dtype)
    return (np.maximum(one, other) - np.minimum(one, other)).astype(np.float64)


def _ordinal(values: Array, dtype: DType) -> Array:
    """Whole numbers in the order of the floats, one apart where these are neighbours."""
    bits = dtype.bits
    whole = np.ascontiguousarray(values).view(f"u{bits // 8}").astype(np.uint64)
    negative = (whole >> np.uint64(bits - 1)).astype(bool)
    magnitude = whole & np.uint64((1 << (bits - 1)) - 1)
    middle = np.uint64(1 << 63)
    return np.where(negative, middle - magnitude, middle + magnitude)
