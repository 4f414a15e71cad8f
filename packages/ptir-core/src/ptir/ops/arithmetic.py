"""Arithmetic and extremes of two operands of one type."""

from __future__ import annotations

from math import inf, nan

from ptir.ir.graph import Ref
from ptir.ops.classes import NUMERIC
from ptir.ops.elementwise import (
    LAST,
    bf16,
    binary,
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
    row,
    u8,
    u16,
    u32,
    u64,
)
from ptir.ops.record import op, sample


def _minimum(a: Ref, b: Ref) -> Ref:
    """``neg`` reverses the order of floats exactly, bitwise ``not`` that of integers."""
    flip = op("neg") if a.type.dtype.is_float else op("not")
    return flip(op("maximum")(flip(a), flip(b)))


binary(
    "add",
    NUMERIC,
    "The sum: floats correctly rounded, integers wrap.",
    (
        f32(1.5, 0.1, -0.0, inf, LAST),
        f32(-2.25, 0.2, -0.0, -inf, LAST),
        f32(-0.75, 0.3, -0.0, nan, inf),
    ),
    (i32(high(32), -3), i32(1, 5), i32(low(32), 2)),
    (u32(ones(32), 3), u32(2, 5), u32(1, 8)),
    (i8(high(8), -3), i8(1, 5), i8(low(8), 2)),
    (u8(250, 3), u8(10, 5), u8(4, 8)),
    (i64(high(64), 2**53), i64(1, 1), i64(low(64), 2**53 + 1)),
    (u64(ones(64), 2**63), u64(2, 1), u64(1, 2**63 + 1)),
    (f64(0.1, 1e308), f64(0.2, 1e308), f64(0.30000000000000004, inf)),
    (f16(2048.0, 2048.0, 65504.0), f16(1.0, 3.0, 16.0), f16(2048.0, 2052.0, inf)),
    (bf16(256.0, 256.0), bf16(1.0, 3.0), bf16(256.0, 260.0)),
    traits="commutative",
    accuracy="rounded",
)
binary(
    "sub",
    NUMERIC,
    "The difference lhs - rhs: floats correctly rounded, integers wrap.",
    (f32(1.5, 0.0, -0.0, inf), f32(-2.25, 0.0, 0.0, inf), f32(3.75, 0.0, -0.0, nan)),
    (i32(low(32), -3), i32(1, 5), i32(high(32), -8)),
    (u32(1, 8), u32(3, 5), u32(ones(32) - 1, 3)),
    (i16(low(16), -3), i16(1, 5), i16(high(16), -8)),
    (u8(1, 8), u8(3, 5), u8(254, 3)),
    (u64(0, 2**63), u64(1, 1), u64(ones(64), high(64))),
    (bf16(1.0, 1.0), bf16(0.001953125, 0.0078125), bf16(1.0, 0.9921875)),
    accuracy="rounded",
    decomposition=lambda a, b: op("add")(a, op("neg")(b)),
)
binary(
    "mul",
    NUMERIC,
    "The product: floats correctly rounded, integers wrap.",
    (f32(1.5, -0.0, 0.0, LAST), f32(-2.5, 3.0, inf, -2.0), f32(-3.75, -0.0, nan, -inf)),
    (i32(65536, -3), i32(65537, 5), i32(65536, -15)),
    (u32(65536, 3), u32(65537, 5), u32(65536, 15)),
    (i8(16, -3), i8(17, 5), i8(16, -15)),
    (u16(256, 3), u16(257, 5), u16(256, 15)),
    (i64(2**32, 3**33), i64(2**32 + 1, 3), i64(2**32, 3**34)),
    (u64(2**32, 2**63), u64(2**32 + 1, 3), u64(2**32, 2**63)),
    (f16(1.0009765625, 256.0), f16(1.0009765625, -256.0), f16(1.001953125, -inf)),
    traits="commutative",
    accuracy="rounded",
)
binary(
    "div",
    NUMERIC,
    "The quotient lhs / rhs: integers truncate towards zero, division by zero gives all ones, and "
    "the smallest signed integer over -1 is itself.",
    (
        f32(1.0, -6.25, 1.0, 1.0, 0.0),
        f32(3.0, 2.5, 0.0, -0.0, 0.0),
        f32(1 / 3, -2.5, inf, -inf, nan),
    ),
    (i32(7, -7, 7, -7, 5, low(32)), i32(2, 2, -2, -2, 0, -1), i32(3, -3, -3, 3, -1, low(32))),
    (u32(7, ones(32), 5), u32(2, 2, 0), u32(3, high(32), ones(32))),
    (i8(-7, 5, low(8)), i8(2, 0, -1), i8(-3, -1, low(8))),
    (u8(255, 5), u8(2, 0), u8(127, 255)),
    (i64(2**62 + 1, low(64)), i64(-1, -1), i64(-(2**62) - 1, low(64))),
    (u64(ones(64), 5), u64(3, 0), u64(6148914691236517205, ones(64))),
    (f64(1.0, -1.0), f64(3.0, -0.0), f64(1 / 3, inf)),
    (f16(1.0, 6e-8), f16(3.0, 2.0), f16(0.333251953125, 0.0)),
    (bf16(1.0, -7.0), bf16(3.0, 0.0), bf16(0.333984375, -inf)),
    accuracy="rounded or ulp:2.5",
)
binary(
    "rem",
    NUMERIC,
    "lhs - rhs * trunc(lhs / rhs), exact, with the sign of lhs; an integer by zero gives lhs, a "
    "float by zero NaN.",
    (f32(5.5, -5.5, 4.0, -4.0, 1.0), f32(2.0, 2.0, inf, 2.0, 0.0), f32(1.5, -1.5, 4.0, -0.0, nan)),
    (i32(7, -7, 7, -7, 5, low(32)), i32(2, 2, -2, -2, 0, -1), i32(1, -1, 1, -1, 5, 0)),
    (u32(7, ones(32), 5), u32(4, 10, 0), u32(3, 5, 5)),
    (i16(-7, 5, low(16)), i16(2, 0, -1), i16(-1, 5, 0)),
    (i64(2**62 + 1, low(64)), i64(-2, 10), i64(1, -8)),
    (u64(ones(64), 5), u64(10, 0), u64(5, 5)),
    (f64(1e300, -5.5), f64(7.0, inf), f64(1.0, -5.5)),
    (bf16(-5.5, 1.0), bf16(2.0, -0.0), bf16(-1.5, nan)),
)
binary(
    "pow",
    NUMERIC,
    "base to the power exponent. Floats follow IEEE 754 pow (x**0 and 1**x are 1, even of NaN); "
    "integers wrap, and a negative exponent gives 1, -1 or 0.",
    (
        f32(2.0, -2.0, -8.0, nan, 0.0),
        f32(-1.5, 3.0, 0.5, 0.0, -1.0),
        f32(2**-1.5, -8.0, nan, 1.0, inf),
    ),
    (
        i32(3, -3, 2, 1, -1, -1, 0, 0),
        i32(4, 3, -1, -5, -2, -3, -1, 0),
        i32(81, -27, 0, 1, 1, -1, 0, 1),
    ),
    (i32(3, 2, low(32)), i32(21, 31, -2), i32(1870418611, low(32), 0)),
    (u32(3, 7, 0), u32(21, ones(32), 0), u32(1870418611, 3067833783, 1)),
    (i8(3, -2, -1), i8(5, 7, low(8)), i8(-13, low(8), 1)),
    (u8(3, 2), u8(5, 255), u8(243, 0)),
    (i64(3, -3), i64(40, 39), i64(12157665459056928801 - 2**64, -4052555153018976267)),
    (u64(3, 2), u64(41, 63), u64(3**41 % 2**64, 2**63)),
    (f64(2.0, -8.0, 0.0), f64(0.5, 3.0, -3.0), f64(1.4142135623730951, -512.0, inf)),
    (f16(2.0, 10.0), f16(0.5, 5.0), f16(1.4140625, inf)),
    operands="base exponent",
    accuracy="ulp:16",
)
binary(
    "maximum",
    NUMERIC,
    "The larger operand; NaN if either is NaN, and -0 < +0.",
    (
        f32(-0.0, 0.0, nan, 1.0, -2.0),
        f32(0.0, -0.0, 1.0, nan, -3.0),
        f32(0.0, 0.0, nan, nan, -2.0),
    ),
    (i32(-3, low(32)), i32(-4, high(32)), i32(-3, high(32))),
    (u32(3, ones(32)), u32(4, 0), u32(4, ones(32))),
    (i8(-3, low(8)), i8(-4, high(8)), i8(-3, high(8))),
    (i64(2**53 + 1, low(64)), i64(2**53, 0), i64(2**53 + 1, 0)),
    (u64(2**63, ones(64)), u64(1, ones(64) - 1), u64(2**63, ones(64))),
    (f16(-0.0, nan, -2.0), f16(0.0, 1.0, -3.0), f16(0.0, nan, -2.0)),
    (bf16(0.0, 1.0, -2.0), bf16(-0.0, nan, -3.0), bf16(0.0, nan, -2.0)),
    traits="commutative",
)
binary(
    "minimum",
    NUMERIC,
    "The smaller operand; NaN if either is NaN, and -0 < +0.",
    (
        f32(-0.0, 0.0, nan, 1.0, -2.0),
        f32(0.0, -0.0, 1.0, nan, -3.0),
        f32(-0.0, -0.0, nan, nan, -3.0),
    ),
    (i32(-3, low(32)), i32(-4, high(32)), i32(-4, low(32))),
    (u32(3, ones(32)), u32(4, 0), u32(3, 0)),
    (u8(3, 255), u8(4, 0), u8(3, 0)),
    (i64(2**53 + 1, low(64)), i64(2**53, 0), i64(2**53, low(64))),
    (f64(0.0, nan, 5e-324), f64(-0.0, 1.0, 0.0), f64(-0.0, nan, 0.0)),
    (bf16(0.0, 1.0, -2.0), bf16(-0.0, nan, -3.0), bf16(-0.0, nan, -3.0)),
    traits="commutative",
    decomposition=_minimum,
)
row(
    "clamp",
    "low operand high",
    NUMERIC,
    "minimum(maximum(operand, low), high): NaN propagates, and high wins where low > high.",
    [
        sample(
            f32(-1, -1, -1, 2, nan),
            f32(-5, 0.5, nan, 0, 0),
            f32(1, 1, 1, 1, 1),
            gives=f32(-1, 0.5, nan, 1, nan),
        ),
        sample(f32(-0.0, 0.0), f32(0.0, -0.0), f32(1.0, 1.0), gives=f32(0.0, 0.0)),
        sample(i32(-2, -2, 3), i32(-7, 7, 0), i32(5, 5, 1), gives=i32(-2, 5, 1)),
        sample(u32(1, 1), u32(0, ones(32)), u32(9, 9), gives=u32(1, 9)),
        sample(i64(-2, 2**53), i64(low(64), 2**53 + 1), i64(5, 2**54), gives=i64(-2, 2**53 + 1)),
        sample(f16(-1, -1, 0), f16(-5, nan, 9), f16(1, 1, 1), gives=f16(-1, nan, 1)),
    ],
    decomposition=lambda low, x, high: op("minimum")(op("maximum")(x, low), high),
)
