"""Formulas of image functionals: windows over H and W of [N,H,W,C], one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ptir_testsuite.oracles.composites import Found, formula
from ptir_testsuite.oracles.floats import Array

Two = tuple[int, int]


class _Windows:
    """Where windows over an image lie, and what each tap reads."""

    def __init__(
        self, x: Array, window: Two, strides: Two, low: Two, high: Two, dilation: Two = (1, 1)
    ) -> None:
        self.sizes, self.window = x.shape[1:3], window
        self.strides, self.low, self.dilation = strides, low, dilation
        axes = zip(self.sizes, low, high, window, dilation, strides, strict=True)
        self.places = [max(0, (n + a + b - (w - 1) * d - 1) // s + 1) for n, a, b, w, d, s in axes]

    def taps(self, place: Two) -> Iterator[tuple[Two, Two]]:
        """The taps of a window that lie on the image: their numbers, and where."""
        for tap in np.ndindex(*self.window):
            rows = zip(place, self.strides, tap, self.dilation, self.low, strict=True)
            at = tuple(p * s + t * d - a for p, s, t, d, a in rows)
            if all(0 <= i < n for i, n in zip(at, self.sizes, strict=True)):
                yield (tap[0], tap[1]), (at[0], at[1])


@formula("conv2d")
def _conv2d(
    x: Array,
    weight: Array,
    bias: Any = 0.0,
    *,
    strides: Two,
    low: Two,
    high: Two,
    dilation: Two,
    groups: int,
    layout: str,
) -> Found:
    bank = weight if layout == "hwio" else weight.transpose(2, 3, 1, 0)
    height, width, inputs, outputs = bank.shape
    windows = _Windows(x, (height, width), strides, low, high, dilation)
    result = np.zeros((len(x), *windows.places, outputs))
    size = result.copy()
    for place in np.ndindex(*windows.places):
        at = (slice(None), *place)
        for tap, source in windows.taps((place[0], place[1])):
            seen = x[(slice(None), *source)]
            for output in range(outputs):
                first = output // (outputs // groups) * inputs
                terms = seen[:, first : first + inputs] * bank[(*tap, slice(None), output)]
                result[(*at, output)] += terms.sum(-1)
                size[(*at, output)] += np.abs(terms).sum(-1)
    return Found(result + bias, size + np.abs(bias), height * width * inputs)


@formula("convolution_of_bytes")
def _convolution_of_bytes(
    values: Array, weight: Array, *, window: Two, strides: Two, dilation: Two
) -> Found:
    windows = _Windows(values, window, strides, (0, 0), (0, 0), dilation)
    seen, channels = values.astype(np.int64), values.shape[3]
    bank = weight.astype(np.int64).reshape(len(weight), *window, channels)
    result = np.zeros((len(values), *windows.places, len(weight)))
    for place in np.ndindex(*windows.places):
        for tap, source in windows.taps((place[0], place[1])):
            part = seen[(slice(None), *source)] @ bank[(slice(None), *tap)].T
            result[(slice(None), *place)] += part
    return Found(result, np.zeros_like(result))


@formula("max_pool2d")
def _max_pool2d(
    x: Array, *, window: Two, strides: Two, low: Two, high: Two, dilation: Two
) -> Found:
    windows = _Windows(x, window, strides, low, high, dilation)
    result = np.full((len(x), *windows.places, x.shape[-1]), -np.inf)
    for place in np.ndindex(*windows.places):
        at = (slice(None), *place)
        for _, source in windows.taps((place[0], place[1])):
            result[at] = np.maximum(result[at], x[(slice(None), *source)])
    return Found(result, np.zeros(result.shape))


@formula("avg_pool2d")
def _avg_pool2d(
    x: Array, *, window: Two, strides: Two, low: Two, high: Two, count_include_pad: bool
) -> Found:
    windows = _Windows(x, window, strides, low, high)
    result = np.zeros((len(x), *windows.places, x.shape[-1]))
    size = result.copy()
    for place in np.ndindex(*windows.places):
        at = (slice(None), *place)
        taps = list(windows.taps((place[0], place[1])))
        count = window[0] * window[1] if count_include_pad else len(taps)
        for _, source in taps:
            result[at] += x[(slice(None), *source)] / count
            size[at] += np.abs(x[(slice(None), *source)]) / count
    return Found(result, size, window[0] * window[1])
