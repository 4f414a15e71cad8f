"""Words of bytes inside a kernel: bytes taken, looked up and put in order by masks and shifts.

What comes in: words of few bits as expressions. What goes out: words of bytes, or one byte's place
in them. ``Quantized`` says which of these a weight's chunk needs.
"""

from __future__ import annotations

from collections.abc import Sequence

from ptir.codegen.expressions.bits import moved
from ptir.codegen.expressions.expr import Apply, Const, Expr, constant
from ptir.types import U32
from ptir.weights.words import BYTE, ONES, WORD, greatest, repeated


def from_table(word: Expr, table: Sequence[int]) -> Expr:
    """The bytes of a table at the places that a word's bytes are, by masks: halves by each bit."""
    found: list[Expr] = [constant(U32, one * ONES) for one in table]
    bit = 0
    while len(found) > 1:
        one = Apply(U32, "and", moved(word, -bit), constant(U32, ONES))
        mask = Apply(U32, "mul", one, constant(U32, greatest(BYTE)))
        found = [
            _chosen(mask, low, high) for low, high in zip(found[::2], found[1::2], strict=True)
        ]
        bit += 1
    return found[0]


def _chosen(mask: Expr, low: Expr, high: Expr) -> Expr:
    """The bits of ``high`` where the mask has ones, elsewhere those of ``low``."""
    if isinstance(low, Const) and isinstance(high, Const):
        differing: Expr = constant(U32, int(low.value) ^ int(high.value))
    else:
        differing = Apply(U32, "xor", low, high)
    return Apply(U32, "xor", low, Apply(U32, "and", differing, mask))


def spread_nibbles(word: Expr) -> Expr:
    """The four lowest 4-bit values, a byte each: halves are moved apart, and halves of these."""
    word = Apply(U32, "and", word, constant(U32, repeated(16, WORD)))
    for bits in (8, 4):
        word = Apply(U32, "or", word, Apply(U32, "shift_left", word, constant(U32, bits)))
        word = Apply(U32, "and", word, constant(U32, repeated(bits, 2 * bits)))
    return word


def in_places(words: Sequence[Expr], places: Sequence[int]) -> tuple[Expr, ...]:
    """Words of bytes whose bytes are those of ``words`` at ``places``."""
    found: list[Expr] = []
    for first in range(0, len(places), WORD // BYTE):
        whole: Expr | None = None
        for to, place in enumerate(places[first : first + WORD // BYTE]):
            word, byte = divmod(place, WORD // BYTE)
            there = moved(words[word], BYTE * (to - byte))
            one = Apply(U32, "and", there, constant(U32, greatest(BYTE) << BYTE * to))
            whole = one if whole is None else Apply(U32, "or", whole, one)
        assert whole is not None
        found.append(whole)
    return tuple(found)


def deinterleaved(a: Expr, b: Expr) -> tuple[Expr, Expr]:
    """Two words of bytes as ``bytes_of`` a word orders them: even places, then odd ones."""
    return _even(a, b), _even(_down(a), _down(b))


def _down(word: Expr) -> Expr:
    return Apply(U32, "shift_right", word, constant(U32, 8))


def _even(a: Expr, b: Expr) -> Expr:
    """The bytes at even places of ``a``, then those of ``b``."""

    def halved(word: Expr) -> Expr:
        low = Apply(U32, "and", word, constant(U32, repeated(BYTE, 2 * BYTE)))
        both = Apply(U32, "or", low, Apply(U32, "shift_right", low, constant(U32, 8)))
        return Apply(U32, "and", both, constant(U32, greatest(2 * BYTE)))

    return Apply(U32, "or", halved(a), Apply(U32, "shift_left", halved(b), constant(U32, 16)))
