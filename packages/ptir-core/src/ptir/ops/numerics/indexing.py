"""What gather, the scatters and the rows of a scan mean, on NumPy arrays; and the index check.

Places are the last axis of ``indices``: one number per indexed axis of the operand. They become
row numbers of the operand seen as a table whose rows are the axes that are not indexed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from ptir.errors import DeviceError
from ptir.ops.numerics.arrays import Array, Axes, accumulating, clamped, identity
from ptir.types import TensorType

_quiet = np.errstate(over="ignore", under="ignore", invalid="ignore")


def gather(x: Array, indices: Array, *, axes: Axes, batch: int = 0) -> Array:
    """The parts of ``x`` at the places in ``indices``, clamped into range."""
    last = np.array([x.shape[a] - 1 for a in axes], np.int64)
    table, _ = _table(x, axes, batch)
    return np.asarray(table[_rows(x, clamped(indices, last), axes, batch)])


@_quiet
def scatter_reduce(
    x: Array, indices: Array, updates: Array, *, axes: Axes, batch: int = 0, kind: str
) -> Array:
    """``x`` with each update folded into the part at its place, in order; others are dropped."""
    table, order = _table(x, axes, batch)
    ends = np.array([x.shape[a] for a in axes], np.int64)
    wide = indices.astype(np.int64)
    kept = np.asarray(((wide >= 0) & (wide < ends)).all(axis=-1))
    rows = _rows(x, np.where(kept[..., None], wide, 0), axes, batch)[kept]
    result = np.array(table, order="C", copy=True)
    if kind == "replace":
        result[rows] = updates[kept]
    else:
        touched = np.unique(rows)
        result[touched] = _folded(table, rows, updates[kept], kind)[touched].astype(x.dtype)
    shape = [x.shape[a] for a in order]
    return np.ascontiguousarray(result.reshape(shape).transpose(np.argsort(order)))


@_quiet
def segment_reduce(x: Array, segment_ids: Array, *, segments: int, kind: str) -> Array:
    """Rows of ``x`` folded by segment, in order; a row of no segment is dropped."""
    empty = np.full((segments, *x.shape[1:]), identity(kind, x.dtype), x.dtype)
    places, fold = segment_ids[:, None], SCATTERS[kind]
    return scatter_reduce(empty, places, x, axes=(0,), batch=0, kind=fold)


SCATTERS: Final = {"sum": "add", "prod": "mul", "max": "max", "min": "min"}
"""The scatter that folds a segment, by the kind of the reduction."""

_FOLDS: Final[dict[str, np.ufunc]] = {
    "add": np.add,
    "mul": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
}


def _table(x: Array, axes: Axes, batch: int) -> tuple[Array, list[int]]:
    """``x`` as a table, one row per place, and the order of its axes for that."""
    order = [*range(batch), *axes]
    order += [a for a in range(x.ndim) if a not in order]
    places = math.prod(x.shape[a] for a in order[: batch + len(axes)])
    kept = [x.shape[a] for a in order[batch + len(axes) :]]
    return x.transpose(order).reshape(places, *kept), order


def _rows(x: Array, indices: Array, axes: Axes, batch: int) -> Array:
    """The table's row for each place; places are in range."""
    rows = np.arange(math.prod(x.shape[:batch]), dtype=np.int64).reshape(x.shape[:batch])
    rows = rows.reshape((*x.shape[:batch], *(1,) * (indices.ndim - 1 - batch)))
    for number, axis in enumerate(axes):
        rows = rows * x.shape[axis] + indices[..., number]
    return np.broadcast_to(rows, indices.shape[:-1])


def _folded(table: Array, rows: Array, updates: Array, kind: str) -> Array:
    """``table`` with updates folded in, in order, in the dtype that it accumulates in."""
    before, values = accumulating(table), accumulating(updates)
    result = np.array(before, order="C", copy=True)
    _FOLDS[kind].at(result, rows, values)
    if kind in ("max", "min") and result.dtype.kind == "f":
        winner = 0.0 if kind == "max" else -0.0
        wins = _is_zero(before, winner)
        np.logical_or.at(wins, rows, _is_zero(values, winner))
        zeros = np.where(wins, winner, -winner).astype(result.dtype)
        result = np.where(result == 0, zeros, result)
    return result


def _is_zero(x: Array, zero: float) -> Array:
    return np.asarray((x == 0) & (np.signbit(x) == np.signbit(zero)))


# scan


def row(x: Array, number: int) -> Array:
    """Row ``number`` of the first axis."""
    return np.asarray(x[number, ...])


def stack(rows: Sequence[Array]) -> Array:
    """Rows along a new first axis."""
    return np.stack(rows)


def no_rows(type: TensorType) -> Array:
    """No rows of ``type`` along a new first axis."""
    return np.empty((0, *type.shape), type.dtype.numpy)


# the check


def check_indices(op: str, indices: Array, greatest: Sequence[int]) -> None:
    """Raise ``DeviceError`` for the first index outside ``0..greatest``.

    ``greatest`` holds one number, or one for each entry of the last axis of ``indices``.
    """
    wide = indices.astype(np.int64)
    last = np.array(greatest if len(greatest) != 1 else greatest[0], np.int64)
    outside = np.argwhere((wide < 0) | (wide > last))
    if len(outside):
        at: tuple[Any, ...] = tuple(outside[0].tolist())
        end = np.broadcast_to(last, wide.shape)[at]
        raise DeviceError(
            f"{op}: index {wide[at]} at {list(at)} is outside 0..{end};"
            " correct the indices, or unset PTIR_CHECK_INDICES to have the op's own rule"
        )
