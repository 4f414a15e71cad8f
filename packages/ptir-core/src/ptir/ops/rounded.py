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
IMAGES: Final = "round_images_to_bytes"
"""x f32[N,H,W,C], the least element f32[N] and the span f32[N] of each image to values
u8[N,H',W',C'], zero points i32[N] and scales f32[N]."""
WINDOWS: Final = "convolution_of_bytes"
"""x u8[N,H,W,C] and a weight i8[O,KH*KW*C], nothing padded: exact sums i32[N,OH,OW,O]."""

MOST: Final = 127.0
"""The size of the greatest value of a group."""
MOST_UNSIGNED: Final = 255.0
"""The greatest byte of an image."""
PER_WORD: Final = 4
"""Bytes that a dot instruction takes at once: a multiple of as many channels has an image."""
MOST_INPUTS: Final = (2**31 - 1) // (255 * 127)
"""Most products of bytes whose sum fits 32 bits."""
LEAST: Final = 2.0**-100
"""Groups with nothing above it become zeros: one over them may not be a number."""
