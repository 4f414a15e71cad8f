"""The reference of creation ops on NumPy arrays, with the counter-based random generator."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from ptir.ir.attributes import Literal
from ptir.ops.numerics.casts import cast
from ptir.ops.numerics.rounding import Array, numeric
from ptir.ops.random import KEY_STEPS, MULTIPLIERS, ROUNDS
from ptir.types import DType


def constant(*, value: Literal) -> Array:
    """The literal's elements, read-only."""
    return value.numpy()


@numeric
def iota(*, shape: tuple[int, ...], dtype: DType, axis: int) -> Any:
    """Each element its own position along ``axis``, cast to ``dtype``."""
    positions = cast(np.arange(shape[axis]), dtype=dtype)
    column = positions.reshape([-1 if a == axis else 1 for a in range(len(shape))])
    return np.broadcast_to(column, shape).copy()


@numeric
def rng_bits(key: Array, *, shape: tuple[int, ...]) -> Any:
    """Philox4x32-10 words: element i is word ``i % 4`` of block ``i // 4``.

    The 64-bit block number is in counter words 0 (low) and 1 (high); words 2 and 3 are 0.
    """
    size = math.prod(shape)
    block = np.arange(-(-size // 4), dtype=np.uint64)
    zero = np.zeros_like(block)
    words = philox4x32((block & _LOW, block >> _HALF, zero, zero), (key[0], key[1]))
    return np.stack(words, axis=-1).reshape(-1)[:size].reshape(shape)


_LOW, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)
_FACTORS: Final = tuple(np.uint64(factor) for factor in MULTIPLIERS)

Words = tuple[Array, Array, Array, Array]


def philox4x32(counter: Words, key: tuple[Any, Any]) -> Words:
    """Philox4x32-10 of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011).

    ``counter`` holds four u64 arrays of 32-bit words, ``key`` two integers; gives four u32 arrays.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = int(key[0]), int(key[1])
    for _ in range(ROUNDS):
        left, right = _FACTORS[0] * c0, _FACTORS[1] * c2
        c0, c2 = (right >> _HALF) ^ c1 ^ np.uint64(k0), (left >> _HALF) ^ c3 ^ np.uint64(k1)
        c1, c3 = right & _LOW, left & _LOW
        k0, k1 = (k0 + KEY_STEPS[0]) & 0xFFFFFFFF, (k1 + KEY_STEPS[1]) & 0xFFFFFFFF
    w0, w1, w2, w3 = (word.astype(np.uint32) for word in (c0, c1, c2, c3))
    return w0, w1, w2, w3
