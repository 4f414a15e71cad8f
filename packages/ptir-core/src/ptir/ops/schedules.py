"""The names of composites that stand for a way to run a functional, by which kernels are chosen.

An implementation lowers to one of them, and a device whose kernels can run in that way takes it
whole; everywhere else its own lowering is the same computation in ops.
"""

from __future__ import annotations

from typing import Final

ATTENTION_SPLIT: Final = "attention_split"
"""Attention whose keys are split into parts that are attended to side by side."""

CONV2D_WINOGRAD: Final = "conv2d_winograd"
"""Convolution by Winograd's minimal filtering, F(2x2, 3x3)."""
