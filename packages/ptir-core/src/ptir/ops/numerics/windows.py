"""What windows mean on NumPy arrays: a view of every window of the padded operand, then a fold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptir.ops.numerics.arrays import identity, pad, reduce

Array = NDArray[Any]
Sizes = Sequence[int] | None


def reduce_window(
    x: Array,
    *,
    window: Sequence[int],
    kind: str,
    strides: Sizes = None,
    low: Sizes = None,
    high: Sizes = None,
    base_dilation: Sizes = None,
    window_dilation: Sizes = None,
) -> Array:
    """Each window folded, see ``reduce``; what surrounds the operand is the kind's identity."""
    outside = np.asarray(identity(kind, x.dtype), x.dtype)
    seen = windows(x, outside, window, strides, low, high, base_dilation, window_dilation)
    return reduce(seen, axes=range(x.ndim, 2 * x.ndim), kind=kind)


def extract_patches(
    x: Array,
    *,
    window: Sequence[int],
    strides: Sizes = None,
    low: Sizes = None,
    high: Sizes = None,
    base_dilation: Sizes = None,
    window_dilation: Sizes = None,
) -> Array:
    """Windows over the axes between the first and the last: ``[N, *places, *window, C]``."""
    axes = len(window)
    given = (strides, low, high, base_dilation, window_dilation)
    missing = (1, 0, 0, 1, 1)
    wide = [
        None if values is None else (neutral, *values, neutral)
        for values, neutral in zip(given, missing, strict=True)
    ]
    seen = windows(x, np.zeros((), x.dtype), (1, *window, 1), *wide)
    taps = np.squeeze(seen, axis=(axes + 2, 2 * axes + 3))
    return np.ascontiguousarray(np.moveaxis(taps, axes + 1, -1))


def windows(
    x: Array,
    outside: Array,
    window: Sequence[int],
    strides: Sizes,
    low: Sizes,
    high: Sizes,
    base_dilation: Sizes,
    window_dilation: Sizes,
) -> Array:
    """Every window as ``[*places, *window]``, a read-only view of the spread and padded operand."""
    ones, zeros = (1,) * x.ndim, (0,) * x.ndim
    gaps = None if base_dilation is None else [step - 1 for step in base_dilation]
    padded = pad(x, outside, low=low or zeros, high=high or zeros, interior=gaps)
    steps = window_dilation or ones
    spans = [(taps - 1) * step + 1 for taps, step in zip(window, steps, strict=True)]
    if any(span > size for span, size in zip(spans, padded.shape, strict=True)):
        return _nothing(padded, window, spans, strides or ones)
    bits = padded.view(f"u{padded.itemsize}")  # NumPy cannot make strided views of f8
    views = np.lib.stride_tricks.sliding_window_view(bits, spans)
    index: Any = (..., *(slice(None, None, step) for step in (*(strides or ones), *steps)))
    return np.asarray(views[index]).view(padded.dtype)


def _nothing(
    padded: Array, window: Sequence[int], spans: Sequence[int], strides: Sequence[int]
) -> Array:
    rows = zip(padded.shape, spans, strides, strict=True)
    places = [max(0, (size - span) // stride + 1) for size, span, stride in rows]
    return np.empty((*places, *window), padded.dtype)
