"""Where values of few bits are in words, as the ops' page says it: a second definition."""

from __future__ import annotations

from typing import Final

PLANES: Final = {1: (0, 16, 32), 3: (2, 16, 32), 5: (4, 8, 32), 6: (4, 8, 16)}
"""Of values in two planes, by their bits: the bits that are in the low one, the values in a word of
it (of 1 bit: half of those in a word), and the values that fill whole words."""


def bit_places(value: int, bits: int) -> list[int]:
    """Where in a line the bits of a value are, the lowest first."""
    if bits not in PLANES:
        return list(range(value * bits, value * bits + bits))
    low, chunk, count = PLANES[bits]
    first, inside = value // count * count * bits, value % count
    words = count // chunk if low else 0
    byte, turn = divmod(inside % chunk, chunk // 4)
    high = first + 32 * words + 8 * byte
    high += (inside // chunk * (chunk // 4) + turn) * (bits - low)
    below = first + inside * low
    return [*range(below, below + low), *range(high, high + bits - low)]


def value_of(line: int, value: int, bits: int) -> int:
    """A value of a line of words, which is one integer."""
    return sum((line >> place & 1) << bit for bit, place in enumerate(bit_places(value, bits)))
