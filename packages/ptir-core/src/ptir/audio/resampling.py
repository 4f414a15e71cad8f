"""Sound at another rate: a windowed sinc, of which each output takes the taps of its phase.

After Smith, "Digital Audio Resampling" (1984). What the lower of both rates cannot hold is filtered
out: its upper 5% are where the filter falls.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

Array = np.ndarray[Any, Any]

ZEROS: Final = 32
"""Zero crossings of the sinc on each side: what is above the lower rate's band is 80 dB down."""
BETA: Final = 8.6
"""Of the Kaiser window."""
PHASES: Final = 256
"""Phases whose filters are computed at once."""
CUTOFF: Final = 0.95
"""Of half the lower rate, where the filter has fallen by half."""


def resampled(samples: Array, rate: int, wanted: int) -> Array:
    """Samples f32[N] at ``rate`` frames a second, at ``wanted``: f32[ceil(N * wanted / rate)].

    The first sample stays at time 0; beyond both ends there is silence.
    """
    if rate == wanted or not len(samples):
        return samples
    shared = math.gcd(rate, wanted)
    up, down = wanted // shared, rate // shared
    scale = CUTOFF * min(1.0, wanted / rate)
    reach = math.ceil(ZEROS / scale)
    count = -(-len(samples) * up // down)
    padded = np.concatenate(
        [np.zeros(reach, np.float32), samples, np.zeros(2 * reach + down, np.float32)]
    )
    found = np.empty(count, np.float32)
    windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * reach + 1)
    phases = min(up, count)
    for begin in range(0, phases, PHASES):
        some = np.arange(begin, min(begin + PHASES, phases))
        filters = _taps(some * down % up / up, reach, scale)
        for first, taps in zip(some.tolist(), filters, strict=True):
            # outputs first, first + up, ... have the same phase
            start = first * down // up
            rows = windows[start : start + ((count - 1 - first) // up) * down + 1 : down]
            found[first::up] = rows @ taps
    return found


def _taps(phases: Array, reach: int, scale: float) -> Array:
    """Filters for outputs such ``phases`` of a step behind the middle of a window, f32[P,taps]."""
    time = (np.arange(-reach, reach + 1) - phases[:, None]) * scale
    window = np.i0(BETA * np.sqrt(np.maximum(0.0, 1 - (time / ZEROS) ** 2))) / np.i0(BETA)
    taps = scale * np.sinc(time) * window
    sums = taps.sum(axis=1, keepdims=True)
    level: Array = (taps / sums).astype(np.float32)  # constant signals stay as they are
    return level
