"""``conv2d=int8`` by its definition: bytes as the formulas say, their sums in 64 bits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
LEAST = np.float32(2.0**-100)
UNIT = 2.0**-24


@dataclass(frozen=True)
class Shape:
    """Images [N,H,W,C], filters [O,C,KH,KW], and how one goes over the other."""

    image: tuple[int, int, int, int]
    filters: tuple[int, int, int]
    strides: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)

    def __str__(self) -> str:
        return f"{self.image} {self.filters} {self.strides} {self.padding} {self.dilation}"

    @property
    def how(self) -> dict[str, Any]:
        """What ``conv2d`` is told."""
        return {
            "strides": self.strides,
            "padding": self.padding,
            "dilation": self.dilation,
            "layout": "oihw",
        }

    def arrays(self, seed: int = 0) -> tuple[Array, Array, Array]:
        """Images of different ranges, some without negative elements; filters; biases.

        Of the first one the byte for 0 and its greatest element both round up, to 256.
        """
        rng = np.random.default_rng(seed)
        x = rng.standard_normal(self.image, np.float32)
        x[0].reshape(-1)[:2] = (8, -8)[: x[0].size]
        x[1::2] = np.maximum(x[1::2], 0) * 7
        outputs, height, width = self.filters
        w = rng.standard_normal((outputs, self.image[3], height, width), np.float32)
        return x, w, rng.standard_normal(outputs, np.float32)


def rounded_filters(w: Array) -> tuple[Array, Array]:
    """Whole numbers of filters [O,...], and the scale of each output."""
    most = np.abs(w).reshape(len(w), -1).max(1)
    factor = np.divide(np.float32(127), most, out=np.zeros_like(most), where=most > LEAST)
    by_output = factor.reshape(-1, *(1,) * (w.ndim - 1))
    return np.rint(w * by_output).astype(np.int64), most * np.float32(1 / 127)


def rounded_images(x: Array) -> tuple[Array, Array]:
    """Whole numbers of images [N,...], counted from the one that stands for 0, and the scales."""
    flat = x.reshape(len(x), -1)
    least = np.minimum(flat.min(1), np.float32(0))
    span = np.maximum(flat.max(1), np.float32(0)) - least
    factor = np.divide(np.float32(255), span, out=np.zeros_like(span), where=span > LEAST)
    zero = np.rint(-least * factor)
    each = (-1, *(1,) * (x.ndim - 1))
    values = np.minimum(np.rint(x * factor.reshape(each)) + zero.reshape(each), 255)
    return (values - zero.reshape(each)).astype(np.int64), span * np.float32(1 / 255)


def windows_of(x: Array, shape: Shape) -> Array:
    """What each filter sees: [N,OH,OW,C,KH,KW]."""
    (high, wide), (down, along) = shape.padding, shape.dilation
    padded = np.pad(x, ((0, 0), (high, high), (wide, wide), (0, 0)))
    size = [(taps - 1) * by + 1 for taps, by in zip(shape.filters[1:], shape.dilation, strict=True)]
    found = np.lib.stride_tricks.sliding_window_view(padded, size, axis=(1, 2))
    return found[:, :: shape.strides[0], :: shape.strides[1], :, ::down, ::along]


def convolved(x: Array, w: Array, shape: Shape) -> Array:
    """The convolution of rounded images and filters, f64: no step but these rounds."""
    values, image_scales = rounded_images(x)
    filters, filter_scales = rounded_filters(w)
    sums = np.einsum("nhwcij,ocij->nhwo", windows_of(values, shape), filters)
    return sums * image_scales.astype("f8").reshape(-1, 1, 1, 1) * filter_scales.astype("f8")


def exact(x: Array, w: Array, shape: Shape) -> Array:
    """The convolution without any rounding, f64."""
    return np.einsum("nhwcij,ocij->nhwo", windows_of(x.astype("f8"), shape), w.astype("f8"))


def bound_of_rounding(x: Array, w: Array, shape: Shape) -> Array:
    """The most that rounding may lose: half a step of every factor times what it is multiplied by.

    The byte that stands for 0 is rounded, too, so an image's element is off by up to a step where
    it is the greatest or the least.
    """
    _, image_scales = rounded_images(x)
    _, filter_scales = rounded_filters(w)
    steps = image_scales.astype("f8").reshape(-1, 1, 1, 1)
    seen = windows_of(np.abs(x.astype("f8")), shape).sum((3, 4, 5))[..., None]
    weights = np.abs(w.astype("f8")).reshape(len(w), -1).sum(1)
    taps = w[0].size
    half = filter_scales.astype("f8") / 2
    return 1.001 * (steps * weights + seen * half + taps * steps * half)
