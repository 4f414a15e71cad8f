"""Winograd's minimal filtering, F(2x2, 3x3), along an axis: where tiles lie, and the transforms.

The transforms are of tensors and of expressions in kernels alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol, Self, TypeVar

from ptir.ops.sliding import WindowDimension

TAPS: Final = 3
"""Taps of a filter along an axis."""
TILE: Final = 4
"""Inputs along an axis of a tile."""
STEP: Final = 2
"""Outputs along an axis of a tile, and inputs from one tile to the next."""


def outputs_along(size: int, low: int, high: int) -> int:
    """Outputs along an axis of ``size`` inputs, padded by ``low`` and ``high``."""
    return max(0, size + low + high - TAPS + 1)


def tiles_along(size: int, low: int, high: int) -> WindowDimension:
    """The tiles of such an axis; the last one may see padding that no output does."""
    outputs = outputs_along(size, low, high)
    return WindowDimension(size, TILE, STEP, low, high + -(-outputs // STEP) * STEP - outputs)


class Added(Protocol):
    """What is added and multiplied with a number."""

    def __add__(self, other: Any, /) -> Self: ...
    def __sub__(self, other: Any, /) -> Self: ...
    def __mul__(self, other: Any, /) -> Self: ...


T = TypeVar("T", bound=Added)


def inputs_of(d: Sequence[T]) -> list[T]:
    """The transform of four inputs."""
    return [d[0] - d[2], d[1] + d[2], d[2] - d[1], d[1] - d[3]]


def filters_of(g: Sequence[T]) -> list[T]:
    """The transform of three taps."""
    ends = g[0] + g[2]
    return [g[0], (ends + g[1]) * 0.5, (ends - g[1]) * 0.5, g[2]]


def outputs_of(m: Sequence[T]) -> list[T]:
    """The transform of four sums: two outputs."""
    return [m[0] + m[1] + m[2], m[1] - m[2] - m[3]]
