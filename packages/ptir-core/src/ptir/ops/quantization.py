"""Quantization ops: floats as integers of a few bits in words, by an affine map of operands."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from ptir.ops.classes import dtypes
from ptir.ops.quantization_rules import (
    dequantize_decomposition,
    dequantize_type,
    quantize_decomposition,
    quantize_type,
)
from ptir.ops.record import (
    Array,
    Attribute,
    BadCall,
    bad,
    define,
    refusals,
    sample,
)
from ptir.types import BF16, DTYPES, F16, F32, I8, U32
from ptir.weights.tables import NAMES
from ptir.weights.words import BITS_IN_WORDS, TABLE_BITS

_f32, _u32 = partial(Array, "f32"), partial(Array, "u32")
_f16, _bf16 = partial(Array, "f16"), partial(Array, "bf16")
_NAN, _INF = float("nan"), float("inf")
E4M3, E5M2 = DTYPES["f8e4m3fn"], DTYPES["f8e5m2"]

_FLOATS: Final = dtypes("f16", "bf16", "f32")

_AXIS = Attribute("axis", "the axis that is packed, and along which groups lie")
_GROUP = Attribute("group", "neighbours along the axis that share a scale and a bias")
_BITS = Attribute("bits", f"bits of a value: {BITS_IN_WORDS}")
_TABLE = Attribute(
    "table",
    "what values stand for: 2**bits integers in 0 .. 255, as many floats, or the type whose bits"
    f" values of 8 bits are ({NAMES}); none: themselves",
    None,
)


_PACKING = """
    Scale and bias have the axes of the values: along ``axis`` one entry per group, along any other
    axis one entry or one per element. So [1, 1] with a group as long as the axis is one scale for
    the tensor, [N, 1] one per row, [N, G] one per group of a row.

    A line of values along ``axis`` is a stream of bits, low bits first: word w of the line is the
    bits from 32 * w on. Of 2, 4 or 8 bits value i takes those from i * bits on. Others lie in two
    planes, for each 32 values of 1, 3 or 5 bits, or 16 of 6. First come words of their low bits
    alone: 2 of 3 bits, 4 of 5 or 6, none of 1. A *chunk* is the values of such a word, 16 or 8 (of
    1 bit, 16), a quarter of them in each byte. Then one word has the high bits: byte b those of
    the values in byte b of every chunk, one behind the other, chunk by chunk. What is left of the
    last words is zeros."""

_LAYOUT: Final[dict[str, Any]] = {"axis": 1, "group": 8, "bits": 4}
_OPERANDS: Final = "f32[2,8] f32[2,1] f32[2,1]"
_WORDS: Final = "u32[2,1] f32[2,1] f32[2,1]"
_SCALES = {"scale": _FLOATS, "bias": _FLOATS}


def _refused(*rows: tuple[str, str, dict[str, Any], str]) -> list[BadCall]:
    """Bad calls: of each row the label, the types, what differs from ``_LAYOUT``, the message."""
    return [
        bad(label, *types.split(), **(_LAYOUT | differs), message=message)
        for label, types, differs, message in rows
    ]


quantize = define(
    "quantize",
    "operand scale bias",
    dtypes={"operand": _FLOATS, **_SCALES},
    attributes=(_AXIS, _GROUP, _BITS),
    rule=quantize_type,
    reference=lambda xp, *operands, **attributes: xp.quantize(*operands, **attributes),
    decomposition=quantize_decomposition,
    traits="quantization",
    profile="quantized",
    doc=f"""Floats as integers of a few bits, (operand - bias) / scale, packed into u32 words.

    Operands are widened to f32; difference and quotient are rounded there, then to the nearest
    integer, halves to even, and saturate at 0 and 2**bits - 1. NaN gives 0, and so does everything
    where the scale is 0. Backends need a correctly rounded division to take this op.
    {_PACKING}""",
    samples=(
        sample(
            _f32([[-1, -0.5, 0, 0.5, 1, 1.5, 2, 2.5]]),
            _f32([[0.5]]),
            _f32([[-1]]),
            axis=1,
            group=8,
            bits=4,
            gives=_u32([[0x76543210]]),
        ),
        sample(
            _f32([0.5, 1.5, 2.5, -9, 9, _NAN, _INF, -_INF]),
            _f32([1]),
            _f32([0]),
            axis=0,
            group=8,
            bits=2,
            gives=_u32([0b00_11_00_11_00_10_10_00]),
        ),
        sample(
            _f32([1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 5, 6]),
            _f32([1]),
            _f32([0]),
            axis=0,
            group=12,
            bits=3,
            gives=_u32([0b10_01_10_01_00_11_10_01_00_11_10_01, 0, 0b1100_00000111_00001000]),
        ),
        sample(
            _f32(list(range(32))),
            _f32([1]),
            _f32([0]),
            axis=0,
            group=32,
            bits=5,
            gives=_u32([0x76543210, 0xFEDCBA98, 0x76543210, 0xFEDCBA98, 0xF0F0F0F0]),
        ),
        sample(
            _f32(list(range(0, 62, 5))).reshaped(13, 1),
            _f32([[1]]),
            _f32([[-1]]),
            axis=0,
            group=13,
            bits=6,
            gives=_u32([[0x4FA50B61], [0x000D83E9], [0x0935F4A0]]),
        ),
        sample(
            _f32([[*[1] * 8, *[0] * 8, *[1, 0] * 8]]),
            _f32([[1]]),
            _f32([[0]]),
            axis=1,
            group=32,
            bits=1,
            gives=_u32([[0x50505F5F]]),
        ),
        sample(
            _f32([[3, 20], [2, 30], [1, 10], [0, -5]]),
            _f32([[-1, 10], [-1, 5]]),
            _f32([[3, 10], [3, 0]]),
            axis=0,
            group=2,
            bits=8,
            gives=_u32([[0x03020100, 0x00020201]]),
        ),
        sample(
            _f16([[1, 2], [3, 4]]),
            _bf16([[2], [0]]),
            _f16([[-3], [3]]),
            axis=1,
            group=2,
            bits=8,
            gives=_u32([[0x0202], [0]]),
        ),
        sample(
            _f32([]).reshaped(2, 0),
            _f32([]).reshaped(1, 0),
            _f32([]).reshaped(2, 0),
            axis=1,
            group=4,
            bits=3,
            gives=_u32([]).reshaped(2, 0),
        ),
    ),
    bad_calls=(
        *refusals(
            "operand scale bias",
            {"operand": _FLOATS, **_SCALES},
            *_OPERANDS.split(),
            **_LAYOUT,
        ),
        *_refused(
            ("axis", _OPERANDS, {"axis": 2}, "axis 2 is not an axis of rank 2 (0 <= axis < 2)"),
            (
                "group",
                _OPERANDS,
                {"group": 0},
                "group is 0; it must be an integer in 1 <= group < 2**31",
            ),
            ("bits", _OPERANDS, {"bits": 7}, "bits is 7; it must be 1, 2, 3, 4, 5, 6 or 8"),
            (
                "groups",
                "f32[2,8] f32[2,2] f32[2,2]",
                {"group": 3},
                "group 3 does not divide axis 1 of 8",
            ),
            (
                "scales",
                "f32[2,8] f32[2,2] f32[2,2]",
                {},
                "scale has shape [2, 2]; [1 or 2, 1] is needed",
            ),
            ("scales", "f32[2,8] f32[1,1] f32[1]", {}, "bias has shape [1]; [1 or 2, 1] is needed"),
        ),
    ),
)

dequantize = define(
    "dequantize",
    "words scale bias",
    dtypes={"words": dtypes("u32"), **_SCALES},
    attributes=(_AXIS, _GROUP, _BITS, Attribute("dtype", "f16, bf16 or f32, a DType", F32), _TABLE),
    rule=dequantize_type,
    reference=lambda xp, *operands, **attributes: xp.dequantize(*operands, **attributes),
    decomposition=dequantize_decomposition,
    traits="quantization",
    profile="quantized",
    doc=f"""Packed integers as floats, value * scale + bias.

    Scale and bias are widened to f32; the product is rounded there, then the sum (there is no fused
    multiply-add), then the result to ``dtype``. Bits behind the last value are not read. The size
    of the result along ``axis`` is the number of groups times ``group``. With a ``table`` the
    value is its entry at that place: a codebook of at most {TABLE_BITS} bits, of whole numbers in
    0 .. 255 or of finite floats of f32. Of 8 bits it may be a type ({NAMES}), whose
    bits values are.
    {_PACKING}""",
    samples=(
        sample(
            _u32([[0x76543210]]),
            _f32([[0.5]]),
            _f32([[-1]]),
            axis=1,
            group=8,
            bits=4,
            gives=_f32([[-1, -0.5, 0, 0.5, 1, 1.5, 2, 2.5]]),
        ),
        sample(
            _u32([0xFF000000 | 0b10_01_10_01_00_11_10_01_00_11_10_01, 7, 0xFFFCF7F8]),
            _f32([1, 10]),
            _f32([0, 100]),
            axis=0,
            group=6,
            bits=3,
            gives=_f32([1, 2, 3, 4, 5, 6, 170, 100, 110, 120, 150, 160]),
        ),
        sample(
            _u32([0x76543210, 0xFEDCBA98, 0x76543210, 0xFEDCBA98, 0xF0F0F0F0]),
            _f32([0.5]),
            _f32([0]),
            axis=0,
            group=32,
            bits=5,
            gives=_f32([n / 2 for n in range(32)]),
        ),
        sample(
            _u32([[0x76543210], [0xFEDCBA98], [0xE4E4E4E4]]),
            _f32([[1]]),
            _f32([[-32]]),
            axis=0,
            group=16,
            bits=6,
            gives=_f32([n + [0, 16, 32, 48][n % 2 + n // 8 * 2] - 32 for n in range(16)]).reshaped(
                16, 1
            ),
        ),
        sample(
            _u32([[0x50505F5F]]),
            _f32([[2, -2]]),
            _f32([[-1, 1]]),
            axis=1,
            group=16,
            bits=1,
            gives=_f32([[*[1] * 8, *[-1] * 8, *[-1, 1] * 8]]),
        ),
        sample(
            _u32([[0x03020100, 0xFF020201]]),
            _f32([[-1, 10], [-1, 5]]),
            _f32([[3, 10], [3, 0]]),
            axis=0,
            group=2,
            bits=8,
            gives=_f32([[3, 20], [2, 30], [1, 10], [0, 1275]]),
        ),
        sample(
            _u32([0b10_01_11]),
            _f32([0.1]),
            _f32([-0.3]),
            axis=0,
            group=1,
            bits=2,
            gives=_f32([0.0]),
        ),
        sample(
            _u32([[0b11_01], [0b00_10]]),
            _f16([[0.00390625]]),
            _bf16([[1], [-1]]),
            axis=1,
            group=2,
            bits=2,
            dtype=BF16,
            gives=_bf16([[1.0, 1.015625], [-0.9921875, -1]]),
        ),
        sample(
            _u32([[4], [255]]),
            _f32([[16], [_INF]]),
            _f32([[1], [-_INF]]),
            axis=1,
            group=1,
            bits=8,
            dtype=F16,
            gives=_f16([[65], [_NAN]]),
        ),
        sample(
            _u32([[0x76543210, 0xFEDCBA98]]),
            _f32([[0.5]]),
            _f32([[-64]]),
            axis=1,
            group=16,
            bits=4,
            table=(1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241),
            gives=_f32(
                [
                    [
                        *(-63.5, -52, -41.5, -32.5, -24.5, -17.5, -11, -5),
                        *(0.5, 6.5, 12.5, 19, 26.5, 34.5, 44.5, 56.5),
                    ]
                ]
            ),
        ),
        sample(
            _u32([[0x50505F5F]]),
            _f32([[2, 3]]),
            _f32([[-2, -3]]),
            axis=1,
            group=16,
            bits=1,
            table=(0, 2),
            gives=_f32([[*[2] * 8, *[-2] * 8, *[3, -3] * 8]]),
        ),
        sample(
            _u32([[0b11_10_01_00]]),
            _f32([[0.5]]),
            _f32([[0.25]]),
            axis=1,
            group=4,
            bits=2,
            table=(-1.5, -0.0, 0.125, 2.0),
            gives=_f32([[-0.5, 0.25, 0.3125, 1.25]]),
        ),
        sample(
            _u32([[0xFF817F80]]),
            _f32([[0.5]]),
            _f32([[0]]),
            axis=1,
            group=4,
            bits=8,
            table=I8,
            gives=_f32([[-64, 63.5, -63.5, -0.5]]),
        ),
        sample(
            _u32([[0x7F7E0738], [0xFFFE81B9]]),
            _f32([[2, 2]]),
            _f32([[0, 1]]),
            axis=1,
            group=2,
            bits=8,
            table=E4M3,
            gives=_f32([[2, 0.02734375, 897, _NAN], [-2.25, -0.00390625, -895, _NAN]]),
        ),
        sample(
            _u32([[0x7C7B0338], [0xFEFC81B9]]),
            _f32([[2, 2]]),
            _f32([[0, 1]]),
            axis=1,
            group=2,
            bits=8,
            table=E5M2,
            gives=_f32(
                [[1, 9.1552734375e-05, 114689, _INF], [-1.25, -3.0517578125e-05, -_INF, _NAN]]
            ),
        ),
        sample(
            _u32([]).reshaped(0, 2),
            _f32([[1]]),
            _f32([[1]]),
            axis=1,
            group=16,
            bits=4,
            gives=_f32([]).reshaped(0, 16),
        ),
    ),
    bad_calls=(
        *refusals(
            "words scale bias",
            {"words": dtypes("u32"), **_SCALES},
            *_WORDS.split(),
            **_LAYOUT,
        ),
        *_refused(
            ("axis", _WORDS, {"axis": -1}, "axis -1 is not an axis of rank 2 (0 <= axis < 2)"),
            (
                "group",
                _WORDS,
                {"group": 8.0},
                "group is 8.0; it must be an integer in 1 <= group < 2**31",
            ),
            ("bits", _WORDS, {"bits": 16}, "bits is 16; it must be 1, 2, 3, 4, 5, 6 or 8"),
            (
                "target",
                _WORDS,
                {"dtype": U32},
                "dtype is DType(u32); one of f16, bf16, f32, as a DType",
            ),
            (
                "table",
                _WORDS,
                {"bits": 2, "table": (0, 1, 2, 256)},
                "table is (0, 1, 2, 256); for values of 2 bits it must be 4 integers in 0 .. 255 or"
                " 4 finite floats of f32",
            ),
            (
                "table",
                _WORDS,
                {"bits": 2, "table": (0.0, 0.1, 2.0, 1.0)},
                "table is (0.0, 0.1, 2.0, 1.0); for values of 2 bits it must be 4 integers in"
                " 0 .. 255 or 4 finite floats of f32",
            ),
            (
                "table",
                _WORDS,
                {"bits": 5, "table": I8},
                "table is DType(i8); for values of 5 bits it must be None",
            ),
            (
                "table",
                "u32[2,2] f32[2,1] f32[2,1]",
                {"bits": 8, "table": (0,)},
                "table is (0,); for values of 8 bits it must be None or one of i8, f8e4m3fn,"
                " f8e5m2",
            ),
            (
                "rank",
                "u32[2,1] f32[1] f32[2,1]",
                {},
                "scale has 1 axes, words 2; they must have the same",
            ),
            (
                "words",
                "u32[2,2] f32[2,1] f32[2,1]",
                {},
                "1 groups of 8 values of 4 bits take 1 words; axis 1 has 2",
            ),
            (
                "scales",
                "u32[2,1] f32[2,1] f32[3,1]",
                {},
                "bias has shape [3, 1]; [1 or 2, 1] is needed",
            ),
        ),
    ),
)
