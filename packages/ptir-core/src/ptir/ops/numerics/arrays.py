"""What contractions, reductions, movements and indexing mean, on NumPy arrays.

Arrays are positional, attributes are keyword-only and already checked by the type rules. Elements
keep their dtype; f16 and bf16 accumulate in f32 and round once at the end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ptir.types import BF16, F16, DType

Array = NDArray[Any]
Axes = Sequence[int]

_NARROW: Final = (F16.numpy, BF16.numpy)
_quiet = np.errstate(over="ignore", under="ignore", invalid="ignore")


def accumulating(x: Array) -> Array:
    """``x`` in the dtype it accumulates in."""
    return x.astype(np.float32) if x.dtype in _NARROW else x


# contraction


@_quiet
def dot_general(
    lhs: Array,
    rhs: Array,
    *,
    lhs_contract: Axes,
    rhs_contract: Axes,
    lhs_batch: Axes = (),
    rhs_batch: Axes = (),
    dtype: DType | None = None,
) -> Array:
    """Products summed over the contracted axes: batch axes, then lhs free, then rhs free axes."""
    out = lhs.dtype if dtype is None else dtype.numpy
    wide = np.dtype(np.float32) if out in _NARROW else out
    left_free = free_axes(lhs, lhs_batch, lhs_contract)
    right_free = free_axes(rhs, rhs_batch, rhs_contract)
    left = matrices(lhs, lhs_batch, left_free, lhs_contract).astype(wide, copy=False)
    right = matrices(rhs, rhs_batch, rhs_contract, right_free).astype(wide, copy=False)
    sizes = [lhs.shape[a] for a in (*lhs_batch, *left_free)] + [rhs.shape[a] for a in right_free]
    product: Array = np.matmul(blas_ready(left), blas_ready(right))
    return product.reshape(sizes).astype(out, copy=False)


def free_axes(x: Array, batch: Axes, contract: Axes) -> tuple[int, ...]:
    """The axes of ``x`` that are neither batch nor contracted, in order."""
    return tuple(a for a in range(x.ndim) if a not in batch and a not in contract)


def matrices(x: Array, batch: Axes, rows: Axes, columns: Axes) -> Array:
    """``x`` as a stack of matrices; a view wherever its strides allow one."""
    sizes = [x.shape[a] for a in batch]
    height = math.prod(x.shape[a] for a in rows)
    width = math.prod(x.shape[a] for a in columns)
    return x.transpose(*batch, *rows, *columns).reshape(*sizes, height, width)


def blas_ready(x: Array) -> Array:
    """``x`` itself if its matrices have strides BLAS takes (or are integers), else a copy."""
    strides = x.strides[-2:]
    if x.dtype.kind != "f" or (x.itemsize in strides and min(strides) > 0):
        return x
    return np.ascontiguousarray(x)


# reduction


@_quiet
def reduce(x: Array, *, axes: Axes, kind: str) -> Array:
    """Fold the axes away, starting from the kind's identity; integers wrap."""
    wide, axis = accumulating(x), tuple(axes)
    ufunc = _FOLDS[kind]
    result = ufunc.reduce(wide, axis=axis, dtype=wide.dtype, initial=identity(kind, wide.dtype))
    if kind in ("max", "min"):
        result = _order_zeros(kind, wide, result, lambda hit: np.logical_or.reduce(hit, axis=axis))
    return np.asarray(result, dtype=x.dtype)


_FOLDS: Final[dict[str, np.ufunc]] = {
    "sum": np.add,
    "prod": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "any": np.logical_or,
    "all": np.logical_and,
}


def identity(kind: str, dtype: np.dtype[Any]) -> Any:
    """What a fold of nothing gives: 0, 1, the lowest or highest value, False or True."""
    if kind in ("max", "min"):
        bounds = np.iinfo(dtype) if dtype.kind in "iu" else None
        low, high = (bounds.min, bounds.max) if bounds else (-np.inf, np.inf)
        return low if kind == "max" else high
    return {"sum": 0, "prod": 1, "any": False, "all": True}[kind]


def _order_zeros(kind: str, x: Array, extreme: Array, collect: Callable[[Array], Array]) -> Array:
    """``extreme`` with -0 < +0 respected, which NumPy leaves open; ``collect`` is an any over x."""
    zero = extreme == 0
    if x.dtype.kind != "f" or not np.any(zero):
        return extreme
    winner = 0.0 if kind == "max" else -0.0
    seen = collect((x == 0) & (np.signbit(x) == np.signbit(winner)))
    signed = np.where(seen, winner, -winner).astype(x.dtype)
    return np.where(zero, signed, extreme)


@_quiet
def cumulative(x: Array, *, axis: int, kind: str) -> Array:
    """Running sum or maximum along one axis, each element included; integers wrap."""
    wide = accumulating(x)
    result = _FOLDS[kind].accumulate(wide, axis=axis, dtype=wide.dtype)
    if kind == "max":
        result = _order_zeros(
            kind, wide, result, lambda hit: np.logical_or.accumulate(hit, axis=axis)
        )
    return np.asarray(result, dtype=x.dtype)


