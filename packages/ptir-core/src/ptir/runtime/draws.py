"""The random numbers of a sampler, of which each row has a stream of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ptir.ops.numerics import rng_bits

Array = np.ndarray[Any, Any]

_WORD = 0xFFFFFFFF


class Draws:
    """The sampler's random numbers: each row has a stream of its own, which its seed decides.

    Draw n of a row is element n of ``functional.uniform`` under the key (low word, high word) of
    its seed: neither the other rows nor the row's place in the batch matter.
    """

    def __init__(self, seeds: Sequence[int]) -> None:
        self._keys = [np.array([seed & _WORD, seed >> 32], np.uint32) for seed in seeds]
        self._known = np.empty((len(seeds), 0), np.float32)
        self._taken = 0

    def back(self, count: int) -> None:
        """The last ``count`` draws have not been used: they come again."""
        self._taken -= count

    def take(self, count: int) -> Array:
        """The next draws of every row, f32[count, B] in [0, 1)."""
        first, self._taken = self._taken, self._taken + count
        if self._taken > self._known.shape[1]:
            size = max(64, 2 * self._taken)
            words = np.stack([rng_bits(key, shape=(size,)) for key in self._keys])
            self._known = (words >> 8).astype(np.float32) * np.float32(2.0**-24)
        return np.ascontiguousarray(self._known[:, first : self._taken].T)
