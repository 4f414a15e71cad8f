"""ONNX operators that read or write elements at places that other tensors hold.

ONNX counts negative indices from the end; ours clamp or drop, so they are made positive first.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from ptir import functional as F
from ptir.capture import Tensor, call
from ptir.capture.tensor import full as scalar
from ptir.types import F32, I32, I64
from ptir_testsuite.witnesses.onnx_import.elementwise import full_like
from ptir_testsuite.witnesses.onnx_import.scope import constant
from ptir_testsuite.witnesses.onnx_import.table import Node, onnx_op, product

KINDS: Final = {"none": "replace", "add": "add", "mul": "mul", "max": "max", "min": "min"}


def counted(indices: Tensor, size: int) -> Tensor:
    """Indices along an axis of ``size``, negative ones counted from its end."""
    return F.where(indices < 0, indices + size, indices)


@onnx_op("Gather")
def gather(node: Node) -> Tensor:
    """Slices of one axis."""
    x = node[0]
    axis = node.axis(0, x.ndim)
    indices = counted(node[1], x.shape[axis])
    if x.dtype == F32 and x.ndim == 2 and axis == 0:
        return F.embedding(x, indices.astype(I32))
    return call("take", x, indices, axis=axis)


def places(indices: Tensor, shape: tuple[int, ...], axis: int) -> Tensor:
    """The full place of every element of ``indices``, which replace its index along ``axis``."""
    parts = [
        counted(indices, shape[axis])
        if a == axis
        else call("iota", shape=indices.shape, dtype=indices.dtype, axis=a)
        for a in range(indices.ndim)
    ]
    return F.stack(parts, axis=indices.ndim)


@onnx_op("GatherElements")
def gather_elements(node: Node) -> Tensor:
    """One element for every index."""
    x, indices = node[0], node[1]
    axis = node.axis(0, x.ndim)
    return call("gather", x, places(indices, x.shape, axis), axes=tuple(range(x.ndim)))


def counted_places(indices: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """Places along the last axis with negative indices counted from the end."""
    bounds = constant(np.array(sizes, indices.dtype.numpy)).broadcast_to(indices.shape)
    return F.where(indices < 0, indices + bounds, indices)


@onnx_op("GatherND")
def gather_nd(node: Node) -> Tensor:
    """Slices at places, the first axes running together."""
    x, indices, batch = node[0], node[1], int(node.attr("batch_dims", 0))
    depth = indices.shape[-1]
    axes = tuple(range(batch, batch + depth))
    spots = counted_places(indices, tuple(x.shape[a] for a in axes))
    return call("gather", x, spots, axes=axes, batch=batch)


@onnx_op("ScatterElements", "Scatter")
def scatter_elements(node: Node) -> Tensor:
    """One update for every index."""
    x, indices, updates = node[0], node[1], node[2]
    axis, kind = node.axis(0, x.ndim), KINDS[node.attr("reduction", "none")]
    axes = tuple(range(x.ndim))
    spots = places(indices, x.shape, axis)
    return call("scatter_reduce", x, spots, updates, axes=axes, kind=kind)


@onnx_op("ScatterND")
def scatter_nd(node: Node) -> Tensor:
    """Whole slices at places."""
    x, indices, updates = node[0], node[1], node[2]
    axes = tuple(range(indices.shape[-1]))
    spots = counted_places(indices, tuple(x.shape[a] for a in axes))
    kind = KINDS[node.attr("reduction", "none")]
    return call("scatter_reduce", x, spots, updates, axes=axes, kind=kind)


@onnx_op("TensorScatter")
def tensor_scatter(node: Node) -> Tensor:
    """New steps in a cache, from an index per row on, perhaps wrapping around its end."""
    cache, update, starts = node[0], node[1], node.optional(2)
    axis = node.axis(-2, cache.ndim)
    rows, steps, size = cache.shape[0], update.shape[axis], cache.shape[axis]
    if starts is None:
        starts = scalar(0, I64, (rows,))
    inner = cache.ndim == 4 and axis == 2 and cache.dtype == F32
    if inner and node.attr("mode", "linear") == "linear":
        return F.cache_update(cache, update, starts.astype(I32), scalar(steps, I32, (rows,)))
    at = call("iota", shape=update.shape, dtype=I32, axis=axis)
    first = starts.astype(I32).reshape((rows, *[1] * (cache.ndim - 1)))
    spot = (at + first) % size if node.attr("mode", "linear") == "circular" else at + first
    whole = places(spot, cache.shape, axis)
    return call(
        "scatter_reduce", cache, whole, update, axes=tuple(range(cache.ndim)), kind="replace"
    )


@onnx_op("MaxUnpool")
def max_unpool(node: Node) -> Tensor:
    """Elements at flat places of an empty tensor."""
    x, flat = node[0], node[1]
    shape = node.ints(2) or _unpooled(node, x.shape)
    if node.optional(2) is not None:
        flat = _reflowed(flat, _unpooled(node, x.shape), shape)
    empty = scalar(0, x.dtype, (product(shape),))
    spots = flat.reshape((flat.size, 1))
    filled = call("scatter_reduce", empty, spots, x.reshape((x.size,)), axes=(0,), kind="replace")
    return filled.reshape(shape)


def _unpooled(node: Node, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The size that pooling with these attributes came from."""
    rank = len(shape) - 2
    kernel, strides = node.attr("kernel_shape"), node.attr("strides") or [1] * rank
    pads = node.attr("pads") or [0] * 2 * rank
    sizes = [
        (n - 1) * s - pads[i] - pads[i + rank] + k
        for i, (n, s, k) in enumerate(zip(shape[2:], strides, kernel, strict=True))
    ]
    return (*shape[:2], *sizes)


def _reflowed(flat: Tensor, old: tuple[int, ...], new: tuple[int, ...]) -> Tensor:
    """Flat places of one shape as flat places of another."""
    total, step_old, step_new = full_like(flat, 0), 1, 1
    for before, after in zip(reversed(old), reversed(new), strict=True):
        total = total + flat // step_old % before * step_new
        step_old, step_new = step_old * before, step_new * after
    return total


@onnx_op("ArrayFeatureExtractor")
def array_feature_extractor(node: Node) -> Tensor:
    """Columns of the last axis."""
    return call("take", node[0], node[1].reshape((node[1].size,)), axis=node[0].ndim - 1)