def arg_max(x: Array, *, axis: int) -> Array:
    """i32 index of the first NaN, else of the first greatest element (-0 equals +0)."""
    return np.asarray(np.argmax(accumulating(x), axis=axis), dtype=np.int32)


def arg_min(x: Array, *, axis: int) -> Array:
    """i32 index of the first NaN, else of the first least element (-0 equals +0)."""
    return np.asarray(np.argmin(accumulating(x), axis=axis), dtype=np.int32)


def sort(x: Array, *, axis: int, descending: bool = False) -> tuple[Array, Array]:
    """Elements in order and their i32 indices: stable, NaN last both ways, -0 equals +0."""
    keys = accumulating(x)
    if descending:
        keys = -keys if keys.dtype.kind == "f" else ~keys
    order = np.argsort(keys, axis=axis, kind="stable")
    return np.take_along_axis(x, order, axis=axis), order.astype(np.int32)


def top_k(x: Array, *, k: int) -> tuple[Array, Array]:
    """The k greatest of the last axis, greatest first, and their i32 indices; see ``sort``."""
    values, indices = sort(x, axis=x.ndim - 1, descending=True)
    return values[..., :k].copy(), indices[..., :k].copy()


# movement: the first five may return views


def reshape(x: Array, *, shape: Sequence[int]) -> Array:
    """The elements in row-major order, in another shape."""
    return np.reshape(x, tuple(shape))


def transpose(x: Array, *, permutation: Axes) -> Array:
    """Result axis ``i`` is operand axis ``permutation[i]``."""
    return np.transpose(x, tuple(permutation))


def broadcast_to(x: Array, *, shape: Sequence[int]) -> Array:
    """Trailing axes aligned, size 1 stretched, new axes on the left; read-only."""
    return np.broadcast_to(x, tuple(shape))


def strided_slice(
    x: Array, *, starts: Sequence[int], limits: Sequence[int], strides: Sequence[int] | None = None
) -> Array:
    """Elements ``start, start + stride, ...`` below ``limit`` of each axis."""
    steps = strides if strides is not None else (1,) * x.ndim
    index: Any = (..., *map(slice, starts, limits, steps))
    window: Array = x[index]
    return window


def reverse(x: Array, *, axes: Axes) -> Array:
    """The axes read backwards."""
    return np.flip(x, tuple(axes)) if axes else x[...]


def concat(*operands: Array, axis: int) -> Array:
    """The operands one after another along an axis."""
    return np.concatenate(operands, axis=axis)


def tile(x: Array, *, repeats: Sequence[int]) -> Array:
    """The whole array repeated along each axis."""
    return np.tile(x, tuple(repeats))


def pad(
    x: Array,
    value: Array,
    *,
    low: Sequence[int],
    high: Sequence[int],
    interior: Sequence[int] | None = None,
) -> Array:
    """``value`` around and between the elements; a negative low or high crops afterwards."""
    steps = [1 + gap for gap in interior] if interior is not None else [1] * x.ndim
    spread = [(n - 1) * step + 1 if n else 0 for n, step in zip(x.shape, steps, strict=True)]
    sizes = [before + n + after for before, n, after in zip(low, spread, high, strict=True)]
    result = np.full(sizes, value, dtype=x.dtype)
    kept = [
        _kept(n, at, step, size)
        for n, at, step, size in zip(x.shape, low, steps, sizes, strict=True)
    ]
    if all(kept):
        into = tuple(
            slice(at + k.start * step, at + (k.stop - 1) * step + 1, step)
            for k, at, step in zip(kept, low, steps, strict=True)
        )
        result[into] = x[tuple(slice(k.start, k.stop) for k in kept)]
    return result


def _kept(n: int, at: int, step: int, size: int) -> range:
    """The elements of an axis whose place ``at + i * step`` falls inside the result."""
    return range(max(0, -(at // step)), min(n, -((at - size) // step)))


# indexing


def take(x: Array, indices: Array, *, axis: int) -> Array:
    """Slices of an axis by index, clamped into range."""
    return np.asarray(np.take(x, clamped(indices, x.shape[axis] - 1), axis=axis))


def dynamic_slice(x: Array, starts: Array, *, sizes: Sequence[int]) -> Array:
    """The window of ``sizes`` at ``starts``, moved so that it fits."""
    window: Array = x[_window(x, starts, sizes)]
    return window.copy()


def dynamic_update_slice(x: Array, update: Array, starts: Array) -> Array:
    """``x`` with ``update`` written at ``starts``, moved so that it fits."""
    result = x.copy()
    result[_window(x, starts, update.shape)] = update
    return result


def _window(x: Array, starts: Array, sizes: Sequence[int]) -> Any:
    last = np.array(x.shape, np.int64) - np.array(sizes, np.int64)
    begins = clamped(starts, last).tolist()
    return (..., *(slice(at, at + size) for at, size in zip(begins, sizes, strict=True)))


def clamped(indices: Array, last: Any) -> Array:
    """``indices`` moved into ``0..last``."""
    inside: Array = np.asarray(np.minimum(np.maximum(indices.astype(np.int64), 0), last))
    return inside
