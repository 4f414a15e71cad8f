"""Exact and correctly rounded ops of one operand: signs, whole numbers, roots, bits."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan

from ptir.ir.graph import Ref
from ptir.ops.classes import ANY, BITS, FLOAT, NUMERIC
from ptir.ops.elementwise import (
    LAST,
    TINY,
    bf16,
    bool_,
    e4m3,
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
    u8,
    u16,
    u32,
    u64,
    unary,
)
from ptir.ops.fill import like
from ptir.ops.record import op
from ptir.types import F32

# --- decompositions ---


def _neg(x: Ref) -> Ref:
    return op("mul")(x, like(-1, x))


def _abs(x: Ref) -> Ref:
    return x if x.type.dtype.kind == "uint" else op("maximum")(x, op("neg")(x))


def _sign(x: Ref) -> Ref:
    """Where neither comparison holds the operand is a zero or NaN, which it stays."""
    zero = like(0, x)
    positive = op("select")(op("compare")(x, zero, direction="gt"), like(1, x), x)
    if x.type.dtype.kind == "uint":
        return positive
    return op("select")(op("compare")(x, zero, direction="lt"), like(-1, x), positive)


def _not(x: Ref) -> Ref:
    return op("xor")(x, like(-1 if x.type.dtype.is_integer else True, x))


def _is_finite(x: Ref) -> Ref:
    return op("compare")(op("abs")(x), like(inf, x), direction="lt")


def in_f32(function: Callable[[Ref], Ref]) -> Callable[[Ref], Ref]:
    """``function`` of the operand in f32 where it is narrower, rounded back once."""

    def body(x: Ref) -> Ref:
        element = x.type.dtype
        if element.bits >= F32.bits:
            return function(x)
        return op("cast")(function(op("cast")(x, dtype=F32)), dtype=element)

    return body


def _rsqrt(x: Ref) -> Ref:
    root = op("sqrt")(x)
    return op("div")(like(1, root), root)


# --- signs ---

unary(
    "neg",
    NUMERIC,
    "The negative; floats flip the sign, integers wrap (unsigned ones too).",
    (f32(-2.5, 0.0, -0.0, inf, nan), f32(2.5, -0.0, 0.0, -inf, nan)),
    (i32(3, -4, 0, low(32)), i32(-3, 4, 0, low(32))),
    (u32(1, 0), u32(ones(32), 0)),
    (i8(3, -4, low(8)), i8(-3, 4, low(8))),
    (u64(1, 2**63 + 1), u64(ones(64), high(64))),
    (bf16(1.5, 0.0), bf16(-1.5, -0.0)),
    decomposition=_neg,
)
unary(
    "abs",
    NUMERIC,
    "The magnitude; the smallest signed integer wraps to itself.",
    (f32(-2.5, 3.0, -0.0, -inf, nan), f32(2.5, 3.0, 0.0, inf, nan)),
    (i32(3, -4, 0, low(32)), i32(3, 4, 0, low(32))),
    (u32(7, ones(32)), u32(7, ones(32))),
    (i16(-5, 5, low(16)), i16(5, 5, low(16))),
    (i64(low(64) + 1, low(64)), i64(high(64), low(64))),
    (f64(-5e-324, -0.0), f64(5e-324, 0.0)),
    decomposition=_abs,
)
unary(
    "sign",
    NUMERIC,
    "-1, 0 or 1; floats keep -0 and NaN.",
    (f32(-2.5, TINY, 0.0, -0.0, -inf, nan), f32(-1.0, 1.0, 0.0, -0.0, -1.0, nan)),
    (i32(3, -4, 0, low(32)), i32(1, -1, 0, -1)),
    (u32(0, ones(32)), u32(0, 1)),
    (u8(0, 255), u8(0, 1)),
    (i64(low(64), 2**40), i64(-1, 1)),
    (f16(-6e-8, -0.0, nan), f16(-1.0, -0.0, nan)),
    decomposition=_sign,
)

# --- roots ---

unary(
    "sqrt",
    FLOAT,
    "The square root: of negative numbers NaN, of -0 is -0.",
    (f32(2.0, 6.25, -0.0, 0.0, -1.0, inf), f32(1.4142135623730951, 2.5, -0.0, 0.0, nan, inf)),
    (f64(2.0, -0.0), f64(1.4142135623730951, -0.0)),
    (bf16(2.0, 10.0), bf16(1.4140625, 3.15625)),
    (f16(2.0, 10.0), f16(1.4140625, 3.162109375)),
    accuracy="rounded or ulp:3",
)
unary(
    "rsqrt",
    FLOAT,
    "1 / sqrt(x), rounded once: of a zero the infinity of its sign, of negative numbers NaN.",
    (f32(2.0, 0.0, -0.0, -1.0, inf), f32(0.7071067811865476, inf, -inf, nan, 0.0)),
    (f64(2.0, 16.0), f64(0.7071067811865476, 0.25)),
    (bf16(2.0, 3.0), bf16(0.70703125, 0.578125)),
    accuracy="ulp:2",
    decomposition=in_f32(_rsqrt),
)
unary(
    "reciprocal",
    FLOAT,
    "1 / x: of a zero the infinity of its sign.",
    (f32(-3.0, 4.0, 0.0, -0.0, -inf, nan), f32(-0.3333333333333333, 0.25, inf, -inf, -0.0, nan)),
    (f64(3.0, -0.0), f64(0.3333333333333333, -inf)),
    (f16(3.0, 6e-8), f16(0.333251953125, inf)),
    accuracy="rounded or ulp:2.5",
    decomposition=lambda x: op("div")(like(1, x), x),
)

# --- whole numbers ---

unary(
    "floor",
    FLOAT,
    "The largest whole number not above the operand.",
    (f32(-1.5, -0.25, 0.75, 2.0, -0.0), f32(-2.0, -1.0, 0.0, 2.0, -0.0)),
    (f32(-inf, inf, nan), f32(-inf, inf, nan)),
    (f64(4503599627370495.5, -0.5), f64(4503599627370495.0, -1.0)),
    (bf16(-1.5, 100.5), bf16(-2.0, 100.0)),
)
unary(
    "ceil",
    FLOAT,
    "The smallest whole number not below the operand; from (-1, 0) it is -0.",
    (f32(-1.5, -0.25, 0.75, 2.0, -0.0), f32(-1.0, -0.0, 1.0, 2.0, -0.0)),
    (f32(-inf, inf, nan), f32(-inf, inf, nan)),
    (f64(4503599627370495.5, -0.5), f64(4503599627370496.0, -0.0)),
    (f16(-1.5, 6e-8), f16(-1.0, 1.0)),
    decomposition=lambda x: op("neg")(op("floor")(op("neg")(x))),
)
unary(
    "round",
    FLOAT,
    "The nearest whole number, halves to the even one; the sign is kept.",
    (f32(-1.5, -0.5, 0.5, 1.5, 2.5, 2.75), f32(-2.0, -0.0, 0.0, 2.0, 2.0, 3.0)),
    (f32(-inf, inf, nan), f32(-inf, inf, nan)),
    (f64(0.49999999999999994, -2.5), f64(0.0, -2.0)),
    (bf16(2.5, 3.5, -0.5), bf16(2.0, 4.0, -0.0)),
)
unary(
    "is_finite",
    FLOAT,
    "Whether the operand is neither infinite nor NaN.",
    (f32(-LAST, 0.0, inf, -inf, nan), bool_(True, True, False, False, False)),
    (f64(1e300, inf), bool_(True, False)),
    (f16(65504.0, -inf, nan), bool_(True, False, False)),
    rule=predicate,
    decomposition=_is_finite,
)

# --- bits, and nothing ---

unary(
    "not",
    BITS,
    "Logical not of bool, bitwise not of integers.",
    (bool_(True, False), bool_(False, True)),
    (i32(0, 5, low(32)), i32(-1, -6, high(32))),
    (u32(0, 5), u32(ones(32), ones(32) - 5)),
    (u8(0, 5), u8(255, 250)),
    (i64(0, low(64)), i64(-1, high(64))),
    (u16(1), u16(65534)),
    decomposition=_not,
)
unary(
    "stop_gradient",
    ANY,
    "The operand itself; marks a value that a derivative treats as constant.",
    (f32(-0.0, nan, 1.0), f32(-0.0, nan, 1.0)),
    (bool_(True, False), bool_(True, False)),
    (u64(ones(64), 1), u64(ones(64), 1)),
    (e4m3(-448.0, 0.5), e4m3(-448.0, 0.5)),
    decomposition=lambda x: x,
    traits="view",
)
