"""The programs of lifetime rows: functions of tensors, and what they are in NumPy.

All are of i32, which wraps, so every bit of every result is defined and results can be fed back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import numpy as np

import ptir
from ptir.ir.program import Program
from ptir.types import I32, TensorType
from ptir_testsuite.oracles.floats import Array

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Recipe:
    """A function of two tensors ``a`` and ``b`` of one type, with results of that type."""

    results: int
    tensors: Callable[[Any, Any], tuple[Any, ...]]
    arrays: Callable[[Array, Array], tuple[Array, ...]]


def _total(array: Array) -> Array:
    return np.asarray(np.sum(array, axis=0, dtype=np.int32))


RECIPES: Final[dict[str, Recipe]] = {
    "sum": Recipe(1, lambda a, b: (a + b,), lambda a, b: (a + b,)),
    "sum and difference": Recipe(2, lambda a, b: (a + b, a - b), lambda a, b: (a + b, a - b)),
    "both returned": Recipe(3, lambda a, b: (a, b, a * b), lambda a, b: (a, b, a * b)),
    "turned": Recipe(2, lambda a, b: (a[::-1] + b, a), lambda a, b: (np.flip(a, 0) + b, a)),
    "apart": Recipe(
        2,
        lambda a, b: (a * a, b[::-1] - b),
        lambda a, b: (a * a, np.flip(b, 0) - b),
    ),
    "totals": Recipe(
        2,
        lambda a, b: (a - a.sum(0), b * (a * b).sum(0)),
        lambda a, b: (a - _total(a), b * _total(a * b)),
    ),
    "chain": Recipe(
        1,
        lambda a, b: (((a * b)[::-1] + (a - b).sum(0)) * a[::-1] + (a * a).sum(0),),
        lambda a, b: ((np.flip(a * b, 0) + _total(a - b)) * np.flip(a, 0) + _total(a * a),),
    ),
}
"""What a donation, a reuse or a race easily spoils: results that need an operand after another
result is written, also where that operand is the other one's memory, operands that are results,
reads from elsewhere, intermediates."""


@cache
def program(name: str, shape: Shape) -> Program:
    """The program of a recipe on tensors of ``shape``."""
    type = TensorType(I32, shape)
    return ptir.capture(RECIPES[name].tensors, type, type)


def arrays(name: str, a: Array, b: Array) -> tuple[Array, ...]:
    """What a recipe gives, in arrays of their own."""
    with np.errstate(over="ignore"):
        return tuple(np.array(found, np.int32) for found in RECIPES[name].arrays(a, b))
