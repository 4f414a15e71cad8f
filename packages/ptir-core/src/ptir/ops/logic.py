"""Bits, shifts, comparisons and choices."""

from __future__ import annotations

from math import inf, nan

from ptir.ops.classes import BITS, BOOL_ONLY, COMMON, INTEGER
from ptir.ops.elementwise import (
    bf16,
    binary,
    bool_,
    f16,
    f32,
    f64,
    high,
    i8,
    i16,
    i32,
    i64,
    low,
    ones,
    predicate,
    row,
    same_shape,
    through,
    u8,
    u16,
    u32,
    u64,
)
from ptir.ops.record import Array, Attribute, Call, bad, define, refusals, sample
from ptir.types import TensorType


def _select(call: Call) -> TensorType:
    predicate, on_true, on_false = call.types
    message = f"branch dtypes differ: {on_true.dtype} vs {on_false.dtype}; cast one of them"
    call.require(on_true.dtype == on_false.dtype, "dtypes", message)
    same_shape(call, predicate, on_true)
    same_shape(call, on_true, on_false)
    return on_true


_FALSE_TRUE = bool_(False, False, True, True), bool_(False, True, False, True)
binary(
    "and",
    BITS,
    "Logical and of bool, bitwise and of integers.",
    (*_FALSE_TRUE, bool_(False, False, False, True)),
    (i32(12, -1), i32(10, low(32)), i32(8, low(32))),
    (u32(12, ones(32)), u32(10, 7), u32(8, 7)),
    (i8(12, -1), i8(10, low(8)), i8(8, low(8))),
    (u64(12, ones(64)), u64(10, 2**63 + 7), u64(8, 2**63 + 7)),
    traits="commutative",
)
binary(
    "or",
    BITS,
    "Logical or of bool, bitwise or of integers.",
    (*_FALSE_TRUE, bool_(False, True, True, True)),
    (i32(12, 1), i32(10, low(32)), i32(14, low(32) + 1)),
    (u32(12, ones(32)), u32(10, 7), u32(14, ones(32))),
    (u8(12, 128), u8(10, 7), u8(14, 135)),
    (i64(12, 1), i64(10, low(64)), i64(14, low(64) + 1)),
    traits="commutative",
)
binary(
    "xor",
    BITS,
    "Logical exclusive or of bool, bitwise exclusive or of integers.",
    (*_FALSE_TRUE, bool_(False, True, True, False)),
    (i32(12, -1), i32(10, low(32)), i32(6, high(32))),
    (u32(12, ones(32)), u32(10, 7), u32(6, ones(32) - 7)),
    (i16(12, -1), i16(10, low(16)), i16(6, high(16))),
    (u64(12, ones(64)), u64(10, 7), u64(6, ones(64) - 7)),
    traits="commutative",
)
binary(
    "shift_left",
    INTEGER,
    "operand * 2**amount, wrapping; an amount of the width or more (negative ones are read as "
    "unsigned) gives 0.",
    (i32(3, -3, 5, 1, 1, 1), i32(4, 1, 31, 32, -1, 0), i32(48, -6, low(32), 0, 0, 1)),
    (u32(3, ones(32), 1, 1), u32(4, 31, 32, ones(32)), u32(48, 2**31, 0, 0)),
    (i8(3, 1, 1, 1), i8(5, 7, 8, -1), i8(96, low(8), 0, 0)),
    (u16(3, 1, 1), u16(15, 16, 65535), u16(2**15, 0, 0)),
    (i64(1, 1, 1, -1), i64(40, 63, 64, low(64)), i64(2**40, low(64), 0, 0)),
    (u64(1, 1, 1), u64(33, 64, ones(64)), u64(2**33, 0, 0)),
    operands="operand amount",
)
binary(
    "shift_right",
    INTEGER,
    "operand / 2**amount rounded down: signed operands shift their sign in, unsigned ones zeros; "
    "an amount of the width or more (negative ones are read as unsigned) leaves only those.",
    (
        i32(48, -5, low(32), low(32), 7, -7, 7),
        i32(4, 1, 31, 32, 32, -1, -1),
        i32(3, -3, -1, -1, 0, -1, 0),
    ),
    (u32(48, ones(32), ones(32), ones(32)), u32(4, 31, 32, ones(32)), u32(3, 1, 0, 0)),
    (i8(48, -5, low(8), 7), i8(4, 1, 8, 8), i8(3, -3, -1, 0)),
    (u8(128, 255, 255), u8(7, 1, 8), u8(1, 127, 0)),
    (i64(2**40, low(64), low(64)), i64(8, 63, 64), i64(2**32, -1, -1)),
    (u64(ones(64), ones(64)), u64(63, 64), u64(1, 0)),
    operands="operand amount",
)

