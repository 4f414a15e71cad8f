"""A small evaluator of blocks by the ops' own meanings, and awkward inputs for it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ptir.ir.program import Block
from ptir.ops import numerics
from ptir.ops.record import OPS
from ptir.types import TensorType

AWKWARD = {
    "float": (
        *(0.0, -0.0, 1.0, -1.0, 1.5, -2.75, math.inf, -math.inf, math.nan, -math.nan),
        *(1e-45, -1e-45, 1.1754942e-38, 3.4028235e38, -3.4028235e38, 0.1),
    ),
    "int": (0, 1, -1, 2, 3, -7, 31, 32, 33, 100, -(2**31), 2**31 - 1, 65536, -65537, 5, -2),
    "uint": (0, 1, 2, 3, 5, 7, 31, 32, 33, 100, 2**31, 2**32 - 1, 65536, 65537, 2**31 - 1, 9),
    "bool": (False, True) * 8,
}


class Region:
    """A region as the meanings of control flow take it."""

    def __init__(self, block: Block) -> None:
        self._block = block
        self.output_types = block.output_types

    def __call__(self, *arrays: Any) -> tuple[Any, ...]:
        return evaluate(self._block, arrays)


def evaluate(block: Block, arrays: Sequence[Any]) -> tuple[Any, ...]:
    """The outputs of ``block`` for these inputs, each op run as its record means it."""
    values = list(arrays)
    for instruction in block.instructions:
        given = [values[v] for v in instruction.operands]
        extra: dict[str, Any] = {}
        if instruction.regions:
            extra["regions"] = [Region(block) for block in instruction.regions]
        results = OPS[instruction.op].meaning(numerics, *given, **instruction.attributes, **extra)
        values.extend(results if isinstance(results, tuple | list) else (results,))
    return tuple(np.asarray(values[v]) for v in block.outputs)


def awkward(types: Sequence[TensorType], turn: int = 0) -> list[Any]:
    """Inputs in which operands meet all pairs of awkward values; ``turn`` rotates them."""
    return [_filled(t, 16**position, turn) for position, t in enumerate(types)]


def _filled(type: TensorType, period: int, turn: int) -> Any:
    values = AWKWARD[type.dtype.kind]
    picked = [values[(i // period + turn) % 16] for i in range(type.size)]
    wide = "f4" if type.dtype.is_float else type.dtype.numpy
    with np.errstate(all="ignore"):
        return np.array(picked, wide).astype(type.dtype.numpy).reshape(type.shape)


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
