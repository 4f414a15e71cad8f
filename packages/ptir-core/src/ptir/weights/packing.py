"""Values of few bits in words, on NumPy arrays: the layout of ``ptir.weights.words``."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ptir.weights.words import BYTE, WORD, WordLayout, greatest, layout, period

Array = NDArray[Any]
BYTES: Final = WORD // 8
"""Bytes of a word."""


def pack(values: Array, bits: int) -> Array:
    """The words of values along the last axis; a period that is not full has zeros behind.

    Values are u8, or u16 where they have more than 8 bits.
    """
    how, (count, _) = layout(bits), period(bits)
    size = values.shape[-1]
    if size % count:
        behind = [(0, 0)] * (values.ndim - 1) + [(0, -size % count)]
        values = np.pad(values, behind)
    shape = (*values.shape[:-1], values.shape[-1] // count)
    held = values.reshape(*shape, how.chunks, BYTES, how.parts)
    planes = []
    if how.low:
        low = (held & values.dtype.type(greatest(how.low))) << _steps(how.parts, how.low)
        planes.append(np.bitwise_or.reduce(low, axis=-1).astype(np.uint8, copy=False))
    if how.high:
        high = (held >> np.uint8(how.low)) << _high(how)
        both = np.bitwise_or.reduce(high, axis=(-3, -1))[..., None, :]
        planes.append(both.astype(np.uint8, copy=False))
    joined = np.ascontiguousarray(np.concatenate(planes, axis=-2) if planes[1:] else planes[0])
    words = joined.reshape(*shape[:-1], shape[-1] * how.words * BYTES).view("<u4")
    return words.astype(np.uint32, copy=False)


def unpack(words: Array, size: int, bits: int) -> Array:
    """The first ``size`` values of words along the last axis: u8, or u16 of more than 8 bits."""
    how, (count, _) = layout(bits), period(bits)
    shape = (*words.shape[:-1], words.shape[-1] // how.words)
    stream = np.ascontiguousarray(words.astype("<u4", copy=False)).view(np.uint8)
    stream = stream.reshape(*shape, how.words, BYTES)
    dtype: type[np.unsignedinteger[Any]] = np.uint8 if bits <= BYTE else np.uint16
    values = np.zeros((*shape, how.chunks, BYTES, how.parts), dtype)
    if how.low:
        low = stream[..., : how.low_words, :, None] >> _steps(how.parts, how.low)
        values |= low & np.uint8(greatest(how.low))
    if how.high:
        high = stream[..., how.low_words :, :, None] >> _high(how)
        values |= (high & np.uint8(greatest(how.high))).astype(dtype) << dtype(how.low)
    return values.reshape(*shape[:-1], shape[-1] * count)[..., :size]


def _steps(count: int, step: int) -> Array:
    found: Array = np.arange(count).astype(np.uint8) * np.uint8(step)
    return found


def _high(how: WordLayout) -> Array:
    """How far the high bits of each chunk's values are moved within a byte."""
    chunks, parts = _steps(how.chunks, how.above), _steps(how.parts, how.high)
    found: Array = chunks[:, None, None] + parts
    return found
