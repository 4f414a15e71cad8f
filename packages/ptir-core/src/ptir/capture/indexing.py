"""``value[key]``: integers, slices, ``None``, ``...`` and one integer value or array, as ops."""

from __future__ import annotations

from typing import Any

from ptir.capture.lazy import apply
from ptir.capture.operands import reshaped
from ptir.errors import TypeRuleError
from ptir.ir.graph import Ref
from ptir.ops.record import literal


def index(value: Ref, key: Any) -> Ref:
    """The part of ``value`` that ``key`` selects, under NumPy's rules for basic indexing.

    Out-of-range integers raise ``IndexError``, in lists and arrays too, where negative ones count
    from the end; an integer value gathers along its axis with indices clamped into range.
    """
    keys = _expanded(value, key if isinstance(key, tuple) else (key,))
    axes = [i for i, k in enumerate(keys) if k is not None]
    for axis, at in enumerate(axes):
        if isinstance(keys[at], list) or _is_array(keys[at]):
            keys[at] = _places(keys[at], value.type.shape[axis], value)
    if sum(isinstance(k, Ref) for k in keys) > 1:
        raise TypeRuleError(f"index of {value.type}: at most one tensor index")
    starts, limits, strides = [], [], []
    shape: list[int | Ref] = []
    reversed_axes = []
    sizes = iter(enumerate(value.type.shape))
    for k in keys:
        if k is None:
            shape.append(1)
            continue
        axis, size = next(sizes)
        start, limit, stride, kept = _window(k, size, value)
        if stride < 0:
            reversed_axes.append(axis)
            start, limit, stride = _flipped(start, limit, stride, size)
        starts.append(start)
        limits.append(limit)
        strides.append(stride)
        if kept:
            shape.append(k if isinstance(k, Ref) else len(range(start, limit, stride)))
    result = apply("reverse", value, axes=tuple(reversed_axes)) if reversed_axes else value
    if (starts, limits, strides) != ([0] * len(starts), list(value.type.shape), [1] * len(starts)):
        result = apply("slice", result, starts=starts, limits=limits, strides=strides)
    return _taken(result, keys, shape)


def _expanded(value: Ref, keys: tuple[Any, ...]) -> list[Any]:
    used = sum(k is not None and k is not Ellipsis for k in keys)
    if used > value.type.rank:
        raise IndexError(f"{used} indices for {value.type}")
    fill = [slice(None)] * (value.type.rank - used)
    dots = [i for i, k in enumerate(keys) if k is Ellipsis]
    if len(dots) > 1:
        raise IndexError(f"index of {value.type}: more than one '...'")
    at = dots[0] if dots else len(keys)
    return [*keys[:at], *fill, *keys[at + 1 :]]


def _is_array(key: Any) -> bool:
    import numpy as np

    return isinstance(key, np.ndarray) and key.ndim > 0


def _places(key: Any, size: int, value: Ref) -> Ref:
    """A list or array of indices as a tensor, checked against the axis."""
    import numpy as np

    places = np.asarray(key, dtype=None if len(key) else np.int64)
    if places.dtype.kind not in "iu":
        raise TypeRuleError(f"index of {value.type}: {key!r} does not hold integers")
    for number in places.flat:
        if not -size <= number < size:
            message = f"index {number} is out of range for {value.type} (axis of size {size})"
            raise IndexError(message)
    wide = places.astype(np.int64) % max(size, 1)
    return apply("constant", value=literal(wide.astype(np.int32 if size < 2**31 else np.int64)))


def _window(key: Any, size: int, value: Ref) -> tuple[int, int, int, bool]:
    """Start, limit, stride of one axis, and whether the axis stays."""
    if isinstance(key, Ref):
        found = key.type.dtype
        if not found.is_integer:
            raise TypeRuleError(f"index of {value.type}: tensor index has dtype {found}")
        return 0, size, 1, True
    if isinstance(key, slice):
        start, limit, stride = key.indices(size)
        return start, (max(limit, start) if stride > 0 else limit), stride, True
    if isinstance(key, bool) or not hasattr(key, "__index__"):
        raise TypeRuleError(f"index of {value.type}: {key!r} is not an integer, slice or tensor")
    number = key.__index__()
    if not -size <= number < size:
        raise IndexError(f"index {number} is out of range for {value.type} (axis of size {size})")
    start = number % size
    return start, start + 1, 1, False


def _flipped(start: int, limit: int, stride: int, size: int) -> tuple[int, int, int]:
    """The window of the reversed axis that a negative stride selects."""
    count = len(range(start, limit, stride))
    first = size - 1 - start
    last = first + max(count - 1, 0) * -stride
    return (first, last + 1, -stride) if count else (0, 0, 1)


def _taken(result: Ref, keys: list[Any], shape: list[int | Ref]) -> Ref:
    """The rest: the axis of a value among the keys gathered, axes of one place dropped."""
    gathered = [k for k in keys if isinstance(k, Ref)]
    if gathered:
        axis = [k for k in keys if k is not None].index(gathered[0])
        result = apply("take", result, gathered[0], axis=axis)
    sizes: list[int] = []
    for size in shape:
        sizes.extend(size.type.shape if isinstance(size, Ref) else (size,))
    return reshaped(result, tuple(sizes))
