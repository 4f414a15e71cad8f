"""Host layouts: the same elements in arrays that lie differently in memory, bands around them.

A backend's ``upload`` must read elements, not bytes, and leave what it was lent as it is: every
array lies between bands, and what lies between its elements is a band too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from ptir_testsuite.oracles.floats import Array

BAND: Final = 64  # bytes before and after the elements, which are a multiple of it from the start
FILL: Final = 0xA5
"""The bytes of a band: of no number that a case holds."""


def _banded(nbytes: int, shift: int = 0) -> Array:
    """Memory between two bands, ``shift`` bytes after an address that is a multiple of a band."""
    whole = np.full(nbytes + 4 * BAND, FILL, np.uint8)
    start = BAND + -whole.ctypes.data % BAND + shift
    return whole[start : start + nbytes]


def memory_of(array: Array) -> Array:
    """All the bytes of the memory that an array of ``LAYOUTS`` lies in, its bands included."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def scribble(array: Array) -> None:
    """Make other bytes of everything that an array of ``LAYOUTS`` lies in, bands included."""
    memory = memory_of(array)
    np.invert(memory, out=memory)


def _dense(array: Array, shift: int = 0) -> Array:
    view = _banded(array.nbytes, shift).view(array.dtype).reshape(array.shape)
    view[...] = array
    return view


def _fortran(array: Array) -> Array:
    return _dense(array.T).T


def _strided(array: Array) -> Array:
    """Every second element of every axis of a larger array."""
    wide_shape = [2 * n for n in array.shape]
    size = int(np.prod(wide_shape, dtype=np.int64)) * array.itemsize
    wide = _banded(size).view(array.dtype).reshape(wide_shape)
    every_second: Any = (..., *(slice(None, None, 2),) * array.ndim)
    view: Array = wide[every_second]
    view[...] = array
    return view


def _negative(array: Array) -> Array:
    """All strides negative."""
    backwards: Any = (..., *(slice(None, None, -1),) * array.ndim)
    view: Array = _dense(array[backwards])[backwards]
    return view


def _misaligned(array: Array) -> Array:
    """The elements start one byte after an aligned address."""
    return _dense(array, shift=1)


def _read_only(array: Array) -> Array:
    view = _dense(array)
    view.flags.writeable = False
    return view


LAYOUTS: Final[dict[str, Callable[[Array], Array]]] = {
    "dense": _dense,
    "column-major": _fortran,
    "strided": _strided,
    "negative strides": _negative,
    "misaligned": _misaligned,
    "read-only": _read_only,
}
