"""Host layouts: the same elements in arrays that lie differently in memory.

A backend's ``upload`` must read elements, not bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from ptir_testsuite.floats import Array


def _dense(array: Array) -> Array:
    return np.array(array, order="C")


def _fortran(array: Array) -> Array:
    return np.array(array, order="F")


def _strided(array: Array) -> Array:
    """Every second element of every axis of a larger array."""
    wide = np.zeros([2 * n for n in array.shape], array.dtype)
    every_second: Any = (..., *(slice(None, None, 2),) * array.ndim)
    view: Array = wide[every_second]
    view[...] = array
    return view


def _negative(array: Array) -> Array:
    """All strides negative."""
    return np.flip(np.array(np.flip(array), order="C"))


def _misaligned(array: Array) -> Array:
    """The elements start one byte after an aligned address."""
    raw = np.zeros(array.nbytes + 1, np.uint8)
    view: Any = raw[1:].view(array.dtype).reshape(array.shape)
    view[...] = array
    return np.asarray(view)


def _read_only(array: Array) -> Array:
    copy = np.array(array, order="C")
    copy.flags.writeable = False
    return copy


LAYOUTS: Final[dict[str, Callable[[Array], Array]]] = {
    "dense": _dense,
    "column-major": _fortran,
    "strided": _strided,
    "negative strides": _negative,
    "misaligned": _misaligned,
    "read-only": _read_only,
}
