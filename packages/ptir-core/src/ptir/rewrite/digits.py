"""Views as digits: where each element of a result lies in the array that it is read from.

A view is a function from a flat (row-major) index to a flat index. It is written as digits, outer
ones first, each with a size and a stride, and an offset. Written so, a reshape is nothing, and two
chains of views are equal exactly where their digits are: adjacent digits that go on from each other
are one, and those of size 1 are none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

Digit = tuple[int, int]
"""A size and a stride."""


class Digits(NamedTuple):
    """A view: digits from the outermost to the innermost, and where the first element lies."""

    digits: tuple[Digit, ...]
    offset: int = 0

    @property
    def size(self) -> int:
        """How many elements are seen."""
        return math.prod(n for n, _ in self.digits)


def merged(digits: Sequence[Digit], offset: int = 0) -> Digits:
    """The one form of a view."""
    found: list[Digit] = []
    for size, stride in digits:
        if size == 1:
            continue
        if found and found[-1][1] == size * stride:
            found[-1] = (found[-1][0] * size, stride)
        else:
            found.append((size, stride))
    return Digits(tuple(found), offset)


def identity(size: int) -> Digits:
    """Every element where it is."""
    return merged([(size, 1)])


def strides_of(shape: Sequence[int]) -> list[int]:
    """The stride of each axis in elements, row-major."""
    strides = [1] * len(shape)
    for axis in range(len(shape) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * shape[axis + 1]
    return strides


def permuted(shape: Sequence[int], order: Sequence[int]) -> Digits:
    """An array of ``shape`` with its axes in another order."""
    strides = strides_of(shape)
    return merged([(shape[axis], strides[axis]) for axis in order])


def broadcast(shape: Sequence[int], wanted: Sequence[int]) -> Digits:
    """An array of ``shape`` as one of ``wanted``, axes from the right."""
    strides = strides_of(shape)
    lead = len(wanted) - len(shape)
    digits = [(size, 0) for size in wanted[:lead]]
    pairs = zip(wanted[lead:], shape, strides, strict=True)
    digits += [(size, stride if size == own else 0) for size, own, stride in pairs]
    return merged(digits)


def sliced(
    shape: Sequence[int], starts: Sequence[int], steps: Sequence[int], kept: Sequence[int]
) -> Digits:
    """``kept`` elements of each axis of ``shape``, from ``starts`` on."""
    strides = strides_of(shape)
    offset = sum(start * stride for start, stride in zip(starts, strides, strict=True))
    rows = zip(kept, steps, strides, strict=True)
    return merged([(size, step * stride) for size, step, stride in rows], offset)


def split(view: Digits, inner: int) -> tuple[tuple[Digit, ...], tuple[Digit, ...]] | None:
    """The digits above the last ``inner`` elements, and those of them; None where one is cut."""
    digits, below = list(view.digits), []
    left = inner
    while left > 1:
        if not digits:
            return None
        size, stride = digits.pop()
        if left % size == 0:
            below.append((size, stride))
            left //= size
        elif size % left == 0:
            below.append((left, stride))
            digits.append((size // left, stride * left))
            left = 1
        else:
            return None
    return tuple(digits), tuple(reversed(below))


def in_blocks(view: Digits, inner: int) -> Digits | None:
    """A view that leaves blocks of ``inner`` elements whole, as one of blocks; else None."""
    parts = split(view, inner)
    if parts is None or merged(parts[1]) != identity(inner) or view.offset % inner:
        return None
    if any(stride % inner for _, stride in parts[0]):
        return None
    return Digits(tuple((n, stride // inner) for n, stride in parts[0]), view.offset // inner)


def of_blocks(view: Digits, inner: int) -> Digits:
    """A view of blocks of ``inner`` elements each, as one of elements."""
    digits = [(n, stride * inner) for n, stride in view.digits]
    return merged([*digits, (inner, 1)], view.offset * inner)


MOST: Final = 24
"""Digits of a view beyond which it is not looked into."""


def composed(outer: Digits, inner: Digits) -> Digits | None:
    """What ``outer`` sees of what ``inner`` sees; None where that has no digits."""
    places = strides_of([size for size, _ in inner.digits])
    sizes = [size for size, _ in inner.digits]
    found: list[Digit] = []
    reached = [(outer.offset // place) % size for place, size in zip(places, sizes, strict=True)]
    if len(outer.digits) > MOST or len(sizes) > MOST:
        return None
    for size, stride in outer.digits:
        pieces = _pieces(size, stride, places, sizes, reached)
        if pieces is None:
            return None
        found += [(n, step * inner.digits[at][1] if at >= 0 else 0) for n, step, at in pieces]
    if any(top >= size for top, size in zip(reached, sizes, strict=True)):
        return None
    starts = zip(places, inner.digits, strict=True)
    offset = sum((outer.offset // place) % size * stride for place, (size, stride) in starts)
    return merged(found, inner.offset + offset)


def _pieces(
    size: int, stride: int, places: Sequence[int], sizes: Sequence[int], reached: list[int]
) -> list[tuple[int, int, int]] | None:
    """A digit as pieces that stay inside one digit below: size, steps, which; outer ones first."""
    if size == 1 or stride == 0:
        return [(size, 0, -1)]
    pieces: list[tuple[int, int, int]] = []
    while size > 1:
        at = next((i for i, place in enumerate(places) if place <= stride), None)
        if at is None or stride % places[at] or stride >= places[at] * sizes[at]:
            return None
        step = stride // places[at]
        count = size
        if (size - 1) * step >= sizes[at]:
            if sizes[at] % step or size % (sizes[at] // step):
                return None
            count = sizes[at] // step
        reached[at] += (count - 1) * step
        pieces.append((count, step, at))
        size //= count
        stride *= count
    return pieces[::-1]
