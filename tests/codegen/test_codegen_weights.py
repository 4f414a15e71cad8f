"""What is read of a stored weight, what kernels refuse to read, and what words become."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

import pytest

from ptir.codegen.expressions.expr import Apply, Const, Expr, Load, walk
from ptir.codegen.expressions.index import Index, axis, number
from ptir.codegen.weights.panels import Panels
from ptir.codegen.weights.quantized import Quantized, deinterleaved
from ptir.codegen.weights.values import fused_value_at, value_at
from ptir.errors import UnsupportedError
from ptir.types import F32, U8, U32, U64
from ptir.weights import FORMATS, PACKED_BITS, FusedFormat, StoredArray, WeightFormat, affine
from ptir.weights.record import EVERY, Digit, Integer, Numbers, Plane, Quantity, Run

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


@pytest.mark.parametrize(
    ("bits", "unit", "parts", "order"),
    [
        (4, 16.0, 2, (0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15)),
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
    assert (made.per, made.inputs, made.group, made.zero) == (32 // bits, 512, 32, -5.0)
    assert Quantized(0, panels, 1, 2, affine("any", bits, 32)).zero is None


WORDS = {
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "shift_left": lambda a, b: a << b & 0xFFFFFFFF,
    "shift_right": lambda a, b: a >> b,
    "bits": lambda a: struct.unpack("<f", struct.pack("<I", a))[0],
}
"""Scalar ops on words, in Python."""


def evaluated(expr: Expr, word: int) -> Any:
    """An expression in which every load is ``word``."""
    if isinstance(expr, Apply):
        return WORDS[expr.op](*(evaluated(arg, word) for arg in expr.args))
    return expr.value if isinstance(expr, Const) else word


@pytest.mark.parametrize("word", [0x76543210, 0xFEDCBA98, 0x80FF017F])
@pytest.mark.parametrize("bits", PACKED_BITS)
def test_a_word_becomes_its_values(bits: int, word: int) -> None:
    values = [word >> at & (2**bits - 1) for at in range(0, 32, bits)]
    panels = Panels(U32, 32, 16, "oi", 1)
    made = Quantized(0, panels, 1, 2, affine("any", bits, 32))
    held = made.word(number(3), number(5))
    raised = [evaluated(made.biased(held, place), word) for place in range(made.per)]
    assert raised == [value + 2.0**bits for value in values]
    found = [evaluated(one, word) for one in made.bytes_of(held)]
    parts = b"".join(one.to_bytes(4, "little") for one in found)
    assert list(parts) == [values[at] for at in made.order_of_bytes(made.per)]
    if bits == 4:
        ordered = [evaluated(one, word).to_bytes(4, "little") for one in made.in_order(held)]
        assert list(b"".join(ordered)) == values


def test_words_of_bytes_are_parted_as_words_of_halves_are() -> None:
    a, b = (Const(U32, int.from_bytes(of, "little")) for of in (b"\xf0\xe1\xd2\xc3", b"4567"))
    found = [evaluated(one, 0).to_bytes(4, "little") for one in deinterleaved(a, b)]
    assert found == [b"\xf0\xd246", b"\xe1\xc357"]
