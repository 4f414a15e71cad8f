"""The geometry of Winograd's minimal filtering, F(2x2, 3x3): where its tiles lie along an axis."""

from __future__ import annotations

from typing import Final

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
