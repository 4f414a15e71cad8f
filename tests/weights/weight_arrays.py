"""Random stored weights: the arrays of a format, with scales that are finite numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, quants

from ptir.weights import WeightFormat
from ptir.weights.record import SmallFloat

Array = np.ndarray[Any, Any]


def _one_bit(block: Array) -> list[float]:
    scale = block[:2].view(np.float16)[0].astype(np.float32)
    return [scale if block[2 + i // 8] >> i % 8 & 1 else -scale for i in range(128)]


def _two_bits(block: Array) -> list[float]:
    scale = block[:2].view(np.float16)[0].astype(np.float32)
    return [scale * np.float32(int(block[2 + i // 4] >> 2 * (i % 4) & 3) - 1) for i in range(64)]


LOOPS = {"Q1_0": _one_bit, "Q2_0": _two_bits}
"""Formats that ``gguf`` does not decode, weight by weight."""


def witnessed(name: str, blocks: Array) -> Array:
    """What somebody else's code, or a plain loop, decodes u8[outputs, bytes] to."""
    with np.errstate(all="ignore"):
        if name not in LOOPS:
            return np.asarray(quants.dequantize(blocks, GGMLQuantizationType[name]))
        each = blocks.reshape(-1, 18).astype(np.uint8)
        found = [LOOPS[name](block.copy()) for block in each]
        return np.array(found, np.float32).reshape(blocks.shape[0], -1)


def random_arrays(
    format: WeightFormat, outputs: int, blocks: int, rng: np.random.Generator
) -> dict[str, Array]:
    """Every byte random, but floats of arrays of their own, which are normal numbers."""
    found: dict[str, Array] = {}
    for one in format.arrays:
        lines, across = -(-outputs // one.outputs), -(-blocks // one.blocks)
        shape = (lines, across * one.count)
        if one.dtype.is_float:
            found[one.name] = rng.standard_normal(shape).astype(one.dtype.numpy)
        else:
            raw = rng.integers(0, 256, (*shape, one.dtype.itemsize), np.uint8)
            found[one.name] = raw.view(one.dtype.numpy)[..., 0]
    return found


def as_written(format: WeightFormat, blocks: Array) -> Array:
    """GGUF's blocks with what no file has taken out: f16 that are not finite, signs of floats that
    have none (of which readers make different numbers)."""
    found = blocks.reshape(blocks.shape[0], -1, format.arrays[0].count).copy()
    for quantity in format.value.within():
        if isinstance(quantity.numbers, float):
            continue
        plane, reading = quantity.numbers.planes[-1], quantity.numbers.reading
        if isinstance(reading, SmallFloat):
            clear = 0xBF if reading.signed else 0x7F
            last = [place + plane.bits - 1 for place in plane.places()]
            found[..., [place // 8 for place in last]] &= np.uint8(clear)
    return found.reshape(blocks.shape)
