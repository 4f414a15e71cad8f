"""Vector codebooks as kernels hold them: packed codes, a table of words of bytes, planes of signs.

A byte of the table is a number raised by the zero point. Where signs lie in a plane of their own
the table has sizes alone, and the zero point is 64, about which a byte is negated by two
instructions for a word (the op ``unpack_vectors``).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ptir.weights.words import VECTOR_BITS

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
        """Bits of memory for each number."""
        return self.bits / self.span + self.signed

    def words(self) -> NDArray[Any]:
        """The table u32[codes, words of each]."""
        return _words(self)


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
