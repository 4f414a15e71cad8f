"""The composite of mixtures of experts: one product for each expert that any row is given to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ptir.ir import Instruction
from ptir.ops.numerics.arrays import blas_ready

Array = np.ndarray[Any, np.dtype[Any]]


def expert_linear(instruction: Instruction, reusable: frozenset[int]) -> Callable[..., Array]:
    """Rows times the weights of their experts, expert by expert; others' are not read."""
    experts, shape = instruction.attributes["experts"], instruction.types[0].shape

    def run(x: Array, weight: Array, chosen: Array) -> Array:
        own = np.clip(chosen, 0, experts - 1).reshape(-1)
        rows = x.reshape(-1, x.shape[-1])
        shared = shape[1] if x.ndim == 2 else 1
        stacked = weight.reshape(experts, shape[2], x.shape[-1])
        out = np.empty((len(own), shape[2]), np.float32)
        for expert in np.unique(own):
            (pairs,) = np.nonzero(own == expert)
            matrix = blas_ready(stacked[expert].astype(np.float32, copy=False))
            out[pairs] = rows[pairs // shared] @ matrix.T
        return out.reshape(shape)

    return run
