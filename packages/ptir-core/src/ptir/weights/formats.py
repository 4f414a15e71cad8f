"""**Table** of weight formats: a row each. What it holds is explained in docs/internals/weights.md.

GGUF's rows are in ``gguf.py``. A format is added with a row; the tests decode every one of them.
"""

from __future__ import annotations

import math
from typing import Final

from ptir.types import BF16, DTYPES, F32, U8, U32, DType
from ptir.weights.gguf import GGUF
from ptir.weights.record import (
    EVERY,
    FLOATS,
    PANELS,
    Codebook,
    Digit,
    Integer,
    Numbers,
    PackedLayout,
    Plane,
    PowerOfTwo,
    Quantity,
    SmallFloat,
    StoredArray,
    Top,
    WeightFormat,
)
from ptir.weights.words import BYTE, WORD, layout, period, words_for

NF4: Final = Codebook(
    (
        *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
        *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
        *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
        *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
    )
)
"""Quantiles of the normal distribution (QLoRA, appendix E), as f32."""
E4M3: Final = FLOATS[DTYPES["f8e4m3fn"]]
E5M2: Final = FLOATS[DTYPES["f8e5m2"]]
E2M1: Final = SmallFloat(2, 1, 1, Top.NUMBERS)


def elements(array: str, dtype: DType, count: int = 1, each: int = 1) -> Numbers:
    """The elements of an array of floats, one after the other."""
    plane = Plane(array, dtype.bits, 0, (Digit(count, dtype.bits),))
    return Numbers((plane,), FLOATS[dtype], each)


def word_planes(block: int, bits: int) -> tuple[Plane, ...]:
    """Where ``dequantize`` finds the values of a block of whole periods."""
    how, (count, words) = layout(bits), period(bits)
    planes: list[Plane] = []
    if not how.high:
        return (Plane("words", bits, 0, (Digit(block, bits),)),)
    periods = Digit(block // count, words * WORD)
    if how.low:
        planes.append(Plane("words", how.low, 0, (periods, Digit(count, how.low))))
    order = (Digit(how.chunks, how.above), Digit(WORD // BYTE, BYTE), Digit(how.parts, how.high))
    planes.append(Plane("words", how.high, how.low_words * WORD, (periods, *order)))
    return tuple(planes)


def affine(
    name: str,
    bits: int,
    group: int,
    *,
    scale: DType = F32,
    bias: DType | None = F32,
    zero: float = 0.0,
    packed: PackedLayout | None = None,
    stream: bool = False,
) -> WeightFormat:
    """What ``dequantize`` reads: words, and a scale and a bias for each group of inputs.

    Without a stored ``bias`` that of a group is its scale times ``-zero``. In a ``stream`` every
    value begins where the one before it ends, across words too.
    """
    block = math.lcm(group, WORD if stream else period(bits)[0])
    groups = block // group
    arrays = [
        StoredArray("words", U32, block * bits // WORD if stream else words_for(block, bits)),
        StoredArray("scale", scale, groups),
    ]
    step = Quantity(elements("scale", scale, groups, group))
    if bias is None:
        minimum = Quantity(-zero, step)
    else:
        arrays.append(StoredArray("bias", bias, groups))
        minimum = Quantity(elements("bias", bias, groups, group))
    one_by_one = (Plane("words", bits, 0, (Digit(block, bits),)),)
    planes = one_by_one if stream else word_planes(block, bits)
    value = Quantity(Numbers(planes, Integer()), step, minimum)
    return WeightFormat(name, block, tuple(arrays), value, packed)


def symmetric(name: str, bits: int, group: int) -> WeightFormat:
    """Words and a bf16 scale a group; the middle value stands for 0. Kernels read its words."""
    zero = float(1 << (bits - 1))
    return affine(name, bits, group, scale=BF16, bias=None, zero=zero, packed=PANELS)


def _nibbles(count: int, first: int, step: int) -> Plane:
    """Two values in a byte, the first one at bit ``first``."""
    return Plane("codes", 4, first, (Digit(count // 2, 8), Digit(2, step)))


def _scaled(
    name: str, block: int, codes: Numbers, scale: Numbers, *arrays: StoredArray
) -> WeightFormat:
    """A format of codes in bytes times a scale."""
    held = StoredArray("codes", U8, block * codes.bits // 8)
    return WeightFormat(name, block, (held, *arrays), Quantity(codes, Quantity(scale)))


def _bytes(block: int) -> Plane:
    return Plane("codes", 8, 0, (Digit(block, 8),))


OWN: Final = (symmetric("int8", 8, 32), symmetric("int4", 4, 32))
"""What weights are quantized to while they load."""

OTHERS: Final = (
    _scaled(
        "nf4",
        64,
        Numbers((_nibbles(64, 4, -4),), NF4),
        elements("absmax", F32, 1, 64),
        StoredArray("absmax", F32, 1),
    ),
    _scaled(
        "mxfp4",
        32,
        Numbers((_nibbles(32, 0, 4),), E2M1),
        Numbers((Plane("scales", 8, 0, (Digit(1, 8),)),), PowerOfTwo(127), 32),
        StoredArray("scales", U8, 1),
    ),
    _scaled(
        "f8e4m3",
        128,
        Numbers((_bytes(128),), E4M3),
        elements("scale", F32, 1, 128),
        StoredArray("scale", F32, 1, blocks=EVERY),
    ),
    _scaled(
        "f8e5m2",
        128,
        Numbers((_bytes(128),), E5M2),
        elements("scale", F32, 1, 128),
        StoredArray("scale", F32, 1, blocks=EVERY),
    ),
    _scaled(
        "f8e4m3-blocks",
        128,
        Numbers((_bytes(128),), E4M3),
        elements("scale", F32, 1, 128),
        StoredArray("scale", F32, 1, outputs=128),
    ),
)
"""What checkpoints hold in arrays of their own: bitsandbytes' nf4 (upper half of a byte first), the
MXFP4 of gpt-oss, 8-bit floats with a scale for each output or for 128 by 128 weights."""

FORMATS: Final[dict[str, WeightFormat]] = {one.name: one for one in (*OWN, *GGUF, *OTHERS)}

QUANTIZERS: Final = tuple(one.name for one in OWN)
"""The formats that ``ptir.params.quantized`` makes."""

PACKED_BITS: Final = tuple(sorted({one.bits for one in FORMATS.values() if one.packed}))
"""The bits of values that products of rounded activations take."""
