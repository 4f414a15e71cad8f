"""The names of what products of rounded activations are made of, and how bytes are rounded.

``ptir.functional.rounded`` says what they compute; backends that have dot instructions take them
whole.
"""

from __future__ import annotations

from typing import Final

ROUND: Final = "round_to_bytes"
"""x f32[...,K] to values i8[...,K], scales f32[...,G] and sums of values i32[...,G]."""
BYTES: Final = "product_of_bytes"
"""Such values, scales and sums with words, scales and biases of a weight: f32[...,N]."""
PAIRS: Final = "product_of_bf16"
"""x bf16[...,K] and a weight in bf16: f32[...,N]."""

MOST: Final = 127.0
"""The size of the greatest value of a group."""
LEAST: Final = 2.0**-100
"""Groups with nothing above it become zeros: one over them may not be a number."""
