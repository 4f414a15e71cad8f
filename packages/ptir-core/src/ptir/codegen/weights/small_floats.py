"""Floats of 8 bits looked up 64 at a time, where a processor permutes bytes.

What comes in: a word of four codes for each lane. What goes out: their numbers as f32, whose two
upper bytes are in tables of 128: the other half of all codes differs in the sign alone.
"""

from __future__ import annotations

from functools import cache
from typing import Final

import numpy as np

from ptir.codegen.expressions.bits import moved
from ptir.codegen.expressions.expr import Apply, Expr, Listed
from ptir.codegen.expressions.index import axis
from ptir.codegen.weights.panels import LANES
from ptir.types import F32, U32, DType
from ptir.weights.tables import entries
from ptir.weights.words import BYTE, ONES, WORD

CODES: Final = 128
"""Codes of a table."""
SIGNS: Final = ONES << (BYTE - 1)
"""The signs of four codes."""


@cache
def _tables(dtype: DType) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The highest byte of the f32 of each positive code, and the one below, as words."""
    halves = entries(dtype, BYTE)[:CODES].view(np.uint32) >> (WORD // 2)
    bytes_ = (halves >> BYTE).astype(np.uint8), halves.astype(np.uint8)
    high, low = (tuple(map(int, one.view("<u4").tolist())) for one in bytes_)
    return high, low


def looked_up_float(dtype: DType, word: Expr, number: int) -> Expr:
    """The f32 of one of a word's four codes."""
    high, low = (_permuted(word, table) for table in _tables(dtype))
    high = high | (word & SIGNS)
    above = moved(high, BYTE * (3 - number)) & (0xFF << 3 * BYTE)
    below = moved(low, BYTE * (2 - number)) & (0xFF << 2 * BYTE)
    return Apply(F32, "bits", above | below)


def _permuted(word: Expr, table: tuple[int, ...]) -> Expr:
    """The byte of a table for each byte of a word."""
    parts = [Listed(U32, table, axis("lane", LANES) + n * LANES) for n in range(2)]
    return Apply(U32, "permute_bytes", word, *parts)
