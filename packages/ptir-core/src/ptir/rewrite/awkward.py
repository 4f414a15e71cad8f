"""Evaluates blocks by the references of their ops, and makes inputs on which rules go wrong."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from ptir.ir.program import Block
from ptir.ops import numerics
from ptir.ops.record import OPS
from ptir.types import DType, TensorType


def awkward_values(dtype: DType) -> tuple[Any, ...]:
    """Sixteen values of a dtype where arithmetic goes wrong first."""
    if dtype.kind == "bool":
        return (False, True) * 8
    if dtype.is_float:
        info: Any = ml_dtypes.finfo(dtype.numpy)  # type: ignore[no-untyped-call]
        top, normal, tiny = float(info.max), float(info.tiny), float(info.smallest_subnormal)
        floats = (tiny, -tiny, normal, top, -top, 0.1)
        return (0.0, -0.0, 1.0, -1.0, 1.5, -2.75, math.inf, -math.inf, math.nan, -math.nan, *floats)
    ends: tuple[int, ...]
    bits, half = dtype.bits, 1 << (dtype.bits // 2)
    if dtype.kind == "uint":
        ends = (2 ** (bits - 1), 2**bits - 1, 2**bits - 2, 2 ** (bits - 1) - 1)
        return (0, 1, 2, 3, 5, 7, bits - 1, bits, bits + 1, 100, half, half + 1, *ends)
    ends = (-(2 ** (bits - 1)), 1 - 2 ** (bits - 1), 2 ** (bits - 1) - 1, 2 ** (bits - 1) - 2)
    return (0, 1, -1, 2, 3, -7, bits - 1, bits, bits + 1, half, -half - 1, -2, *ends)


class Region:
    """A region as the references of control flow take it."""

    def __init__(self, block: Block) -> None:
        self._block = block
        self.output_types = block.output_types

    def __call__(self, *arrays: Any) -> tuple[Any, ...]:
        """The outputs of the region."""
        return evaluate(self._block, arrays)


def evaluate(block: Block, arrays: Sequence[Any]) -> tuple[Any, ...]:
    """The outputs of ``block`` for these inputs, each op run as its record means it."""
    values = list(arrays)
    for instruction in block.instructions:
        given = [values[v] for v in instruction.operands]
        extra: dict[str, Any] = {}
        if instruction.regions:
            extra["regions"] = [Region(block) for block in instruction.regions]
        results = OPS[instruction.op].reference(numerics, *given, **instruction.attributes, **extra)
        values.extend(results if isinstance(results, tuple | list) else (results,))
    return tuple(np.asarray(values[v]) for v in block.outputs)


def awkward(types: Sequence[TensorType], rotation: int = 0) -> list[Any]:
    """Inputs in which operands meet all pairs of awkward values; ``rotation`` rotates them."""
    return [_filled(t, 16**position, rotation) for position, t in enumerate(types)]


def _filled(type: TensorType, period: int, rotation: int) -> Any:
    values = awkward_values(type.dtype)
    picked = [values[(i // period + rotation) % 16] for i in range(type.size)]
    with np.errstate(all="ignore"):
        return np.array(picked, type.dtype.numpy).reshape(type.shape)


def same_bits(found: Sequence[Any], wanted: Sequence[Any]) -> bool:
    """Equal dtypes, shapes and bytes."""
    return len(found) == len(wanted) and all(
        (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())
        for a, b in zip(found, wanted, strict=True)
    )


def same_but_for_nan(found: Sequence[Any], wanted: Sequence[Any]) -> bool:
    """As ``same_bits`` with all NaN being one: IEEE leaves open which NaN an op gives."""
    return same_bits([_one_nan(a) for a in found], [_one_nan(a) for a in wanted])


def _one_nan(array: Any) -> Any:
    if array.dtype.kind in "biu":
        return array
    return np.where(np.isnan(array), np.array(math.nan, array.dtype), array)
