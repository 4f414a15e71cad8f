"""The bit stream of the ops ``quantize`` and ``dequantize``: values of few bits in 32-bit words.

A line of values is a stream of bits, low bits first, without gaps, cut into words.
"""

from __future__ import annotations

import math
from typing import Final

WORD: Final = 32
"""Bits of a word."""
BITS: Final = (2, 3, 4, 8)
"""Bits that a value may have."""
BITS_IN_WORDS: Final = f"{', '.join(map(str, BITS[:-1]))} or {BITS[-1]}"
"""The same for people."""


def words_for(size: int, bits: int) -> int:
    """How many words hold ``size`` values of ``bits`` bits."""
    return -(-size * bits // WORD)


def period(bits: int) -> tuple[int, int]:
    """The least number of values that fill whole words, and how many words those are."""
    together = math.lcm(bits, WORD)
    return together // bits, together // WORD


def per_word(bits: int) -> int:
    """Values that lie whole in a word."""
    return WORD // bits


def fills_words(size: int, bits: int) -> bool:
    """Whether ``size`` values end where a word does."""
    return size * bits % WORD == 0


def spans_words(bits: int) -> bool:
    """Whether a value may lie in two words."""
    return WORD % bits != 0


def greatest(bits: int) -> int:
    """The greatest value, which is also the mask of one."""
    return (1 << bits) - 1


def repeated(bits: int, every: int) -> int:
    """The mask of the lowest ``bits`` bits of each ``every`` bits of a word."""
    return sum(greatest(bits) << at for at in range(0, WORD, every))
