"""The pooling composites: windows folded tap by tap, in blocks that fit a cache."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ptir.ir import Instruction
from ptir.ops import numerics as xp
from ptir.ops.sliding import window_dimensions
from ptir_backend_ref.images import Block, blocks, over_blocks, padded, windows
from ptir_backend_ref.threads import BLOCK, PARALLEL

Array = np.ndarray[Any, np.dtype[Any]]
Kernel = Callable[..., Array]
Fold = Callable[..., Any]


def max_pool2d(instruction: Instruction, reusable: frozenset[int]) -> Kernel:
    """The greatest element of each window; NaN propagates and -0 < +0."""
    how, shape = instruction.attributes, instruction.types[0].shape

    def run(x: Array) -> Array:
        image = padded(x, how["low"], how["high"], -np.inf)
        taps = windows(image, shape[1:3], how["window"], how["strides"], how["dilation"])
        result = _folded(np.maximum, taps)
        if (result == 0).any() and (np.signbit(x) & (x == 0)).any():
            return _folded(_ordered_maximum, taps)  # NumPy leaves the order of zeros open
        return result

    return run


def _ordered_maximum(a: Array, b: Array, out: Array) -> None:
    out[...] = xp.maximum(a, b)


def avg_pool2d(instruction: Instruction, reusable: frozenset[int]) -> Kernel:
    """The sum of each window over its size, or over the elements of x that it sees."""
    how, shape = instruction.attributes, instruction.types[0].shape
    window, strides, low, high = (how[name] for name in ("window", "strides", "low", "high"))

    def run(x: Array) -> Array:
        image = padded(x, low, high, 0)
        result = _folded(np.add, windows(image, shape[1:3], window, strides, (1, 1)))
        if how["count_include_pad"]:
            result /= np.float32(math.prod(window))
        else:
            rows, columns = (
                s.seen for s in window_dimensions(x.shape[1:3], window, strides, low, high)
            )
            result /= np.multiply.outer(rows, columns)[..., None].astype(np.float32)
        return result

    return run


def _folded(fold: Fold, taps: Array) -> Array:
    """The taps [N,OH,OW,KH,KW,C] of each window folded."""
    result = np.empty((*taps.shape[:3], taps.shape[5]), np.float32)

    def piece(block: Block) -> None:
        part, seen = result[block], taps[block]
        part[...] = seen[:, :, :, 0, 0]
        for row, column in list(np.ndindex(*taps.shape[3:5]))[1:]:
            fold(part, seen[:, :, :, row, column], out=part)

    width = result.shape[2] * result.shape[3]
    cut = list(blocks(result.shape, width, BLOCK))
    over_blocks(piece, cut, result.size * taps.shape[3] * taps.shape[4] >= PARALLEL)
    return result
