"""How movement ops fold into indexing: one row each in ``MOVEMENT``.

A row gives the element of the result at some coordinates as an expression of elements of the
operands; most only change the coordinates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ptir.codegen.expressions.bits import looked_up, moved_up, taken
from ptir.codegen.expressions.elementwise import cast
from ptir.codegen.expressions.expr import (
    Apply,
    Const,
    Coordinate,
    Expr,
    as_index,
    compare,
    constant,
    select,
)
from ptir.codegen.expressions.index import ZERO, Index, ravel_index, unravel_index
from ptir.ir.program import Instruction
from ptir.ops.sliding import WindowDimension, window_dimensions
from ptir.types import BOOL, F32, I32, U8, U32, DType, TensorType
from ptir.weights.tables import Table
from ptir.weights.words import BYTE, ONES, SIGNED, WORD, WordLayout, greatest, layout

Coordinates = tuple[Index, ...]


@dataclass(frozen=True)
class Operands:
    """An instruction, its operands' types, and their elements by operand number."""

    instruction: Instruction
    types: tuple[TensorType, ...]
    at: Callable[[int, Coordinates], Expr]

    def __getitem__(self, name: str) -> Any:
        return self.instruction.attributes[name]

    @property
    def type(self) -> TensorType:
        """The result's type."""
        return self.instruction.types[0]


def _reshape(op: Operands, at: Coordinates) -> Expr:
    return op.at(0, _reshaped(at, op.type.shape, op.types[0].shape))


def _reshaped(at: Coordinates, shape: Sequence[int], other: Sequence[int]) -> Coordinates:
    """The coordinates in another shape of what is ``at`` coordinates of a shape.

    Those of leading axes that both have stay as they are.
    """
    pairs = enumerate(zip(shape, other, strict=False))
    same = next((n for n, (a, b) in pairs if a != b), min(len(shape), len(other)))
    return (*at[:same], *unravel_index(ravel_index(at[same:], shape[same:]), other[same:]))


def _transpose(op: Operands, at: Coordinates) -> Expr:
    moved = [ZERO] * len(at)
    for place, source in enumerate(op["permutation"]):
        moved[source] = at[place]
    return op.at(0, tuple(moved))


def _broadcast(op: Operands, at: Coordinates) -> Expr:
    shape = op.types[0].shape
    kept = at[len(at) - len(shape) :]
    return op.at(0, tuple(ZERO if n == 1 else c for n, c in zip(shape, kept, strict=True)))


def _slice(op: Operands, at: Coordinates) -> Expr:
    strides = op["strides"] or (1,) * len(at)
    starts = op["starts"]
    return op.at(0, tuple(c * n + s for c, n, s in zip(at, strides, starts, strict=True)))


def _reverse(op: Operands, at: Coordinates) -> Expr:
    shape = op.types[0].shape
    turned = [
        c * -1 + (n - 1) if place in op["axes"] else c
        for place, (c, n) in enumerate(zip(at, shape, strict=True))
    ]
    return op.at(0, tuple(turned))


def _tile(op: Operands, at: Coordinates) -> Expr:
    shape = op.types[0].shape
    return op.at(0, tuple(c % n for c, n in zip(at, shape, strict=True)))


def limited(index: Index, size: int) -> Index:
    """``index`` forced into ``0 .. size - 1``; unchanged where it cannot leave that range."""
    if index.low >= 0 and index.high < size:
        return index
    here = Coordinate(I32, index)
    return as_index(clamped(here, constant(I32, 0), constant(I32, size - 1)), 0, size - 1)


def clamped(x: Expr, low: Expr, high: Expr) -> Expr:
    """``x`` forced into ``low .. high`` of its integer type."""
    above = select(compare("gt", x, high), high, x)
    return select(compare("lt", x, low), low, above)


def _within(index: Index, size: int) -> Expr:
    """Whether an index lies in ``0 .. size - 1``."""
    here = Coordinate(I32, index)
    first = compare("ge", here, 0)
    last = compare("lt", here, size)
    return both(first, last)


def both(a: Expr, b: Expr) -> Expr:
    """``a and b`` of masks."""
    if isinstance(a, Const):
        return select(a, b, constant(BOOL, 0))
    return select(b, a, constant(BOOL, 0)) if isinstance(b, Const) else a & b


def _concat(op: Operands, at: Coordinates) -> Expr:
    axis = op["axis"] % len(at)
    result: Expr | None = None
    end = op.type.shape[axis]
    for number in reversed(range(len(op.types))):
        size = op.types[number].shape[axis]
        begin, end = end - size, end
        if size:
            local = limited(at[axis] - begin, size)
            piece = op.at(number, (*at[:axis], local, *at[axis + 1 :]))
            below = compare("lt", Coordinate(I32, at[axis]), end)
            result = piece if result is None else select(below, piece, result)
        end = begin
    assert result is not None
    return result


