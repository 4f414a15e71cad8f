"""GGUF files whose matrices are random blocks of one type: how fast a file is depends on no value.

llama.cpp's quantizer takes minutes for types of three bits and less, and refuses some of them
without an importance matrix. Of the bytes only the scales are kept small, so that logits are
numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from ptir.checkpoint.gguf import GgufFile, Outgoing, write_gguf
from ptir.weights import FORMATS, WeightFormat
from ptir.weights.record import PowerOfTwo, SmallFloat

Array = np.ndarray[Any, Any]
CHUNK: Final = 1 << 16
"""Blocks that are drawn at once."""
KEPT: Final = {SmallFloat: (0x9F, 0), PowerOfTwo: (0x07, 0x70)}
"""Of the byte with a scale's exponent: which bits stay random, which are one; below 2^-7."""


def random_file(plain: Path, target: Path, kind: str) -> Path:
    """``plain``, a file in f16, with every matrix in random blocks of a type; a file is kept."""
    if target.exists():
        return target
    source, format, rng = GgufFile(plain), FORMATS[kind], np.random.default_rng(0)
    tensors = []
    for name, tensor in source.tensors.items():
        if len(tensor.shape) > 1:
            count = int(np.prod(tensor.shape)) // format.block
            chunks = partial(_blocks, format, count, rng)
            tensors.append(Outgoing(name, kind, tensor.shape, chunks))
        else:
            raw = source.raw(name)
            chunks = partial(iter, [raw])
            tensors.append(Outgoing(name, tensor.type.name, tensor.shape, chunks))
    part = target.with_suffix(".part")
    write_gguf(part, source.metadata, tensors)
    part.rename(target)
    return target


def _blocks(format: WeightFormat, count: int, rng: np.random.Generator) -> Iterator[Array]:
    """Random blocks of a type, with scales that are small numbers."""
    size = format.arrays[0].count
    for first in range(0, count, CHUNK):
        found = rng.integers(0, 256, (min(CHUNK, count - first), size), np.uint8)
        for quantity in format.value.within():
            if isinstance(quantity.numbers, float):
                continue
            plane, reading = quantity.numbers.planes[-1], quantity.numbers.reading
            if type(reading) not in KEPT:
                continue
            random, ones = KEPT[type(reading)]
            last = [(place + plane.bits - 1) // 8 for place in plane.places()]
            found[:, last] = found[:, last] & random | ones
        yield found
