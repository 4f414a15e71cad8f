"""What affine quantization means on NumPy arrays: values, and the words they are packed into."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptir.ops.numerics.casts import cast
from ptir.ops.numerics.rounding import numeric
from ptir.types import F32, U8, DType
from ptir.weights.packing import pack, unpack
from ptir.weights.tables import Table, entries
from ptir.weights.words import ONES, SIGNED, greatest, period

Array = NDArray[Any]


@numeric
def quantize(x: Array, scale: Array, bias: Array, *, axis: int, group: int, bits: int) -> Any:
    """``round((x - bias) / scale)`` within 0 .. 2**bits - 1, packed along ``axis``."""
    lines, steps, starts = (np.moveaxis(_wide(a), axis, -1) for a in (x, scale, bias))
    grouped = lines.reshape(*lines.shape[:-1], steps.shape[-1], group)
    ratio = (grouped - starts[..., None]) / steps[..., None]
    values = np.rint(np.where(steps[..., None] == 0, np.float32(0), ratio))
    whole = cast(np.minimum(values, np.float32(greatest(bits))), dtype=U8)
    return np.moveaxis(pack(whole.reshape(lines.shape), bits), -1, axis)


@numeric
def dequantize(
    words: Array,
    scale: Array,
    bias: Array,
    *,
    axis: int,
    group: int,
    bits: int,
    dtype: DType = F32,
    table: Table | None = None,
) -> Any:
    """``value * scale + bias`` in f32, each step rounded, as ``dtype``; values or their table's."""
    lines, steps, starts = (np.moveaxis(a, axis, -1) for a in (words, _wide(scale), _wide(bias)))
    size = steps.shape[-1] * group
    codes = unpack(lines, size, bits)
    values = codes.astype(np.float32) if table is None else entries(table, bits)[codes]
    grouped = values.reshape(*lines.shape[:-1], steps.shape[-1], group)
    grouped *= steps[..., None]
    grouped += starts[..., None]
    return np.moveaxis(values if dtype == F32 else cast(values, dtype=dtype), -1, axis)


@numeric
def unpack_vectors(codes: Array, table: Array, signs: Array, *, axis: int, bits: int) -> Any:
    """The rows of a table that packed codes stand for, bytes negated by ``signs``."""
    lines, marks = (np.moveaxis(a, axis, -1) for a in (codes, signs))
    count, width = period(bits)
    size = lines.shape[-1] // width * count
    numbers = np.minimum(unpack(lines, size, bits), min(len(table) - 1, greatest(bits)))
    words = table[numbers].reshape(*lines.shape[:-1], size * table.shape[1])
    if marks.shape[-1]:
        spread = marks[..., None] >> np.arange(SIGNED, dtype=np.uint32)
        ones = spread.reshape(words.shape) & np.uint32(ONES)
        words = (words ^ ones * np.uint32(127)) + ones
    return np.moveaxis(words, -1, axis)


def _wide(x: Array) -> Array:
    return x.astype(np.float32, copy=False)
