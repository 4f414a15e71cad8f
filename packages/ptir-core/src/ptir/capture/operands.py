"""Operands of Python's operators as graph values: made from numbers and arrays, and made alike."""

from __future__ import annotations

from typing import Any

from ptir.capture.lazy import apply
from ptir.capture.promote import broadcast_shapes, promote, scalar_array, scalar_dtype
from ptir.ir.graph import Ref
from ptir.ops.record import literal
from ptir.types import DType

Scalar = bool | int | float


def lifted(value: Any) -> Ref | Scalar | None:
    """What stands beside a tensor: scalars stay scalars, NumPy arrays become constants.

    None for anything else.
    """
    import numpy as np

    if isinstance(value, bool | int | float):
        return value
    if isinstance(value, np.generic):
        scalar: Scalar = value.item()
        return scalar
    if isinstance(value, np.ndarray):
        return apply("constant", value=literal(value))
    return None


def full(value: Any, dtype: DType, shape: tuple[int, ...] = ()) -> Ref:
    """A constant scalar broadcast to ``shape``; raises ``TypeRuleError`` if it does not fit."""
    return broadcast(apply("constant", value=literal(scalar_array(value, dtype))), shape)


def unify(*values: Ref | Scalar) -> tuple[Ref, ...]:
    """Values of one element type and shape: promotion first, then broadcasting."""
    known = [value.type for value in values if isinstance(value, Ref)]
    common = known[0].dtype
    for type in known[1:]:
        common = promote(common, type.dtype)
    for value in values:
        if not isinstance(value, Ref):
            common = promote(common, scalar_dtype(value, common))
    shape = broadcast_shapes([type.shape for type in known])
    return tuple(
        broadcast(converted(v, common), shape) if isinstance(v, Ref) else full(v, common, shape)
        for v in values
    )


def converted(value: Ref, dtype: DType) -> Ref:
    """``value`` cast to ``dtype``, itself if it has it."""
    return value if value.type.dtype == dtype else apply("cast", value, dtype=dtype)


def broadcast(value: Ref, shape: tuple[int, ...]) -> Ref:
    """``value`` broadcast to ``shape``, itself if it has it."""
    return value if value.type.shape == shape else apply("broadcast_to", value, shape=shape)


def reshaped(value: Ref, shape: tuple[int, ...]) -> Ref:
    """``value`` in another shape, itself if it has it."""
    return value if value.type.shape == shape else apply("reshape", value, shape=shape)
