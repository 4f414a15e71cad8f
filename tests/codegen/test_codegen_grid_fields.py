"""Grids looked up in registers: fields say what tables do, and words are those of the op."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from ptir.codegen.expressions.expr import Apply, Const, Coordinate, Expr, Listed, Load
from ptir.codegen.expressions.index import Axis, Index, axis, number, replaced
from ptir.codegen.weights.grid_fields import GridWords, fields_of
from ptir.codegen.weights.panels import LANES
from ptir.ops.numerics.quantized import unpack_vectors
from ptir.types import U32
from ptir.weights import FORMATS
from ptir.weights.affine_form import affine_form
from ptir.weights.vectors import Vectors
from ptir.weights.words import SIGNED, WORD, period

Array = Any
GRIDS = {
    name: form.vectors
    for name in FORMATS
    if (form := affine_form(FORMATS[name])) and isinstance(form.vectors, Vectors)
}
LANE, TURN = Axis("lane", LANES), Axis("n", 1 << 20)


def permuted(places: Array, low: Array, high: Array) -> Array:
    """``vpermi2b``: bytes of two registers at the places that bytes say."""
    both = np.concatenate([low.view(np.uint8), high.view(np.uint8)])
    return both[places.view(np.uint8) & 127].view(np.uint32)


def shifted(words: Array, starts: Array) -> Array:
    """``vpmultishiftqb``: bytes from each bit of a word, or of the next, or of the first of two."""
    longs = words.view(np.uint64)
    found = np.zeros((len(longs), 8), np.uint8)
    for place, start in enumerate(starts.view(np.uint8)[:8] + [0, 0, 0, 0, 32, 32, 32, 32]):
        turned = longs >> np.uint64(start % 64) | longs << np.uint64(-start % 64)
        found[:, place] = turned & 255
    return found.reshape(-1).view(np.uint32)


def negated(words: Array, signs: Array, mask: Array) -> Array:
    set_ = (signs & mask).view(np.uint8) != 0
    given = words.view(np.uint8)
    return np.where(set_, np.uint8(128) - given, given).view(np.uint32)


OPS: dict[str, Callable[..., Array]] = {
    "permute_bytes": permuted,
    "select_bytes": lambda m, a, b: np.where(
        m.view(np.int8) < 0, a.view(np.uint8), b.view(np.uint8)
    ).view(np.uint32),
    "bit_fields": shifted,
    "negate_bytes": negated,
    "table_bytes": lambda w, *table: (
        np.concatenate([one[:1] for one in table]).view(np.uint8)[w.view(np.uint8)].view(np.uint32)
    ),
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "shift_left": lambda a, b: a << b,
    "shift_right": lambda a, b: a >> b,
    "convert": lambda a: a,
}
"""What the ops do with a vector of words."""


def value_of(expr: Expr, operands: Sequence[Array], place: Index) -> Array:
    """An expression in every lane; operands are [lanes, words]."""
    at = {TURN: place}
    match expr:
        case Apply():
            args = [value_of(arg, operands, place) for arg in expr.args]
            return OPS[expr.op](*args).astype(np.uint32, copy=False)
        case Const():
            return np.full(LANES, expr.value, np.uint32)
        case Listed():
            first = replaced(expr.index, {LANE: number(0)}).constant
            return np.array(expr.numbers[first : first + LANES], np.uint32)
        case Load():
            return np.ascontiguousarray(operands[expr.source][:, replaced(expr.index, at).constant])
        case Coordinate():
            return np.full(LANES, replaced(expr.index, at).constant, np.uint32)
    raise AssertionError(expr)


def loaded(operand: int, place: Index) -> Expr:
    return Load(U32, operand, place)


@pytest.mark.parametrize("name", GRIDS)
def test_fields_say_what_a_table_does(name: str) -> None:
    vectors = GRIDS[name]
    fields = fields_of(vectors.words(), vectors.bits)
    assert fields is not None and fields.lifted == name.startswith("IQ1")
    codes = np.arange(1 << vectors.bits)
    top = codes >> (vectors.bits - 1) if fields.lifted else np.zeros_like(codes)
    planes = np.stack([np.frombuffer(plane, np.uint8) for plane in fields.planes], 1)
    held = planes[codes % len(planes)][:, :, None] >> np.arange(fields.members) * fields.width
    places = held.reshape(len(codes), -1) & (1 << fields.width) - 1 | top[:, None] << fields.width
    found = np.array(fields.numbers, np.uint8)[places]
    np.testing.assert_array_equal(found, vectors.words().astype("<u4").view(np.uint8))


@pytest.mark.parametrize("inside", [False, True], ids=["constant", "in a loop"])
@pytest.mark.parametrize("name", GRIDS)
def test_words_are_those_of_the_op(name: str, inside: bool) -> None:
    """Also where a loop goes from one lookup to the next, and where codes lie behind the table."""
    vectors, rng = GRIDS[name], np.random.default_rng(5)
    short = vectors.words()[:-3] if not name.startswith("IQ1") else vectors.words()
    fields = fields_of(short, vectors.bits)
    assert fields is not None
    how = GridWords(fields, vectors.bits, vectors.span // 4, vectors.signed)
    count = 2 * period(vectors.bits)[0] * how.each
    codes, signs = (
        rng.integers(0, 1 << WORD, (LANES, n), np.uint32)
        for n in (2 * period(vectors.bits)[1], count // SIGNED if vectors.signed else 0)
    )
    wanted = unpack_vectors(codes, short, signs, axis=1, bits=vectors.bits)
    step = how.together
    for at in range(count):
        turns, rest = divmod(at, step)
        place = axis("n", 1 << 20) * step + rest if inside else number(at)
        word = how.word(loaded, place)
        assert word is not None
        found = value_of(word, (codes, short, signs), number(turns))
        np.testing.assert_array_equal(found, wanted[:, at], err_msg=f"word {at}")


def test_a_word_at_an_unknown_place_of_a_lookup_is_none() -> None:
    vectors = GRIDS["IQ2_XS"]
    fields = fields_of(vectors.words(), vectors.bits)
    assert fields is not None
    how = GridWords(fields, vectors.bits, 2, True)
    assert how.word(loaded, axis("n", 64)) is None
    assert how.word(loaded, axis("n", 64) * 8 + 3) is not None


def test_entries_of_many_numbers_have_no_fields() -> None:
    table = np.arange(512, dtype=np.uint32).reshape(256, 2)
    assert fields_of(table, 8) is None
    few = (table & 1) * np.uint32(0x01010101)
    found = fields_of(few, 8)
    assert found is not None and found.width == 2 and set(found.numbers) == {0, 1}
