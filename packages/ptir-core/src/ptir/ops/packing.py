"""Values of a few bits packed into u32 words, and unpacked again, as ops on graph values.

Where the bits of a value lie is said in ``ptir.weights.words``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ptir.ir.graph import Ref
from ptir.ops.fill import full
from ptir.ops.layout import broadcast_to, reshape
from ptir.ops.movement import pad
from ptir.ops.movement import slice as slice_op
from ptir.ops.record import literal, op
from ptir.ops.reduction import reduce
from ptir.types import U32
from ptir.weights.words import WORD, greatest, layout, period, words_for


def with_axis(shape: tuple[int, ...], axis: int, *sizes: int) -> tuple[int, ...]:
    """``shape`` with other axes in place of ``axis``."""
    return (*shape[:axis], *sizes, *shape[axis + 1 :])


def packed(values: Ref, axis: int, bits: int) -> Ref:
    """The words of u32 values that fit ``bits`` bits; the last word is filled up with zeros."""
    count, width = period(bits)
    if layout(bits).high:
        moves = [[_move(bits, value, word, 1) for value in range(count)] for word in range(width)]
        spread = _spread(values, axis, count, width)
        mask = _table(_masks(moves), (1,) * (values.type.rank - axis - 1), spread.type.shape)
        parts = _shifted(op("and")(spread, mask), axis, lambda word, value: moves[word][value].by)
    else:
        parts = _moved(values, axis, count, width, lambda word, value: value * bits - word * WORD)
    return _joined(parts, axis, words_for(values.type.shape[axis], bits))


def unpacked(words: Ref, axis: int, bits: int, size: int) -> Ref:
    """The first ``size`` values along ``axis``, as u32."""
    count, width = period(bits)
    if layout(bits).high:
        moves = [[_move(bits, value, word, -1) for word in range(width)] for value in range(count)]
        parts = _moved(words, axis, width, count, lambda value, word: moves[value][word].by)
        mask = _table(_masks(moves), (1,) * (words.type.rank - axis - 1), parts.type.shape)
    else:
        parts = _moved(words, axis, width, count, lambda value, word: word * WORD - value * bits)
        mask = full(greatest(bits), parts.type.shape, U32)
    return _joined(op("and")(parts, mask), axis, size)


class _Move(NamedTuple):
    """What a word has of a value: the bits of the value, and how far up they are moved."""

    mask: int
    by: int


def _move(bits: int, value: int, word: int, sign: int) -> _Move:
    """How a value's bits in a word get there; with a ``sign`` of -1 how they get back."""
    for piece in layout(bits).pieces(value):
        if piece.place // WORD == word:
            mask = greatest(piece.bits) << piece.first
            return _Move(mask, sign * (piece.place % WORD - piece.first))
    return _Move(0, 0)


def _masks(moves: list[list[_Move]]) -> list[list[int]]:
    return [[move.mask for move in line] for line in moves]


def _spread(x: Ref, axis: int, period: int, pieces: int) -> Ref:
    """Every ``period`` items along ``axis`` as ``pieces`` by ``period`` equal ones."""
    size = x.type.shape[axis]
    periods = -(-size // period)
    if size != periods * period:
        none = (0,) * x.type.rank
        extra = with_axis(none, axis, periods * period - size)
        x = pad(x, full(0, (), U32), low=none, high=extra)
    lined = reshape(x, shape=with_axis(x.type.shape, axis, periods, 1, period))
    shape = with_axis(x.type.shape, axis, periods, pieces, period)
    return broadcast_to(lined, shape=shape)


def _moved(x: Ref, axis: int, period: int, pieces: int, amount: Callable[[int, int], int]) -> Ref:
    """Every ``period`` items along ``axis`` as ``pieces`` by ``period`` shifted ones.

    In piece p item i is shifted left by ``amount(p, i)``, right where that is negative; a shift of
    32 or more leaves nothing.
    """
    return _shifted(_spread(x, axis, period, pieces), axis, amount)


def _shifted(spread: Ref, axis: int, amount: Callable[[int, int], int]) -> Ref:
    """Items that are spread, each shifted by its own amount."""
    shape = spread.type.shape
    pieces, period = shape[axis + 1 : axis + 3]
    left = [[amount(p, i) % 2**32 for i in range(period)] for p in range(pieces)]
    right = [[-amount(p, i) % 2**32 for i in range(period)] for p in range(pieces)]
    tail = (1,) * (len(shape) - axis - 3)
    up, down = (_table(rows, tail, shape) for rows in (left, right))
    return op("or")(op("shift_left")(spread, up), op("shift_right")(spread, down))


def _table(rows: list[list[int]], tail: tuple[int, ...], shape: tuple[int, ...]) -> Ref:
    """``rows`` along two axes of ``shape``, those before ``tail``, repeated along the others."""
    import numpy as np

    table = np.array(rows, np.uint32)
    constant = op("constant")(value=literal(table.reshape(*table.shape, *tail)))
    return broadcast_to(constant, shape=shape)


def _joined(parts: Ref, axis: int, size: int) -> Ref:
    """Parts without a common bit added up, and the first ``size`` results along ``axis``."""
    summed = reduce(parts, axes=(axis + 2,), kind="sum")
    shape = summed.type.shape
    flat = reshape(summed, shape=(*shape[:axis], shape[axis] * shape[axis + 1], *shape[axis + 2 :]))
    limits = with_axis(flat.type.shape, axis, size)
    if limits == flat.type.shape:
        return flat
    return slice_op(flat, starts=(0,) * len(limits), limits=limits)
