"""Records of the formats that folders hold, made from what their configuration says.

A scale of f16 or bf16 times a difference of codes has at most 20 bits, so ``code * scale`` and
``-zero * scale`` are exact and so is their sum: kernels may add them. With a scale of f32 they are
not, and a weight with zero points of its own becomes floats.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from ptir.types import F32, U8, U32, DType
from ptir.weights.formats import E2M1, affine, elements
from ptir.weights.gguf import FP4
from ptir.weights.record import (
    EVERY,
    Codebook,
    Digit,
    InputOrder,
    Integer,
    Numbers,
    Plane,
    PowerOfTwo,
    Quantity,
    SmallFloat,
    StoredArray,
    WeightFormat,
)
from ptir.weights.words import period, words_for

LARGEST_BLOCK: Final = 128
"""Inputs of a block where an output has one scale."""
WIDE_SCALES: Final = "a scale of f32 times a sum rounds otherwise than the sum of two products"
ONE_LINE: Final = "its blocks are of one line of all weights, and go on in the next row"
LEAST_GROUP: Final = 16
"""Fewest inputs with a scale that kernels read."""


@dataclass(frozen=True)
class Shared:
    """How numbers such as scales are shared: one for ``group`` inputs of ``block``.

    ``channel``: one for all inputs of an output.
    """

    block: int
    group: int
    channel: bool = False

    def array(self, name: str, dtype: DType) -> StoredArray:
        """The array of such numbers."""
        blocks = EVERY if self.channel else 1
        return StoredArray(name, dtype, self.block // self.group, blocks=blocks)

    def numbers(self, name: str, dtype: DType) -> Numbers:
        """The numbers themselves: floats, or whole numbers in bytes."""
        count = self.block // self.group
        if dtype.is_float:
            return elements(name, dtype, count, self.group)
        return Numbers((Plane(name, 8, 0, (Digit(count, 8),)),), Integer(), self.group)

    @property
    def called(self) -> str:
        """As names of formats say it."""
        return "channel" if self.channel else f"g{self.group}"


def shared(bits: int, inputs: int, group: int) -> Shared:
    """Blocks that are whole words; a ``group`` of all inputs is one scale an output."""
    least = period(bits)[0]
    if group == inputs:
        block = math.gcd(inputs, LARGEST_BLOCK)
        return Shared(block, block, channel=True)
    return Shared(math.lcm(group, least), group)


def whole_words(bits: int, inputs: int, group: int) -> bool:
    """Whether rows are whole groups, and whole words of whole values."""
    if group <= 0 or inputs % group:
        return False
    block = shared(bits, inputs, group).block
    return inputs % block == 0 and block % period(bits)[0] == 0


@lru_cache(maxsize=256)
def integers(
    method: str,
    bits: int,
    by: Shared,
    scale: DType,
    *,
    zeros: bool,
    lowest: int = 0,
    order: InputOrder | None = None,
) -> WeightFormat:
    """Whole numbers in a stream of bits, minus stored zero points or from ``lowest`` on."""
    expanded = WIDE_SCALES if zeros and scale == F32 else ""
    words = Plane("words", bits, 0, (Digit(by.block, bits),))
    codes = Numbers((words,), Integer(lowest))
    arrays = [
        StoredArray("words", U32, words_for(by.block, bits)),
        by.array("scale", scale),
        *([by.array("zeros", U8)] if zeros else ()),
    ]
    step = Quantity(by.numbers("scale", scale))
    if not zeros:
        value = Quantity(codes, step)
    elif scale == F32:  # the difference first, as the formats define it
        negative = Quantity(by.numbers("zeros", U8), Quantity(-1.0))
        value = Quantity(by.numbers("scale", scale), Quantity(codes, None, negative))
    else:
        negative = Quantity(by.numbers("zeros", U8), Quantity(-1.0, step))
        value = Quantity(codes, step, negative)
    name = f"{method}-int{bits}-{by.called}"
    return WeightFormat(name, by.block, tuple(arrays), value, expanded=expanded, order=order)


@lru_cache(maxsize=64)
def signed_bytes(
    method: str, by: Shared, scale: DType, *, zeros: bool, factor: float = 1.0
) -> WeightFormat:
    """Bytes in two's complement times a scale; with zero points both are stored plus 128."""
    expanded = WIDE_SCALES if zeros and scale == F32 else ""
    plane = Plane("codes", 8, 0, (Digit(by.block, 8),))
    numbers = by.numbers("scale", scale)
    step = Quantity(numbers, None if factor == 1.0 else Quantity(factor))
    arrays = [StoredArray("codes", U8, by.block), by.array("scale", scale)]
    codes = Numbers((plane,), Integer(signed=not zeros))
    value = Quantity(codes, step)
    if zeros:
        arrays.append(by.array("zeros", U8))
        held = by.numbers("zeros", U8)
        if scale == F32:
            value = Quantity(numbers, Quantity(codes, None, Quantity(held, Quantity(-1.0))))
        else:
            value = Quantity(codes, step, Quantity(held, Quantity(-1.0, step)))
    name = f"{method}-int8-{by.called}"
    return WeightFormat(name, by.block, tuple(arrays), value, expanded=expanded)


