"""How texts of many lengths become few batches of few shapes, so that padding costs little.

A program is compiled for each shape, so lengths are rounded up to a ladder and numbers of rows to
one of a few. Which texts share a batch is then chosen so that the fewest tokens are computed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

ROWS: Final = (1, 4, 16, 32)
"""Numbers of rows. With all powers of two there were half as many shapes again, and padding of
lengths as sentences have them was 21% instead of 23%."""
MOST_TOKENS: Final = 8192
"""Of a batch with padding, unless one text alone has more."""
CALL: Final = 48
"""What a further call costs, in tokens."""


@dataclass(frozen=True)
class Batch:
    """Texts by their numbers, and the shape in which they run: rows and tokens of each."""

    texts: tuple[int, ...]
    rows: int
    length: int


@cache
def lengths(context: int) -> tuple[int, ...]:
    """The ladder of lengths up to ``context``: two for each power of two, from 8 on."""
    found, step = [8], 8
    while found[-1] < context:
        found += [step + step // 2, 2 * step]
        step *= 2
    return (*(one for one in found if one < context), context)


def padded(length: int, context: int) -> int:
    """The length that a text of ``length`` tokens is padded to."""
    ladder = lengths(context)
    return ladder[bisect_left(ladder, length)]


def batches(sizes: Sequence[int], context: int) -> Iterator[Batch]:
    """The batches of texts that have ``sizes`` tokens, none above ``context``: the longest first.

    Texts are sorted by length, and the sequence cut where that costs the fewest tokens.
    """
    order = sorted(range(len(sizes)), key=lambda number: -sizes[number])
    count = len(order)
    best, cut = [0] * (count + 1), [0] * count
    for first in range(count - 1, -1, -1):
        length = padded(sizes[order[first]], context)
        best[first], cut[first] = min(
            (rows * length + CALL + best[min(first + rows, count)], rows)
            for rows in row_counts(length)
        )
    first = 0
    while first < count:
        rows = cut[first]
        yield Batch(tuple(order[first : first + rows]), rows, padded(sizes[order[first]], context))
        first += rows


def row_counts(length: int) -> Iterator[int]:
    """The numbers of rows in which texts padded to ``length`` may run."""
    for rows in ROWS:
        if rows == 1 or rows * length <= MOST_TOKENS:
            yield rows
