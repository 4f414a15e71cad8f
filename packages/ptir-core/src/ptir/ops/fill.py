"""Constants and positions in the shape of another value: what decompositions are made from."""

from __future__ import annotations

import math

from ptir.ir.graph import Ref
from ptir.ops.record import literal, op
from ptir.types import I32, DType


def scalar(value: float, dtype: DType) -> Ref:
    """One number of a dtype, an integer's modulo 2**bits."""
    import numpy as np

    if dtype.is_integer:
        bits = np.array(int(value) % 2**dtype.bits, f"u{dtype.itemsize}")
        return op("constant")(value=literal(bits.view(dtype.numpy)))
    return op("constant")(value=literal(np.array(value, dtype.numpy)))


def full(value: float, shape: tuple[int, ...], dtype: DType) -> Ref:
    """One number in every place of a shape."""
    return op("broadcast_to")(scalar(value, dtype), shape=shape)


def like(value: float, other: Ref) -> Ref:
    """One number in the shape and dtype of ``other``."""
    return full(value, other.type.shape, other.type.dtype)


def positions(shape: tuple[int, ...], axis: int, dtype: DType = I32) -> Ref:
    """Each element its own position along an axis."""
    return op("iota")(shape=shape, dtype=dtype, axis=axis)


def lowest(dtype: DType) -> float:
    """The least value of a dtype: -inf, or the lowest integer."""
    if dtype.is_float:
        return -math.inf
    return -(2 ** (dtype.bits - 1)) if dtype.kind == "int" else 0


def highest(integer: DType) -> int:
    """The greatest value of an integer dtype."""
    return int(2 ** (integer.bits - (integer.kind == "int")) - 1)
