"""Conversions between element types on NumPy arrays: saturating, wrapping, rounded once."""

from __future__ import annotations

from typing import Any

import numpy as np

from ptir.ops.numerics.rounding import Array, numeric, round_to
from ptir.types import F32, DType, dtype_of


@numeric
def cast(x: Array, *, dtype: DType) -> Any:
    """Elements converted to ``dtype``.

    Float to integer truncates and saturates, NaN gives 0; integers wrap; to float rounds once,
    half to even; to bool is ``x != 0``, which NaN is.
    """
    source = dtype_of(x)
    if source == dtype:
        return x.copy()
    if source.is_float and source.bits < F32.bits:
        x = x.astype(np.float32)
    if dtype.kind == "bool":
        return x != 0
    if dtype.is_float:
        return _to_float(x, dtype)
    return _saturate(x, dtype) if source.is_float else x.astype(dtype.numpy)


def _to_float(x: Array, target: DType) -> Array:
    if x.dtype.kind == "f":
        return round_to(x, target) if x.dtype == np.float64 else x.astype(target.numpy)
    if target.bits >= F32.bits:
        return x.astype(target.numpy)
    if x.dtype.itemsize == 8:  # does not fit f64: keep 53 bits and whether any other was set
        odd = (x >> 11) | ((x & 0x7FF) != 0)
        small = np.abs(x.astype(np.float64)) < 2.0**53
        return round_to(np.where(small, x.astype(np.float64), odd * 2048.0), target)
    return round_to(x.astype(np.float64), target)


def _saturate(x: Array, target: DType) -> Array:
    ends = np.iinfo(target.numpy)
    low, above = float(ends.min), float(ends.max + 1)
    inside = (x > low) & (x < above)
    converted = np.where(inside, x, 0).astype(target.numpy)
    return np.where(x >= above, ends.max, np.where(x <= low, ends.min, converted)).astype(
        target.numpy
    )


@numeric
def bitcast(x: Array, *, dtype: DType) -> Any:
    """The same bits read as ``dtype``, which has the same width."""
    return x.view(dtype.numpy).copy()
