"""Codes of several weights as kernels hold them: of vector codebooks, and fifths of bytes.

Of a vector codebook there are packed codes, a table of words of bytes, and perhaps signs.

A byte of the table is a number raised by the zero point. Where signs lie in a plane of their own
the table has sizes alone, and the zero point is 64, about which a byte is negated by two
instructions for a word (the op ``unpack_vectors``).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ptir.weights.words import BYTE, VECTOR_BITS, WORD, words_for

if TYPE_CHECKING:  # it needs NumPy
    from numpy.typing import NDArray

MIDDLE: Final = 64
"""The zero point of numbers whose signs lie apart."""


@dataclass(frozen=True)
class Vectors:
    """Codes of ``bits`` bits that each stand for ``span`` numbers of the grid called ``grid``.

    ``zero`` is added to every number to make it a byte. ``signed``: a plane of bits negates them.
    """

    grid: str
    bits: int
    span: int
    zero: int
    signed: bool

    @property
    def held_bits(self) -> float:
        """Bits of words for each number, beside its sign."""
        return self.bits / self.span

    def words_for(self, size: int) -> int:
        """How many words hold the codes of ``size`` numbers."""
        return words_for(size // self.span, self.bits)

    def __str__(self) -> str:
        signs = " and signs" if self.signed else ""
        return f"codes of {self.bits} bits for {self.span} weights{signs}"

    def words(self) -> NDArray[Any]:
        """The table u32[codes, words of each]."""
        return _words(self)


@dataclass(frozen=True)
class Fifths:
    """Digits of base 3, five in a byte, counted from the one that stands for -1.

    A byte is the fraction of 256 whose digits they are, the first one first. A word has those of
    20 neighbours: digit d of byte b is of number 4 * d + b. 7 words are for ``GROUP`` numbers.
    """

    zero: int = 1
    signed: bool = False

    @property
    def held_bits(self) -> float:
        """Bits of words for each number."""
        return FIFTHS_WORDS * WORD / FIFTHS_GROUP

    def words_for(self, size: int) -> int:
        """How many words hold ``size`` numbers."""
        return size // FIFTHS_GROUP * FIFTHS_WORDS

    def __str__(self) -> str:
        return f"bytes of {DIGITS} digits of base 3"

    def pack(self, numbers: NDArray[Any]) -> NDArray[Any]:
        """The words of numbers 0 to 2, u8[outputs, inputs]."""
        import numpy as np

        outputs, inputs = numbers.shape
        grouped = numbers.reshape(outputs, inputs // FIFTHS_GROUP, FIFTHS_GROUP)
        behind = FIFTHS_WORDS * DIGITS * (WORD // BYTE) - FIFTHS_GROUP
        grouped = np.pad(grouped, ((0, 0), (0, 0), (0, behind)))
        digits = grouped.reshape(outputs, -1, DIGITS, WORD // BYTE).astype(np.uint32)
        places = 3 ** np.arange(DIGITS, dtype=np.uint32)[::-1, None]
        whole = (digits * places).sum(axis=-2)
        fractions = (whole * 256 + 3**DIGITS - 1) // 3**DIGITS
        words = np.ascontiguousarray(fractions.astype(np.uint8)).view("<u4")
        return words.reshape(outputs, -1).astype(np.uint32, copy=False)


DIGITS: Final = 5
"""Digits of base 3 in a byte."""
FIFTHS_GROUP: Final = 128
"""Numbers that have whole words of their own: the inputs of a group."""
FIFTHS_WORDS: Final = 7
"""Their words, the last of which has room left."""


def code_bits(bits: int) -> int | None:
    """The bits in which codes of ``bits`` bits are packed; None for too many."""
    return next((one for one in VECTOR_BITS if one >= bits), None)


@functools.cache
def _words(vectors: Vectors) -> NDArray[Any]:
    import numpy as np

    from ptir.weights.grids import grid

    numbers = grid(vectors.grid) + np.int8(vectors.zero)
    made = np.ascontiguousarray(numbers.astype(np.uint8)).view("<u4").astype(np.uint32, copy=False)
    made.setflags(write=False)
    return made
