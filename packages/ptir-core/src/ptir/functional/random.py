"""Random numbers from a key: the same key gives the same numbers on every backend."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ptir.capture import Tensor, call
from ptir.functional import elementwise as each
from ptir.functional.check import Checked
from ptir.types import F32

_STEP = 2.0**-24


def uniform(key: Tensor, shape: Sequence[int]) -> Tensor:
    """f32 numbers in [0, 1), multiples of 2**-24, from a key u32[2].

    A longer result starts with the shorter one. Raises ``TypeRuleError``.
    """
    return _whole(key, shape, "uniform").astype(F32) * _STEP


def normal(key: Tensor, shape: Sequence[int]) -> Tensor:
    """f32 numbers of the standard normal distribution from a key u32[2], at most 5.8 from 0.

    Each takes two words (Box and Muller, 1958); a longer result starts with the shorter one.
    Raises ``TypeRuleError``.
    """
    words = _whole(key, (*shape, 2), "normal").astype(F32)
    radius = each.sqrt(each.log((words[..., 0] + 1.0) * _STEP) * -2.0)
    return radius * each.cos(words[..., 1] * (2 * math.pi * _STEP))


def _whole(key: Tensor, shape: Sequence[int], functional: str) -> Tensor:
    """Whole numbers below 2**24, which f32 holds exactly."""
    checked = Checked(functional, "key:u32[N]", key=key)
    checked.require(checked["N"] == 2, "key", "key must have exactly 2 elements")
    return call("rng_bits", key, shape=tuple(shape)) >> 8
