"""Oracles of iota and rng_bits: counting, and Philox4x32-10 as its paper has it.

Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from ptir_testsuite.oracles.expected import Expected, exactly, from_outcomes
from ptir_testsuite.oracles.floats import stored
from ptir_testsuite.oracles.table import Given, oracle

ROUNDS: Final = 10
MULTIPLIERS: Final = (0xD2511F53, 0xCD9E8D57)
WEYL: Final = (0x9E3779B9, 0xBB67AE85)
WORD: Final = 0xFFFFFFFF

Block = tuple[int, int, int, int]


def philox(counter: Block, key: tuple[int, int]) -> Block:
    """One block of four random words."""
    a, b, c, d = counter
    k, m = key
    for _ in range(ROUNDS):
        first, second = MULTIPLIERS[0] * a, MULTIPLIERS[1] * c
        a, b, c, d = (second >> 32) ^ b ^ k, second & WORD, (first >> 32) ^ d ^ m, first & WORD
        k, m = (k + WEYL[0]) & WORD, (m + WEYL[1]) & WORD
    return a, b, c, d


@oracle("rng_bits")
def _rng_bits(given: Given) -> list[Expected]:
    (result,) = given.results
    first, second = given.arrays[0].tolist()
    words: list[int] = []
    for block in range(-(-result.size // 4)):
        words += philox((block & WORD, block >> 32, 0, 0), (first, second))
    return [exactly(stored(words[: result.size], result.dtype, result.shape))]


@oracle("iota")
def _iota(given: Given) -> list[Expected]:
    (result,) = given.results
    positions = [index[given["axis"]] for index in np.ndindex(*result.shape)]
    if result.dtype.is_float:
        return [from_outcomes([(p, 1) for p in positions], result)]
    return [from_outcomes(list(positions), result)]
