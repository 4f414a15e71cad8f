"""What affine quantization means on NumPy arrays: values, and the bit stream they are packed into.

A line of values is a stream of bits, low bits first, cut into little-endian words.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptir.ops.numerics.casts import cast
from ptir.ops.numerics.rounding import numeric
from ptir.types import F32, U32, DType
from ptir.weights.words import greatest, period, words_for

Array = NDArray[Any]


@numeric
def quantize(x: Array, scale: Array, bias: Array, *, axis: int, group: int, bits: int) -> Any:
    """``round((x - bias) / scale)`` within 0 .. 2**bits - 1, packed along ``axis``."""
    lines, steps, starts = (np.moveaxis(_wide(a), axis, -1) for a in (x, scale, bias))
    grouped = lines.reshape(*lines.shape[:-1], steps.shape[-1], group)
    ratio = (grouped - starts[..., None]) / steps[..., None]
    values = np.rint(np.where(steps[..., None] == 0, np.float32(0), ratio))
    whole = cast(np.minimum(values, np.float32(greatest(bits))), dtype=U32)
    return np.moveaxis(_packed(whole.reshape(lines.shape), bits), -1, axis)


@numeric
def dequantize(
    words: Array, scale: Array, bias: Array, *, axis: int, group: int, bits: int, dtype: DType = F32
) -> Any:
    """``value * scale + bias`` in f32, each step rounded, as ``dtype``."""
    lines, steps, starts = (np.moveaxis(a, axis, -1) for a in (words, _wide(scale), _wide(bias)))
    size = steps.shape[-1] * group
    values = np.ascontiguousarray(_unpacked(lines, size, bits))
    grouped = values.reshape(*lines.shape[:-1], steps.shape[-1], group)
    grouped *= steps[..., None]
    grouped += starts[..., None]
    return np.moveaxis(values if dtype == F32 else cast(values, dtype=dtype), -1, axis)


def _wide(x: Array) -> Array:
    return x.astype(np.float32, copy=False)


def _pack(bits: int) -> tuple[int, int, np.dtype[Any]]:
    """The least values that fill whole bytes: how many, their bytes, and what holds them."""
    together = math.lcm(bits, 8)
    return together // bits, together // 8, np.dtype(np.uint8 if together == 8 else np.uint32)


def _packed(values: Array, bits: int) -> Array:
    """Values of the last axis as words; bits behind the last value are 0."""
    count, width, holder = _pack(bits)
    size, whole = values.shape[-1], period(bits)[0]
    padded = np.zeros((*values.shape[:-1], -(-size // whole) * whole), holder)
    padded[..., :size] = values
    packs = padded.reshape(*padded.shape[:-1], padded.shape[-1] // count, count)
    held = np.bitwise_or.reduce(packs << _shifts(count, bits, holder), axis=-1)
    cut = held[..., None] >> _shifts(width, 8, holder)
    stream = (cut & holder.type(255)).astype(np.uint8)
    stream = stream.reshape(*held.shape[:-1], held.shape[-1] * width)
    used = words_for(size, bits) * 4
    return np.ascontiguousarray(stream[..., :used]).view("<u4").astype(np.uint32)


def _unpacked(words: Array, size: int, bits: int) -> Array:
    """The first ``size`` values of the last axis, as f32."""
    count, width, holder = _pack(bits)
    stream = np.ascontiguousarray(words.astype("<u4", copy=False)).view(np.uint8)
    packs = -(-size // count)
    joined = np.zeros((*words.shape[:-1], packs), holder)
    for at in range(width):
        part = stream[..., at : packs * width : width].astype(holder)
        joined[..., : part.shape[-1]] |= part << holder.type(8 * at)
    values = np.empty((*words.shape[:-1], packs * count), np.float32)
    for at in range(count):
        values[..., at::count] = (joined >> holder.type(at * bits)) & holder.type(greatest(bits))
    return values[..., :size]


def _shifts(count: int, step: int, holder: np.dtype[Any]) -> Array:
    return np.arange(0, count * step, step).astype(holder)