@lru_cache(maxsize=64)
def mlx_affine(bits: int, group: int, dtype: DType) -> WeightFormat:
    """MLX's words: value * scale + bias."""
    return affine(f"mlx-int{bits}-g{group}", bits, group, scale=dtype, bias=dtype, stream=True)


def mlx_mxfp4() -> WeightFormat:
    """MLX's words of the MXFP4: doubled floats, which are whole, and half the power of two."""
    plane = Plane("words", 4, 0, (Digit(32, 4),))
    power = Numbers((Plane("scales", 8, 0, (Digit(1, 8),)),), PowerOfTwo(128), 32)
    arrays = StoredArray("words", U32, 4), StoredArray("scales", U8, 1)
    return WeightFormat("mlx-mxfp4", 32, arrays, Quantity(Numbers((plane,), FP4), Quantity(power)))


@lru_cache(maxsize=64)
def small_floats(name: str, reading: SmallFloat, by: Shared, scale: DType) -> WeightFormat:
    """Floats of 8 bits, and what ``by`` says of their scales."""
    plane = Plane("codes", 8, 0, (Digit(by.block, 8),))
    step = Quantity(by.numbers("scale", scale))
    arrays = StoredArray("codes", U8, by.block), by.array("scale", scale)
    expanded = "" if by.group >= LEAST_GROUP else f"rows are no groups of {LEAST_GROUP} inputs"
    value = Quantity(Numbers((plane,), reading), step)
    return WeightFormat(name, by.block, arrays, value, expanded=expanded)


def nvfp4() -> WeightFormat:
    """Floats of 4 bits, lower half of a byte first, times a scale for 16 inputs, as divided."""
    plane = Plane("codes", 4, 0, (Digit(16, 4),))
    arrays = StoredArray("codes", U8, 8), StoredArray("scale", F32, 1)
    step = Quantity(elements("scale", F32, 1, 16))
    return WeightFormat("nvfp4", 16, arrays, Quantity(Numbers((plane,), E2M1), step))


@lru_cache(maxsize=1024)
def codebook4(
    name: str,
    block: int,
    values: Codebook,
    nested: tuple[Codebook, int, float] | None,
    *,
    expanded: str = "",
) -> WeightFormat:
    """Bitsandbytes' 4 bits, upper half of a byte first, in rows or in one line of all weights.

    ``nested``: scales are codes of a codebook times scales of their own, and an offset.
    """
    plane = Plane("codes", 4, 4, (Digit(block // 2, 8), Digit(2, -4)))
    codes = StoredArray("codes", U8, block // 2)
    if nested is None:
        arrays: tuple[StoredArray, ...] = (codes, StoredArray("absmax", F32, 1))
        step = Quantity(elements("absmax", F32, 1, block))
    else:
        book, every, offset = nested
        arrays = (
            codes,
            StoredArray("absmax", U8, 1),
            StoredArray("nested_absmax", F32, 1, blocks=every),
        )
        held = Numbers((Plane("absmax", 8, 0, (Digit(1, 8),)),), book, block)
        step = Quantity(held, Quantity(elements("nested_absmax", F32, 1, block)), Quantity(offset))
    value = Quantity(Numbers((plane,), values), step)
    return WeightFormat(name, block, arrays, value, expanded=expanded)
