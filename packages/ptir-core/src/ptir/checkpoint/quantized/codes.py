"""Values of few bits in streams of words, taken out and put back: integers alone, none changes."""

from __future__ import annotations

from typing import Final

import numpy as np

from ptir.params.source import Array

AWQ_COLUMN: Final = (0, 2, 4, 6, 1, 3, 5, 7)
"""Which of eight neighbouring outputs lies in each four bits of an AWQ word, lowest bits first."""


def unpacked(words: Array, bits: int, count: int) -> Array:
    """The first ``count`` values u8[lines, count] of lines of words, low bits first."""
    raw = np.ascontiguousarray(words).view(np.uint8).reshape(len(words), -1)
    if bits == 8:
        return raw[:, :count]
    stream = np.unpackbits(raw, axis=-1, bitorder="little")[:, : count * bits]
    values = np.zeros((len(words), count), np.uint8)
    for bit in range(bits):
        values |= stream[:, bit::bits] << np.uint8(bit)
    return values


def packed(values: Array, bits: int) -> Array:
    """Words u32[lines, words] of lines of values, which must fill whole words."""
    shifts = np.arange(bits, dtype=np.uint8)
    stream = (values[..., None] >> shifts & np.uint8(1)).reshape(len(values), -1)
    raw = np.packbits(stream, axis=-1, bitorder="little")
    return np.ascontiguousarray(raw).view("<u4").astype(np.uint32, copy=False)


def awq_unpacked(words: Array) -> Array:
    """The values u8[inputs, outputs] of AWQ's words i32[inputs, outputs / 8]."""
    nibbles = unpacked(words, 4, words.shape[1] * 8).reshape(len(words), -1, 8)
    found = np.empty_like(nibbles)
    found[..., list(AWQ_COLUMN)] = nibbles
    return found.reshape(len(words), -1)
