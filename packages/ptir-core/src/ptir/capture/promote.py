"""Promotion and broadcasting: the Tensor API resolves both before it emits an op.

Python scalars are weak (they take the tensor's dtype where they can). Between tensors, floats win
over integers and integers over bool; two float types meet in the narrowest type that holds both;
signed and unsigned meet in a wider signed type.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ptir.errors import TypeRuleError
from ptir.types import DTYPES, F32, I32, DType

if TYPE_CHECKING:
    import numpy as np


def promote(a: DType, b: DType) -> DType:
    """The element type in which ``a`` and ``b`` meet; raises ``TypeRuleError`` when none exists."""
    if a == b:
        return a
    if a.is_float or b.is_float:
        return _promote_floats(a, b)
    if "bool" in (a.kind, b.kind):
        return b if a.kind == "bool" else a
    if a.kind == b.kind:
        return a if a.bits > b.bits else b
    signed, unsigned = (a, b) if a.kind == "int" else (b, a)
    bits = max(signed.bits, 2 * unsigned.bits)
    if bits > 64:
        raise TypeRuleError(f"{a} and {b} have no common integer type; cast one with .astype()")
    return DTYPES[f"i{bits}"]


def _promote_floats(a: DType, b: DType) -> DType:
    if not (a.is_float and b.is_float):
        return a if a.is_float else b
    floats = (a, b, *(DTYPES[name] for name in ("f16", "f32", "f64")))
    return next(wide for wide in floats if wide.holds(a) and wide.holds(b))


def scalar_dtype(value: bool | int | float, other: DType) -> DType:
    """The element type a Python scalar takes beside a tensor of ``other``."""
    if isinstance(value, bool):
        return other if other.kind != "bool" else DTYPES["bool"]
    if isinstance(value, int):
        return other if other.kind != "bool" else I32
    return other if other.is_float else F32


def scalar_array(value: bool | int | float, dtype: DType) -> np.ndarray[Any, Any]:
    """A Python scalar as a 0-d array of ``dtype``, rounded once; integers have to fit.

    Raises ``TypeRuleError`` for an integer outside the range of an integer dtype.
    """
    import numpy as np

    from ptir.ops.numerics import cast

    if isinstance(value, int) and not isinstance(value, bool):
        if dtype.is_integer:
            ends = np.iinfo(dtype.numpy)
            if not ends.min <= value <= ends.max:
                raise TypeRuleError(
                    f"{value} does not fit {dtype} ({ends.min} to {ends.max}); cast the tensor"
                    " with .astype() first"
                )
        elif not -(2**63) <= value < 2**64:
            value = float(value) if abs(value) < 2**1023 else math.inf if value > 0 else -math.inf
    return cast(np.asarray(value), dtype=dtype)


def broadcast_shapes(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """The common shape under NumPy's rule; raises ``TypeRuleError`` naming the shapes."""
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    result = tuple(max(sizes) if 0 not in sizes else 0 for sizes in zip(*padded, strict=True))
    for shape in padded:
        if any(size not in (1, full) for size, full in zip(shape, result, strict=True)):
            listed = " and ".join(str(list(s)) for s in shapes)
            raise TypeRuleError(f"shapes {listed} do not broadcast; sizes must be equal or 1")
    return result
