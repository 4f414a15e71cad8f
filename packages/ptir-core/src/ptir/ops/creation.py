"""Ops that make tensors from nothing but attributes: constant and iota."""

from __future__ import annotations

import struct

from ptir.ir.attributes import Literal
from ptir.ops.classes import ANY, NUMERIC, listed
from ptir.ops.record import Array, Attribute, Call, bad, define, sample
from ptir.types import BF16, BOOL, DTYPES, F16, F32, I8, I32, I64, U32, U64, DType, TensorType

SHAPE = Attribute("shape", "axis sizes of the result, each >= 0")


def _constant(call: Call) -> TensorType:
    value = call["value"]
    if not isinstance(value, Literal):
        call.fail("value", f"value is {type(value).__name__}, not a Literal; see record.literal")
    return value.type


def _iota(call: Call) -> TensorType:
    shape, element = call.integers("shape", least=0), call["dtype"]
    if not isinstance(element, DType) or element not in NUMERIC:
        call.fail("dtype", f"dtype is {element!r}; one of {listed(NUMERIC)}, as a DType")
    call.axis(call["axis"], len(shape))
    return TensorType(element, shape)


define(
    "constant",
    "",
    attributes=[Attribute("value", "the elements, a Literal")],
    dtypes=ANY,
    rule=_constant,
    reference=lambda xp, **attributes: xp.constant(**attributes),
    doc="The elements of a literal; every bit is kept, those of NaN included.",
    traits="creation",
    samples=[
        sample(
            value=Literal(TensorType(F32, (2, 2)), struct.pack("<4f", -1.5, 0.0, 2.0, -0.0)),
            gives=Array("f32", [[-1.5, 0.0], [2.0, -0.0]]),
        ),
        sample(value=Literal(TensorType(I32, ()), b"\xfe\xff\xff\xff"), gives=Array("i32", -2)),
        sample(value=Literal(TensorType(F16, (1,)), b"\x00\xbc"), gives=Array("f16", [-1.0])),
        sample(
            value=Literal(TensorType(I64, (2,)), struct.pack("<2q", -(2**63), 2**53 + 1)),
            gives=Array("i64", [-(2**63), 2**53 + 1]),
        ),
        sample(
            value=Literal(TensorType(DTYPES["f8e4m3fn"], (2,)), b"\xfe\x38"),
            gives=Array("f8e4m3fn", [-448.0, 1.0]),
        ),
    ],
    bad_calls=[
        bad("value", value=2.5, message="value is float, not a Literal; see record.literal"),
        bad(
            "arity",
            "f32[2]",
            value=Literal(TensorType(F32, ()), bytes(4)),
            message="1 operands given; takes none",
        ),
        bad("attribute", message="attribute 'value' is missing: the elements, a Literal"),
    ],
)

define(
    "iota",
    "",
    attributes=[
        SHAPE,
        Attribute("dtype", "element type of the result, a DType"),
        Attribute("axis", "the axis along which values count up from 0"),
    ],
    dtypes=NUMERIC,
    rule=_iota,
    reference=lambda xp, **attributes: xp.iota(**attributes),
    doc="Each element is its own position along ``axis``, cast to ``dtype``: narrow integers wrap, "
    "floats are rounded once.",
    accuracy="rounded",
    traits="creation",
    samples=[
        sample(shape=(2, 3), dtype=I32, axis=1, gives=Array("i32", [[0, 1, 2], [0, 1, 2]])),
        sample(shape=(2, 3), dtype=F32, axis=0, gives=Array("f32", [[0, 0, 0], [1, 1, 1]])),
        sample(shape=(0,), dtype=U32, axis=0, gives=Array("u32", [])),
        sample(shape=(2, 2), dtype=U64, axis=0, gives=Array("u64", [[0, 0], [1, 1]])),
        sample(shape=(1, 3), dtype=I8, axis=1, gives=Array("i8", [[0, 1, 2]])),
        sample(shape=(3,), dtype=BF16, axis=0, gives=Array("bf16", [0, 1, 2])),
    ],
    bad_calls=[
        bad(
            "shape",
            shape=(2, -1),
            dtype=I32,
            axis=0,
            message="shape (2, -1) has an entry below 0",
        ),
        bad(
            "dtype",
            shape=(2,),
            dtype=BOOL,
            axis=0,
            message=f"dtype is DType(bool); one of {listed(NUMERIC)}, as a DType",
        ),
        bad(
            "dtype",
            shape=(2,),
            dtype="i32",
            axis=0,
            message=f"dtype is 'i32'; one of {listed(NUMERIC)}, as a DType",
        ),
        bad(
            "axis",
            shape=(2,),
            dtype=I32,
            axis=1,
            message="axis 1 is not an axis of rank 1 (0 <= axis < 1)",
        ),
        bad(
            "axis",
            shape=(),
            dtype=I32,
            axis=0,
            message="axis 0 is not an axis of rank 0 (0 <= axis < 0)",
        ),
        bad(
            "arity",
            "i32[2]",
            shape=(2,),
            dtype=I32,
            axis=0,
            message="1 operands given; takes none",
        ),
    ],
)
