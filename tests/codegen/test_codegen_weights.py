"""What is read of a stored weight, what kernels refuse to read, and what words become."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from ptir.codegen.expressions.expr import Apply, Const, Coordinate, Expr, Load, substitute, walk
from ptir.codegen.expressions.index import Axis, Index, axis, number
from ptir.codegen.weights.panels import LANES, Panels
from ptir.codegen.weights.quantized import Quantized
from ptir.codegen.weights.values import fused_value_at, value_at
from ptir.codegen.weights.word_bytes import deinterleaved
from ptir.errors import UnsupportedError
from ptir.types import F32, U8, U32, U64
from ptir.weights import FORMATS, FusedFormat, StoredArray, WeightFormat, affine
from ptir.weights.record import EVERY, Digit, Integer, Numbers, Plane, Quantity, Run
from ptir.weights.words import BITS
from word_planes import value_of

N, K = axis("n", 64), axis("k", 512)


def read(stored: StoredArray, line: Index, column: Index) -> Expr:
    return Load(stored.dtype, hash(stored.name) % 1000, line * 10_000 + column)


def loads(expr: Expr) -> list[Load]:
    return [one for one in walk(expr) if isinstance(one, Load)]


@pytest.mark.parametrize(
    ("name", "count"),
    [("int4", 2), ("int8", 2), ("Q8_0", 3), ("Q4_0", 3), ("f8e4m3", 2), ("Q6_K", 5), ("Q4_K", 9)],
)
def test_no_more_is_read_than_a_weight_needs(name: str, count: int) -> None:
    """A word and a scale; for Q4_K its byte, two bytes of d and dmin, two each of both sixes."""
    assert len(loads(value_at(FORMATS[name], read, N, K))) == count


def test_a_run_that_an_output_cannot_be_in_is_not_read() -> None:
    format = FusedFormat((Run(FORMATS["int4"], 32), Run(FORMATS["Q8_0"], 32)))
    behind = value_at(FORMATS["Q8_0"], read, axis("n", 32), K)
    assert fused_value_at(format, [read, read], axis("n", 32) + 32, K) is behind
    before = value_at(FORMATS["int4"], read, axis("n", 32), K)
    assert fused_value_at(format, [read, read], axis("n", 32), K) is before
    assert len(loads(fused_value_at(format, [read, read], N, K))) == 5


def test_an_entry_for_all_is_one_place() -> None:
    codes, absmax = FORMATS["nf4"].arrays
    scale = replace(absmax, outputs=EVERY, blocks=EVERY)
    format = replace(FORMATS["nf4"], arrays=(codes, scale))
    (found,) = (one for one in loads(value_at(format, read, N, K)) if one.dtype == F32)
    assert found.index == number(0)


def test_bits_in_more_elements_than_kernels_join_are_refused() -> None:
    plane = Plane("codes", 3, 0, (Digit(64, 3),))
    value = Quantity(Numbers((plane,), Integer()))
    held = StoredArray("codes", U64, 3)
    format = WeightFormat("wide", 64, (held,), value)
    message = "weight format wide: 3 bits lie in 2 elements of u64; kernels read them from up to 32"
    with pytest.raises(UnsupportedError, match=message):
        value_at(format, read, N, K)
    bytes_ = WeightFormat("narrow", 64, (StoredArray("codes", U8, 24),), value)
    assert len(loads(value_at(bytes_, read, N, K))) == 2


def test_grids_are_refused_with_what_is_read_instead() -> None:
    message = (
        "weight format IQ2_S: kernels have no grids; they read the words that ptir.weights.aff"
    )
    with pytest.raises(UnsupportedError, match=message):
        value_at(FORMATS["IQ2_S"], read, N, K)


BY_TWOS = (0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15)
BY_FOURS = (0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15)


@pytest.mark.parametrize(
    ("bits", "unit", "parts", "order"),
    [
        (2, 4.0, 4, BY_FOURS),
        (3, 8.0, 4, BY_FOURS),
        (4, 16.0, 2, BY_TWOS),
        (5, 32.0, 2, BY_TWOS),
        (6, 64.0, 2, BY_TWOS),
        (8, 256.0, 1, tuple(range(16))),
    ],
)
def test_words_become_bytes_in_an_order_that_activations_take(
    bits: int, unit: float, parts: int, order: tuple[int, ...]
) -> None:
    panels = Panels(U32, 32, 512 * bits // 32, "oi", 1)
    symmetric = affine("any", bits, 32, bias=None, zero=5.0)
    made = Quantized(0, panels, 1, 2, symmetric)
    assert (made.unit, made.parts, made.order_of_bytes(16)) == (unit, parts, order)
    per = {2: 16, 3: 16, 4: 8, 5: 8, 6: 8, 8: 4}[bits]
    assert (made.per, made.inputs, made.group, made.zero) == (per, 512, 32, -5.0)
    assert Quantized(0, panels, 1, 2, affine("any", bits, 32)).zero is None


WORDS = {
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "mul": lambda a, b: a * b & 0xFFFFFFFF,
    "table_bytes": lambda w, *table: int.from_bytes(
        bytes(struct.pack("<4I", *table)[place] for place in w.to_bytes(4, "little")), "little"
    ),
    "shift_left": lambda a, b: a << b & 0xFFFFFFFF,
    "shift_right": lambda a, b: a >> b,
    "convert": lambda a: a,
    "bits": lambda a: struct.unpack("<f", struct.pack("<I", a))[0],
}
"""Scalar ops on words, in Python."""


def evaluated(expr: Expr, words: Sequence[int]) -> Any:
    """An expression whose loads are words of the line of the first output."""
    match expr:
        case Apply():
            return WORDS[expr.op](*(evaluated(arg, words) for arg in expr.args))
        case Load():
            return words[expr.index.constant // LANES]
        case Coordinate():
            return expr.index.constant
    return expr.value if isinstance(expr, Const) else None


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("bits", BITS)
def test_chunks_become_their_values(bits: int, seed: int) -> None:
    """Every value at its place, and every byte; of a chunk whose place is known, or is not."""
    line = random.Random(seed).getrandbits(64 * bits)
    words = [line >> at & 0xFFFFFFFF for at in range(0, 64 * bits, 32)]
    made = Quantized(0, Panels(U32, 32, len(words), "oi", 1), 1, 2, affine("any", bits, 64))
    for chunk in range(64 // made.per):
        values = [value_of(line, chunk * made.per + n, bits) for n in range(made.per)]
        held = made.chunk(number(0), number(chunk))
        for one in (held, made.chunk_of(held.words())):
            raised = [evaluated(made.biased(one, place), words) for place in range(made.per)]
            assert raised == [value + 2.0**bits for value in values]
            found = [evaluated(part, words) for part in made.bytes_of(one)]
            parts = b"".join(part.to_bytes(4, "little") for part in found)
            assert list(parts) == [values[at] for at in made.order_of_bytes(made.per)]
        if bits == 4:
            ordered = [evaluated(one, words).to_bytes(4, "little") for one in made.in_order(held)]
            assert list(b"".join(ordered)) == values


@pytest.mark.parametrize("bits", [1, 2, 3, 4])
def test_places_in_a_table_become_its_bytes(bits: int) -> None:
    """One by one after masks; all of a chunk by the op of kernels that multiply bytes."""
    rng = random.Random(bits)
    line, table = rng.getrandbits(64 * bits), tuple(rng.sample(range(255), 2**bits - 1)) + (255,)
    words = [line >> at & 0xFFFFFFFF for at in range(0, 64 * bits, 32)]
    panels = Panels(U32, 32, len(words), "oi", 1)
    made = Quantized(0, panels, 1, 2, affine("any", bits, 64), table)
    assert (made.unit, made.largest) == (256.0, 255)
    for chunk in range(64 // made.per):
        places = [value_of(line, chunk * made.per + n, bits) for n in range(made.per)]
        held = made.chunk(number(0), number(chunk))
        raised = [evaluated(made.biased(held, place), words) for place in range(made.per)]
        assert raised == [table[place] + 256.0 for place in places]
        found = [evaluated(part, words) for part in made.bytes_of(held)]
        parts = b"".join(part.to_bytes(4, "little") for part in found)
        assert list(parts) == [table[places[at]] for at in made.order_of_bytes(made.per)]


@pytest.mark.parametrize("bits", [1, 3, 5, 6])
def test_a_chunk_at_a_place_that_is_not_known_has_its_share_of_high_bits(bits: int) -> None:
    line = random.Random(bits).getrandbits(64 * bits)
    words = [line >> at & 0xFFFFFFFF for at in range(0, 64 * bits, 32)]
    made = Quantized(0, Panels(U32, 32, len(words), "oi", 1), 1, 2, affine("any", bits, 64))
    number_of = Axis("c", 64 // made.per)
    held = made.chunk(number(0), Index({number_of: 1}))
    assert held.shift == 0
    for chunk in range(number_of.size):
        at = {number_of: number(chunk)}
        for place in range(made.per):
            expr = substitute(made.biased(held, place), at)
            wanted = value_of(line, chunk * made.per + place, bits)
            assert evaluated(expr, words) == wanted + 2.0**bits


def test_words_of_bytes_are_parted_as_words_of_halves_are() -> None:
    a, b = (Const(U32, int.from_bytes(of, "little")) for of in (b"\xf0\xe1\xd2\xc3", b"4567"))
    found = [evaluated(one, []).to_bytes(4, "little") for one in deinterleaved(a, b)]
    assert found == [b"\xf0\xd246", b"\xe1\xc357"]
