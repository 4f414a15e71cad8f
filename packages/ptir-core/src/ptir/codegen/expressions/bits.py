"""Runs of bits taken out of what lies in memory, as unsigned numbers of 32 bits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ptir.codegen.expressions.expr import Apply, Coordinate, Expr, compare, select
from ptir.codegen.expressions.index import Index
from ptir.types import F32, I32, U32
from ptir.weights.record import FLOATS
from ptir.weights.words import WORD, greatest

EXPONENT: Final = FLOATS[F32].exponent
FRACTION: Final = FLOATS[F32].fraction
BIAS: Final = FLOATS[F32].bias
"""Of an f32: the bits of its exponent and its fraction, and what the exponent is raised by."""


def taken(word: Expr, shift: Index, bits: int) -> Expr:
    """The ``bits`` bits of a word from bit ``shift`` on."""
    amount = Apply(U32, "convert", Coordinate(I32, shift))
    return (word >> amount) & greatest(bits)


def spanning(low: Expr, high: Expr, shift: Index, bits: int) -> Expr:
    """The same where they may reach into the word above.

    A shift by 32 bits is none in most languages, so two bring the word above down.
    """
    amount = Apply(U32, "convert", Coordinate(I32, shift))
    rest = Apply(U32, "convert", Coordinate(I32, shift * -1 + (WORD - 1)))
    return ((low >> amount) | ((high << 1) << rest)) & greatest(bits)


def joined(units: list[Expr], bits: int) -> Expr:
    """Neighbours of ``bits`` bits, lowest first, as one number."""
    found = units[0]
    for place, unit in enumerate(units[1:], 1):
        found |= moved_up(unit, place * bits)
    return found


def looked_up(values: Sequence[Expr], code: Expr) -> Expr:
    """The value of a code, of two to the power of its bits: halves, by one bit after the other."""
    found, bit = list(values), 1
    while len(found) > 1:
        mask = compare("ne", code & bit, 0)
        found = [
            low if low == high else select(mask, high, low)
            for low, high in zip(found[::2], found[1::2], strict=True)
        ]
        bit *= 2
    return found[0]


def moved_up(value: Expr, by: int) -> Expr:
    """A number shifted to the left."""
    return value << by if by else value


def moved(word: Expr, by: int) -> Expr:
    """A word shifted to the left, to the right where ``by`` is negative."""
    return moved_up(word, by) if by >= 0 else word >> -by
