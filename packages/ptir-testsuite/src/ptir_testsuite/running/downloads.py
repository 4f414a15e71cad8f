"""What came down from a device: whose memory it is, and whether its elements are those wanted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ptir.types import dtype_of
from ptir_testsuite.oracles.floats import Array
from ptir_testsuite.running.compare import bits, show, type_name


def odd_form(found: Any, wanted: Array) -> str:
    """What a download is instead of an array of the type of ``wanted``; nothing where it is one."""
    if not isinstance(found, np.ndarray):
        return f"download gives a value of class {type_name(found)}, no NumPy array"
    if (found.dtype, found.shape) != (wanted.dtype, wanted.shape):
        forms = (f"{array.dtype}{list(array.shape)}" for array in (found, wanted))
        return "download gives {}, not {}".format(*forms)
    return ""


def difference(found: Array, wanted: Array) -> str:
    """The first element whose bits are not those of ``wanted``, of the same type; or nothing."""
    wrong = (_bytes(found) != _bytes(wanted)).any(axis=-1)
    if not wrong.any():
        return ""
    index = tuple(int(i) for i in np.unravel_index(int(wrong.argmax()), wanted.shape))
    dtype = dtype_of(wanted)
    told = (f"{show(a[index], dtype)} ({bits(a[index], dtype)})" for a in (found, wanted))
    return "element {} is {}, not {}".format(list(index), *told)


def taken_twice(download: Callable[[], Any], dtype: Any) -> tuple[Any, str]:
    """What the second of two downloads of one handle gives, and what is wrong with the two.

    Between them the first array is overwritten, which nobody but its owner may see. What has not
    this NumPy dtype is given as it is: it is wrong whoever owns it.
    """
    first = download()
    if not isinstance(first, np.ndarray) or first.dtype != dtype:
        return first, ""
    wanted = first.copy()
    if first.flags.writeable:
        first[...] = _inverted(first)
    second = download()
    odd = odd_form(second, wanted)
    told = odd or difference(second, wanted)
    if not odd and (np.shares_memory(first, second) or (told and not difference(second, first))):
        return second, "download shares the handle's memory; it must give a copy"
    return second, f"a second download of the handle gives something else: {told}" if told else ""


def _bytes(array: Array) -> Array:
    """The bytes of the elements, a row for each."""
    flat = np.ascontiguousarray(array).reshape(-1)
    return flat.view(np.uint8).reshape(flat.size, array.itemsize)


def _inverted(array: Array) -> Array:
    """Other elements everywhere."""
    if array.dtype.kind == "b":
        return np.asarray(~array)
    return np.invert(_bytes(array)).view(array.dtype).reshape(array.shape)
