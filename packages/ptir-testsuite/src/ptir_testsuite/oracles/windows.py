"""Oracles of sliding windows: for each window, the places of its taps in the operand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ptir_testsuite.oracles.expected import Expected, exactly
from ptir_testsuite.oracles.floats import python_values
from ptir_testsuite.oracles.folds import fold
from ptir_testsuite.oracles.table import Given, oracle

Index = tuple[int, ...]


class Geometry:
    """The geometry of a call over axes of some sizes, its missing parts filled in."""

    def __init__(self, given: Given, sizes: Sequence[int]) -> None:
        count = len(sizes)
        self.sizes = sizes
        self.window = given["window"]
        self.strides = given["strides"] or (1,) * count
        self.low = given["low"] or (0,) * count
        self.base = given["base_dilation"] or (1,) * count
        self.taps = given["window_dilation"] or (1,) * count

    def source(self, place: Index, tap: Index) -> Index | None:
        """The operand index that a tap of the window at ``place`` reads; None for the padding."""
        found = []
        for axis, size in enumerate(self.sizes):
            spread = place[axis] * self.strides[axis] + tap[axis] * self.taps[axis] - self.low[axis]
            index, between = divmod(spread, self.base[axis])
            if between or not 0 <= index < size:
                return None
            found.append(index)
        return tuple(found)


@oracle("reduce_window")
def _reduce_window(given: Given) -> list[Expected]:
    operand, (result,) = given.arrays[0], given.results
    geometry = Geometry(given, operand.shape)
    flat = python_values(operand, result.dtype)
    number = np.arange(operand.size).reshape(operand.shape)
    groups: list[list[Any]] = []
    for place in np.ndindex(*result.shape):
        sources = (geometry.source(place, tap) for tap in np.ndindex(*geometry.window))
        groups.append([flat[int(number[at])] for at in sources if at is not None])
    return [fold(groups, given["kind"], result)]


@oracle("extract_patches")
def _extract_patches(given: Given) -> list[Expected]:
    operand, (result,) = given.arrays[0], given.results
    spatial = operand.shape[1:-1]
    geometry, rank = Geometry(given, spatial), len(spatial)
    out = np.zeros(result.shape, operand.dtype)
    for index in np.ndindex(*result.shape):
        source = geometry.source(index[1 : 1 + rank], index[1 + rank : 1 + 2 * rank])
        if source is not None:
            out[index] = operand[(index[0], *source, index[-1])]
    return [exactly(out)]
