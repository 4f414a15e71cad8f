"""Values of few bits in 32-bit words, as the ops ``quantize`` and ``dequantize`` know them.

Values of 2, 4 or 8 bits are a stream of bits, low bits first. Values of 3, 5 or 6 bits lie in two
planes: some words have the low bits, as such a stream, and one behind them the high bits of the
same values. What a vector has to do is the same for all: byte by byte of a word, masks and shifts
take one value of each. A *period* is the least number of values that fill whole words; a *chunk*
is what a word of low bits holds, with its share of the word of high bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Final, NamedTuple

WORD: Final = 32
"""Bits of a word."""
BYTE: Final = 8
PLANES: Final = {
    **{1: (0, 1), 2: (2, 0), 3: (2, 1), 4: (4, 0), 5: (4, 1), 6: (4, 2), 8: (8, 0)},
    **{9: (8, 1), 10: (8, 2), 12: (8, 4)},
}
"""By the bits of a value: how many of them, the lowest, are in the low plane, and in the high."""
TABLE_BITS: Final = 4
"""Most bits of a value that stands for an entry of a table of bytes."""
BITS: Final = tuple(bits for bits in PLANES if bits <= BYTE)
"""Bits that a value may have."""
VECTOR_BITS: Final = tuple(bits for bits in PLANES if bits >= BYTE)
"""Bits of a value that stands for a vector of several numbers."""
NIBBLES: Final = "nibbles"
"""The code of a byte whose lower half is the whole number of a scale, the upper of a minimum."""
ODD_NIBBLES: Final = "odd nibbles"
"""The code of a byte whose halves are the scales of two groups: each one more than twice a half."""
BITS_IN_WORDS: Final = f"{', '.join(map(str, BITS[:-1]))} or {BITS[-1]}"
"""The same for people."""


class Piece(NamedTuple):
    """Some bits of a value: how many, from which of its bits on, and where in its period."""

    bits: int
    first: int
    place: int


@dataclass(frozen=True)
class WordLayout:
    """Where values of some bits lie: ``low`` bits of each in one plane, ``high`` in another."""

    low: int
    high: int

    @property
    def parts(self) -> int:
        """Values in a byte of a chunk; as many words of bytes a chunk becomes."""
        return BYTE // (self.low or 2)

    @property
    def chunk(self) -> int:
        """Values of a chunk."""
        return WORD // BYTE * self.parts

    @property
    def above(self) -> int:
        """Bits of a byte of the high plane that a chunk has."""
        return self.parts * self.high

    @property
    def chunks(self) -> int:
        """Chunks of a period: those that share a word of high bits."""
        return BYTE // self.above if self.high else 1

    @property
    def low_words(self) -> int:
        """Words of low bits of a period."""
        return self.chunks if self.low else 0

    @property
    def words(self) -> int:
        """Words of a period."""
        return self.low_words + (self.high > 0)

    def pieces(self, value: int) -> Iterator[Piece]:
        """The bits of a period's value, the low ones first."""
        chunk, inside = divmod(value, self.chunk)
        byte, part = divmod(inside, self.parts)
        if self.low:
            yield Piece(self.low, 0, chunk * WORD + inside * self.low)
        if self.high:
            place = self.low_words * WORD + byte * BYTE + chunk * self.above + part * self.high
            yield Piece(self.high, self.low, place)


@cache
def layout(bits: int) -> WordLayout:
    """The layout of values of ``bits`` bits."""
    return WordLayout(*PLANES[bits])


def words_for(size: int, bits: int) -> int:
    """How many words hold ``size`` values of ``bits`` bits: those of whole periods."""
    count, words = period(bits)
    return -(-size // count) * words


def period(bits: int) -> tuple[int, int]:
    """The least number of values that fill whole words, and how many words those are."""
    found = layout(bits)
    return found.chunks * found.chunk, found.words


def per_word(bits: int) -> int:
    """Values that lie whole in a word."""
    return WORD // bits


def fills_words(size: int, bits: int) -> bool:
    """Whether ``size`` values end where a word does, and a period."""
    return size * bits % WORD == 0


def greatest(bits: int) -> int:
    """The greatest value, which is also the mask of one."""
    return (1 << bits) - 1


def repeated(bits: int, every: int) -> int:
    """The mask of the lowest ``bits`` bits of each ``every`` bits of a word."""
    return sum(greatest(bits) << at for at in range(0, WORD, every))


ONES: Final = repeated(1, BYTE)
"""The lowest bit of every byte of a word."""
SIGNED: Final = BYTE
"""Words of bytes that a word of signs is for: bit p of each of its bytes is for word p."""