_COMPARED = (
    (f32(-1.0, 2.0, -0.0, nan, inf), f32(1.0, -2.0, 0.0, nan, inf)),
    (i32(-1, 2, 3, low(32)), i32(1, -2, 3, high(32))),
    (u32(1, ones(32), 3), u32(2, 1, 3)),
    (bool_(False, True, True), bool_(True, False, True)),
    (i8(-1, 2, low(8)), i8(1, -2, low(8))),
    (i64(2**53, low(64), 5), i64(2**53 + 1, high(64), 5)),
    (u64(2**63, ones(64), 0), u64(2**63 + 1, 1, 0)),
    (f16(-0.0, nan, -2.0), f16(0.0, 1.0, -3.0)),
    (bf16(-0.0, nan, -2.0), bf16(0.0, nan, -3.0)),
    (f64(1.0, nan, 5e-324), f64(1.0000000000000002, 1.0, 0.0)),
)
_COMPARISONS = {
    "eq": ("00101", "0010", "001", "001", "001", "001", "001", "100", "100", "000"),
    "ne": ("11010", "1101", "110", "110", "110", "110", "110", "011", "011", "111"),
    "lt": ("10000", "1001", "100", "100", "100", "110", "100", "000", "000", "100"),
    "le": ("10101", "1011", "101", "101", "101", "111", "101", "100", "100", "100"),
    "gt": ("01000", "0100", "010", "010", "010", "000", "010", "001", "001", "001"),
    "ge": ("01101", "0110", "011", "011", "011", "001", "011", "101", "101", "001"),
}
row(
    "compare",
    "lhs rhs",
    COMMON,
    "Whether lhs stands in ``direction`` to rhs, as bool. With a NaN only ``ne`` holds; the zeros "
    "are equal; false < true.",
    [
        sample(*operands, gives=bool_(*(digit == "1" for digit in gives)), direction=direction)
        for direction, results in _COMPARISONS.items()
        for operands, gives in zip(_COMPARED, results, strict=True)
    ],
    rule=predicate,
    attributes=[Attribute("direction", "eq, ne, lt, le, gt or ge", choices=tuple(_COMPARISONS))],
    call={"direction": "lt"},
    also_bad=[
        bad(
            "attribute",
            "f32[2]",
            "f32[2]",
            direction="lesser",
            message="unknown direction 'lesser' (nearest: le); known: eq, ge, gt, le, lt, ne",
        ),
        bad(
            "attribute",
            "f32[2]",
            "f32[2]",
            message="attribute 'direction' is missing: eq, ne, lt, le, gt or ge",
        ),
    ],
)
_BRANCHES = {"predicate": BOOL_ONLY, "on_true": COMMON, "on_false": COMMON}
define(
    "select",
    "predicate on_true on_false",
    dtypes=_BRANCHES,
    rule=_select,
    reference=through("select"),
    doc="on_true where the predicate holds, else on_false; all three of one shape.",
    traits="elementwise",
    samples=[
        sample(
            bool_(True, False, True),
            f32(nan, 1.0, -0.0),
            f32(2.0, 3.0, 0.0),
            gives=f32(nan, 3, -0.0),
        ),
        sample(bool_(True, False), i32(-1, 2), i32(3, low(32)), gives=i32(-1, low(32))),
        sample(
            bool_(False, True), bool_(True, False), bool_(False, True), gives=bool_(False, False)
        ),
        sample(
            Array("bool", True), Array("bf16", -1.5), Array("bf16", 2.0), gives=Array("bf16", -1.5)
        ),
        sample(bool_(True, False), u64(ones(64), 2), u64(3, 2**63), gives=u64(ones(64), 2**63)),
        sample(bool_(False, True), i8(-1, 2), i8(3, low(8)), gives=i8(3, 2)),
    ],
    bad_calls=[
        *refusals("predicate on_true on_false", _BRANCHES, "bool[2]", "f32[2]", "f32[2]"),
        bad(
            "dtype",
            "i32[2]",
            "f32[2]",
            "f32[2]",
            message="predicate has dtype i32; one of bool",
        ),
        bad(
            "dtypes",
            "bool[2]",
            "f32[2]",
            "i32[2]",
            message="branch dtypes differ: f32 vs i32; cast one of them",
        ),
        bad(
            "shapes",
            "bool[]",
            "f32[2]",
            "f32[2]",
            message="operand shapes differ: [] vs [2]; use broadcast_to",
        ),
        bad(
            "shapes",
            "bool[2]",
            "f32[2]",
            "f32[]",
            message="operand shapes differ: [2] vs []; use broadcast_to",
        ),
    ],
)
