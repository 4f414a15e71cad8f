"""Reading and writing tensors at indices that other tensors hold."""

from __future__ import annotations

from collections.abc import Sequence

from ptir.capture import Tensor, call
from ptir.errors import TypeRuleError
from ptir.ops.record import type_error


def gather(tensor: Tensor, indices: Tensor, axes: Sequence[int], batch: int = 0) -> Tensor:
    """The parts of ``tensor`` at the places along the last axis of ``indices`` (clamped).

    A place has one index for each of ``axes``; the first ``batch`` axes of both run together. The
    result has them, then the other axes of ``indices``, then the axes that are not indexed.
    """
    wanted = _axes("gather", (tensor, indices), axes)
    return call("gather", tensor, indices, axes=wanted, batch=batch)


def take_along_axis(tensor: Tensor, indices: Tensor, axis: int = -1) -> Tensor:
    """``tensor`` with each element along ``axis`` chosen by ``indices`` (clamped), as NumPy does.

    All axes but ``axis`` have the same sizes in both. Raises ``TypeRuleError``.
    """
    (at,) = _axes("take_along_axis", (tensor, indices), (axis,))
    order = [a for a in range(tensor.ndim) if a != at]
    if indices.ndim != tensor.ndim or any(indices.shape[a] != tensor.shape[a] for a in order):
        message = f"all axes but {at} must have the same sizes"
        raise _error("take_along_axis", (tensor, indices), message)
    last = (*order, at)
    places = indices.transpose(*last)
    places = places.reshape(*places.shape, 1)
    found = gather(tensor.transpose(*last), places, axes=(-1,), batch=len(order))
    return found.transpose(*(last.index(a) for a in range(tensor.ndim)))


def scatter(
    tensor: Tensor,
    indices: Tensor,
    updates: Tensor,
    axes: Sequence[int],
    *,
    kind: str = "replace",
    batch: int = 0,
) -> Tensor:
    """``tensor`` with ``updates`` folded in at the places in ``indices``, addressed as in gather.

    ``kind`` is replace, add, mul, max or min. Updates of one place are folded in their order, so
    the last replace wins; places outside are dropped.
    """
    wanted = _axes("scatter", (tensor, indices, updates), axes)
    attributes = {"axes": wanted, "kind": kind, "batch": batch}
    return call("scatter_reduce", tensor, indices, updates, **attributes)


def segment_reduce(
    tensor: Tensor, segment_ids: Tensor, segments: int, *, kind: str = "sum"
) -> Tensor:
    """Rows of ``tensor`` folded into the segment that each row's id names.

    ``kind`` is sum, prod, max or min. Ids need no order; rows with an id outside are dropped, and
    a segment without rows holds the fold's identity.
    """
    return call("segment_reduce", tensor, segment_ids, segments=segments, kind=kind)


def _axes(name: str, tensors: Sequence[Tensor], axes: Sequence[int]) -> tuple[int, ...]:
    rank = tensors[0].ndim
    for axis in axes:
        if not -rank <= axis < rank:
            raise _error(name, tensors, f"axis {axis} is not in {-rank} <= axis < {rank}")
    return tuple(axis % rank for axis in axes)


def _error(name: str, tensors: Sequence[Tensor], message: str) -> TypeRuleError:
    return type_error(name, [tensor.type for tensor in tensors], message)