def spread(
    at: Sequence[Index], shape: Sequence[int], gaps: Sequence[int]
) -> tuple[Expr, Coordinates]:
    """Whether places along axes with ``gaps`` between elements hold one, and which one."""
    inside: Expr = constant(BOOL, -1)
    moved: list[Index] = []
    for local, n, gap in zip(at, shape, gaps, strict=True):
        extent = (n - 1) * (gap + 1) + 1
        inside = both(inside, _within(local, extent))
        local = limited(local, max(1, extent))
        if gap:
            on = compare("eq", Coordinate(I32, local % (gap + 1)), 0)
            inside = both(inside, on)
        moved.append(local // (gap + 1))
    return inside, tuple(moved)


def tapped(
    places: Sequence[Index], taps: Sequence[Index], dimensions: Sequence[WindowDimension]
) -> tuple[Expr, Coordinates]:
    """Whether taps of windows, which are at ``places``, see an element, and which one."""
    at = [
        place * dimension.stride + tap * dimension.window_dilation - dimension.low
        for place, tap, dimension in zip(places, taps, dimensions, strict=True)
    ]
    gaps = [dimension.base_dilation - 1 for dimension in dimensions]
    return spread(at, [dimension.size for dimension in dimensions], gaps)


def _pad(op: Operands, at: Coordinates) -> Expr:
    shape = op.types[0].shape
    interior = op["interior"] or (0,) * len(at)
    local = [c - low for c, low in zip(at, op["low"], strict=True)]
    inside, moved = spread(local, shape, interior)
    filler = op.at(1, ())
    return filler if not op.types[0].size else select(inside, op.at(0, moved), filler)


def _extract_patches(op: Operands, at: Coordinates) -> Expr:
    """What each tap of each window sees: an element, or zero outside and in gaps."""
    shape, spatial = op.types[0].shape, op.types[0].rank - 2
    geometry: dict[str, Any] = dict(op.instruction.attributes.items())
    found = window_dimensions(shape[1:-1], **geometry)
    inside, moved = tapped(at[1 : spatial + 1], at[spatial + 1 : -1], found)
    dtype = op.type.dtype
    filler = Const(dtype, 0) if dtype.bits == 8 else constant(dtype, 0)
    return select(inside, op.at(0, (at[0], *moved, at[-1])), filler)


def _clamped_read(index: Expr, size: int) -> Index:
    """An index operand's element forced into ``0 .. size - 1``."""
    if index.dtype.bits < I32.bits:  # the size may not fit: widen first
        index = Apply(I32, "convert", index)
    top = constant(index.dtype, size - 1)
    if index.dtype.kind == "uint":
        safe = select(compare("gt", index, top), top, index)
    else:
        safe = clamped(index, constant(index.dtype, 0), top)
    return as_index(safe if safe.dtype == I32 else Apply(I32, "convert", safe), 0, size - 1)


def _take(op: Operands, at: Coordinates) -> Expr:
    axis, middle = op["axis"] % op.types[0].rank, op.types[1].rank
    row = op.at(1, at[axis : axis + middle])
    where = _clamped_read(row, op.types[0].shape[axis])
    return op.at(0, (*at[:axis], where, *at[axis + middle :]))


def _starts(op: Operands, operand: int, sizes: Sequence[int]) -> list[Index]:
    """The clamped start along each axis of a dynamic slice."""
    found: list[Index] = []
    for place, (n, size) in enumerate(zip(op.types[0].shape, sizes, strict=True)):
        start = op.at(operand, (ZERO + place,))
        found.append(_clamped_read(start, n - size + 1))
    return found


def _dynamic_slice(op: Operands, at: Coordinates) -> Expr:
    starts = _starts(op, 1, op.type.shape)
    return op.at(0, tuple(c + s for c, s in zip(at, starts, strict=True)))


def _dynamic_update_slice(op: Operands, at: Coordinates) -> Expr:
    sizes = op.types[1].shape
    if not math.prod(sizes):
        return op.at(0, at)
    inside: Expr = constant(BOOL, -1)
    moved: list[Index] = []
    for c, s, n in zip(at, _starts(op, 2, sizes), sizes, strict=True):
        inside = both(inside, _within(c - s, n))
        moved.append(limited(c - s, n))
    return select(inside, op.at(1, tuple(moved)), op.at(0, at))


def _iota(op: Operands, at: Coordinates) -> Expr:
    return cast(op.type.dtype, Coordinate(I32, at[op["axis"]]))


def _dequantize(op: Operands, at: Coordinates) -> Expr:
    """The bits of a word, or of two, shifted and masked, times their scale plus their bias."""
    axis, bits, group = op["axis"], op["bits"], op["group"]

    def bits_from(begin: Index, bits: int) -> Expr:
        word = op.at(0, (*at[:axis], begin // WORD, *at[axis + 1 :]))
        return taken(word, begin % WORD, bits)

    value = _in_planes(layout(bits), at[axis], bits_from)
    scales = [_wide_scale(op, number, at, axis, group) for number in (1, 2)]
    number: Expr = Apply(F32, "convert", value)
    table: Table | None = op["table"]
    if isinstance(table, DType):
        number = cast(F32, Apply(table, "bits", Apply(U8, "convert", value)))
    elif table is not None:
        number = looked_up([constant(F32, entry) for entry in table], value)
    product = number * scales[0]
    return cast(op.type.dtype, product + scales[1])


def _unpack_vectors(op: Operands, at: Coordinates) -> Expr:
    """A word of a table's row, whose number is a code, with the signs of its bytes."""
    axis, bits = op["axis"], op["bits"]

    def along(operand: int, place: Index) -> Expr:
        return op.at(operand, (*at[:axis], place, *at[axis + 1 :]))

    return vector_word(
        at[axis],
        bits,
        op.types[1].shape,
        lambda place: along(0, place),
        lambda entry, word: op.at(1, (entry, word)),
        (lambda place: along(2, place)) if op.types[2].shape[axis] else None,
    )


def vector_word(
    place: Index,
    bits: int,
    table: tuple[int, ...],
    code_word: Callable[[Index], Expr],
    entry: Callable[[Index, Index], Expr],
    sign_word: Callable[[Index], Expr] | None,
) -> Expr:
    """The word at a place of what codes of some bits stand for in a table of a shape.

    ``code_word`` and ``sign_word`` give a word along the packed axis, ``entry`` one of the table.
    """
    entries, each = table

    def bits_from(begin: Index, count: int) -> Expr:
        return taken(code_word(begin // WORD), begin % WORD, count)

    code = _in_planes(layout(bits), place // each, bits_from)
    if entries <= greatest(bits):
        code = Apply(U32, "min", code, constant(U32, entries - 1))
    row = as_index(Apply(I32, "convert", code), 0, entries - 1)
    found = entry(row, place % each)
    if sign_word is None:
        return found
    amount = Apply(U32, "convert", Coordinate(I32, place % SIGNED))
    ones = sign_word(place // SIGNED) >> amount
    ones = ones & ONES
    raised = (ones << 7) - ones
    return (found ^ raised) + ones


def _in_planes(how: WordLayout, place: Index, bits_from: Callable[[Index, int], Expr]) -> Expr:
    """A value of words: what it has in the plane of low bits and in that of high bits."""
    if not how.high:
        return bits_from(place * how.low, how.low)
    chunk, inside = place // how.chunk, place % how.chunk
    period, chunk = chunk // how.chunks * (how.words * WORD), chunk % how.chunks
    byte, part = inside // how.parts, inside % how.parts
    first = period + (how.low_words * WORD)
    high = bits_from(first + byte * BYTE + chunk * how.above + part * how.high, how.high)
    if not how.low:
        return high
    low = bits_from(period + chunk * WORD + inside * how.low, how.low)
    return low | moved_up(high, how.low)


def _wide_scale(op: Operands, number: int, at: Coordinates, axis: int, group: int) -> Expr:
    """A scale or bias in f32: one for a group, and one or all along the other axes."""
    shape = op.types[number].shape
    places = (c // group if a == axis else c for a, c in enumerate(at))
    found = (ZERO if n == 1 else c for n, c in zip(shape, places, strict=True))
    return cast(F32, op.at(number, tuple(found)))


MOVEMENT: Final[dict[str, Callable[[Operands, Coordinates], Expr]]] = {
    "reshape": _reshape,
    "transpose": _transpose,
    "broadcast_to": _broadcast,
    "slice": _slice,
    "reverse": _reverse,
    "tile": _tile,
    "concat": _concat,
    "pad": _pad,
    "extract_patches": _extract_patches,
    "take": _take,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
    "iota": _iota,
    "dequantize": _dequantize,
    "unpack_vectors": _unpack_vectors,
}


def _through_reshape(op: Operands, at: Coordinates) -> Coordinates:
    return _reshaped(at, op.types[0].shape, op.type.shape)


def _through_transpose(op: Operands, at: Coordinates) -> Coordinates:
    return tuple(at[source] for source in op["permutation"])


THROUGH: Final[dict[str, Callable[[Operands, Coordinates], Coordinates]]] = {
    "reshape": _through_reshape,
    "transpose": _through_transpose,
}
"""Where an element of the operand stands in the result, for views that keep every element."""

FREE: Final = frozenset(
    ("reshape", "transpose", "broadcast_to", "slice", "reverse", "tile", "iota", "stop_gradient")
)
"""Ops that cost nothing wherever they are read: they are never computed on their own."""
