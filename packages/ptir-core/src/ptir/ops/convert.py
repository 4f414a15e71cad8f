"""Conversions between element types: by value and by bits."""

from __future__ import annotations

from math import inf, nan

from ptir.ops.classes import ANY, BOOL_ONLY, DTypeClass, listed
from ptir.ops.elementwise import (
    LAST,
    TINY,
    bf16,
    bool_,
    e4m3,
    e5m2,
    f16,
    f32,
    f64,
    high,
    i8,
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
from ptir.ops.record import Attribute, BadCall, Call, bad, sample
from ptir.types import (
    BF16,
    BOOL,
    DTYPES,
    F16,
    F32,
    F64,
    I8,
    I32,
    I64,
    U8,
    U32,
    U64,
    DType,
    TensorType,
)

_E4M3, _E5M2 = DTYPES["f8e4m3fn"], DTYPES["f8e5m2"]
_WITH_BITS = ANY - BOOL_ONLY


def _target(call: Call, allowed: DTypeClass) -> DType:
    target = call["dtype"]
    if not isinstance(target, DType) or target not in allowed:
        call.fail("target", f"dtype is {target!r}; one of {listed(allowed)}, as a DType")
    return target


def _cast(call: Call) -> TensorType:
    return call.types[0].with_dtype(_target(call, ANY))


def _bitcast(call: Call) -> TensorType:
    source, target = call.types[0].dtype, _target(call, _WITH_BITS)
    message = f"{source} has {source.bits} bits and {target} has {target.bits}; widths must agree"
    call.require(source.bits == target.bits, "width", message)
    return call.types[0].with_dtype(target)


def _not_a_dtype(operand: str, allowed: DTypeClass) -> BadCall:
    message = f"dtype is 'f16'; one of {listed(allowed)}, as a DType"
    return bad("target", operand, dtype="f16", message=message)


row(
    "cast",
    "operand",
    ANY,
    "The elements converted to ``dtype``. To integers, floats truncate and saturate and NaN gives "
    "0, while integers wrap; to floats every value is rounded once, half to even (to f8 as "
    "ml_dtypes: f8e4m3fn has no infinity, what is too large is NaN); to bool every value but zero "
    "is true, NaN included; true is 1.",
    [
        sample(f32(-1.75, 2.5, nan, inf, -3e9), dtype=I32, gives=i32(-1, 2, 0, high(32), low(32))),
        sample(f32(-1.75, 2.5, nan, inf, 3e9), dtype=U32, gives=u32(0, 2, 0, ones(32), 3000000000)),
        sample(i32(-1, 5, low(32)), dtype=U32, gives=u32(ones(32), 5, 2**31)),
        sample(u32(ones(32), 5), dtype=I32, gives=i32(-1, 5)),
        sample(i32(16777217, 16777219, -3), dtype=F32, gives=f32(16777216.0, 16777220.0, -3.0)),
        sample(f32(-0.0, nan, TINY, -inf), dtype=BOOL, gives=bool_(False, True, True, True)),
        sample(bool_(True, False), dtype=F32, gives=f32(1.0, 0.0)),
        sample(
            f32(1.00390625, 1.01171875, -0.1, LAST),
            dtype=BF16,
            gives=bf16(1.0, 1.015625, -0.1001, inf),
        ),
        sample(f32(2049.0, 65520.0, -1e-8), dtype=F16, gives=f16(2048.0, inf, -0.0)),
        sample(i32(257, -259), dtype=BF16, gives=bf16(256.0, -260.0)),
        sample(bf16(-1.5), dtype=F16, gives=f16(-1.5)),
        sample(f32(-1.75, 200.0, nan, -inf), dtype=I8, gives=i8(-1, 127, 0, -128)),
        sample(f32(-1.75, 200.5, 300.0), dtype=U8, gives=u8(0, 200, 255)),
        sample(i32(300, -1, 128), dtype=I8, gives=i8(44, -1, -128)),
        sample(i8(-1, 127), dtype=U64, gives=u64(ones(64), 127)),
        sample(f64(1e19, -1e19, 2**53 + 2), dtype=I64, gives=i64(high(64), low(64), 2**53 + 2)),
        sample(f32(1e20, 2.0**63, -1.0), dtype=U64, gives=u64(ones(64), 2**63, 0)),
        sample(f16(inf, -65504.0), dtype=I64, gives=i64(high(64), -65504)),
        sample(i64(2**53 + 1, 2**62 + 1), dtype=F64, gives=f64(2.0**53, 2.0**62)),
        sample(
            i64(2**40 + 2**16 + 1, -(2**24) - 1), dtype=F32, gives=f32(2.0**40 + 2**17, -(2.0**24))
        ),
        sample(u64(ones(64), 2**63 + 1), dtype=BF16, gives=bf16(2.0**64, 2.0**63)),
        sample(f64(1 + 2**-8 + 2**-40, 1e300), dtype=BF16, gives=bf16(1.0078125, inf)),
        sample(f64(1 + 2**-11 + 2**-40, 1e-320), dtype=F16, gives=f16(1.0009765625, 0.0)),
        sample(f64(1 + 2**-24 + 2**-52), dtype=F32, gives=f32(1.0000001192092896)),
        sample(f32(0.3, -448.0, 500.0), dtype=_E4M3, gives=e4m3(0.3125, -448.0, nan)),
        sample(f32(0.3, -57344.0, 1e6), dtype=_E5M2, gives=e5m2(0.3125, -57344.0, inf)),
        sample(e4m3(-0.0, 448.0, nan), dtype=F32, gives=f32(-0.0, 448.0, nan)),
        sample(e5m2(1.75, -inf), dtype=U8, gives=u8(1, 0)),
    ],
    rule=_cast,
    attributes=[Attribute("dtype", "element type of the result, a DType")],
    call={"dtype": F32},
    accuracy="rounded",
    also_bad=[_not_a_dtype("f32[2]", ANY)],
)
row(
    "bitcast",
    "operand",
    _WITH_BITS,
    "The same bits read as ``dtype``, which has the same width; bool has no bits to share.",
    [
        sample(f32(-0.0, 1.0, inf), dtype=U32, gives=u32(2**31, 0x3F800000, 0x7F800000)),
        sample(u32(ones(32), 5), dtype=I32, gives=i32(-1, 5)),
        sample(i32(low(32), 0x40200000), dtype=F32, gives=f32(-0.0, 2.5)),
        sample(f16(1.0), dtype=BF16, gives=bf16(0.0078125)),
        sample(u16(0x3C00, 0x8000), dtype=F16, gives=f16(1.0, -0.0)),
        sample(f64(-0.0, 1.0), dtype=U64, gives=u64(2**63, 0x3FF0000000000000)),
        sample(i64(0x4004000000000000), dtype=F64, gives=f64(2.5)),
        sample(e4m3(-0.0, 1.0), dtype=U8, gives=u8(0x80, 0x38)),
        sample(i8(0x3C, low(8)), dtype=_E5M2, gives=e5m2(1.0, -0.0)),
    ],
    rule=_bitcast,
    attributes=[Attribute("dtype", "element type of the result, a DType")],
    call={"dtype": F64},
    also_bad=[
        _not_a_dtype("u32[2]", _WITH_BITS),
        bad(
            "target",
            "u8[2]",
            dtype=BOOL,
            message=f"dtype is DType(bool); one of {listed(_WITH_BITS)}, as a DType",
        ),
        bad(
            "width",
            "f32[2]",
            dtype=F16,
            message="f32 has 32 bits and f16 has 16; widths must agree",
        ),
        bad(
            "width",
            "bf16[2]",
            dtype=U32,
            message="bf16 has 16 bits and u32 has 32; widths must agree",
        ),
    ],
)
