"""What convolution and pooling share: padded images, a view of every window, and blocks of work."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from ptir.ops import numerics as xp
from ptir_backend_ref.threads import run_all

Array = np.ndarray[Any, np.dtype[Any]]
Two = tuple[int, int]
Block = tuple[slice, slice]


def padded(x: Array, low: Two, high: Two, value: float) -> Array:
    """Images [N,H,W,C] with ``value`` around them; themselves where nothing is added."""
    if not any((*low, *high)):
        return x
    return xp.pad(x, np.asarray(value, x.dtype), low=(0, *low, 0), high=(0, *high, 0))


def windows(x: Array, places: Sequence[int], window: Two, strides: Two, dilation: Two) -> Array:
    """Every window of images [N,H,W,C] as a view [N,OH,OW,KH,KW,C]."""
    image, row, column, channel = x.strides
    steps = (row * strides[0], column * strides[1], row * dilation[0], column * dilation[1])
    return np.lib.stride_tricks.as_strided(
        x,
        (x.shape[0], *places, *window, x.shape[3]),
        (image, *steps, channel),
        writeable=False,
    )


def blocks(shape: Sequence[int], width: int, most: int) -> Iterator[Block]:
    """Slices of images and rows of ``shape`` with about ``most`` elements, ``width`` to a row.

    A block is some whole images, or some rows of one image.
    """
    images, rows = shape[:2]
    if rows * width <= most:
        step = max(1, most // max(1, rows * width))
        for first in range(0, images, step):
            yield slice(first, first + step), slice(0, rows)
        return
    step = max(1, most // width)
    for image in range(images):
        for first in range(0, rows, step):
            yield slice(image, image + 1), slice(first, first + step)


def over_blocks(piece: Callable[[Block], None], cut: list[Block], together: bool) -> None:
    """Call ``piece`` on every block, on several threads if ``together``."""
    if together and len(cut) > 1:
        run_all([partial(piece, block) for block in cut])
    else:
        for block in cut:
            piece(block)
