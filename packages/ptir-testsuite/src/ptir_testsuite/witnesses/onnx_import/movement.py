"""ONNX operators that move elements by shapes that are known, and that make them from nothing."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

from ptir import functional as F
from ptir.capture import Tensor, call
from ptir.capture.promote import broadcast_shapes
from ptir.capture.tensor import full as scalar
from ptir.types import BOOL, I32
from ptir_testsuite.witnesses.onnx_import.scope import constant
from ptir_testsuite.witnesses.onnx_import.table import Node, element, onnx_op, product, refuse


@onnx_op("Constant")
def constant_node(node: Node) -> Tensor:
    """A literal in one of its spellings."""
    for name, value in node.attributes.items():
        if name == "value":
            return constant(value)
        if name.startswith("value_float"):
            return constant(np.asarray(value, np.float32))
        if name.startswith("value_int"):
            return constant(np.asarray(value, np.int64))
    raise refuse("Constant of strings or a sparse tensor")


@onnx_op("Shape")
def shape(node: Node) -> Tensor:
    """Axis sizes from ``start`` to ``end``, which clip."""
    sizes = node[0].shape[node.attr("start", 0) : node.attr("end", None)]
    return constant(np.array(sizes, np.int64))


@onnx_op("Size")
def size(node: Node) -> Tensor:
    """The number of elements."""
    return constant(np.array(node[0].size, np.int64))


@onnx_op("ConstantOfShape")
def constant_of_shape(node: Node) -> Tensor:
    """One value everywhere; f32 zero by default."""
    value = np.asarray(node.attr("value", np.zeros(1, np.float32)))
    return constant(value.reshape(())).broadcast_to(node.ints(0) or ())


@onnx_op("EyeLike")
def eye_like(node: Node) -> Tensor:
    """Ones on one diagonal."""
    to = element(node.attr("dtype")) if node.attr("dtype") else node[0].dtype
    offset = diagonal_offset(node[0].shape)
    wanted = scalar(node.attr("k", 0), offset.dtype, offset.shape)
    return call("compare", offset, wanted, direction="eq").astype(to)


def diagonal_offset(shape: tuple[int, ...]) -> Tensor:
    """Column minus row of each element of a matrix, i32."""
    rank = len(shape)
    row, column = (call("iota", shape=shape, dtype=I32, axis=a) for a in (rank - 2, rank - 1))
    return column - row


@onnx_op("Trilu")
def trilu(node: Node) -> Tensor:
    """The part above or below a diagonal, zeros elsewhere."""
    x = node[0]
    (k,) = node.ints(1) or (0,)
    offset = diagonal_offset(x.shape)
    k = max(-(2**31), min(2**31 - 1, k))
    kept = offset >= k if node.attr("upper", 1) else offset <= k
    return call("select", kept, x, scalar(0, x.dtype, x.shape))


@onnx_op("Range")
def range_(node: Node) -> Tensor:
    """start, start + delta, ... before limit; the count must be known."""
    start, limit, delta = (float(node.scope.static(node[i]).reshape(())) for i in range(3))
    count, x = max(0, math.ceil((limit - start) / delta)), node[0]
    steps = call("iota", shape=(count,), dtype=x.dtype, axis=0)
    return steps * node[2].reshape(()) + x.reshape(())


@onnx_op("Reshape")
def reshape(node: Node) -> Tensor:
    """0 keeps a size (unless ``allowzero``), one -1 takes what is left."""
    x, sizes = node[0], node.ints(1, "shape") or ()
    if not node.attr("allowzero", 0):
        sizes = tuple(x.shape[i] if n == 0 else n for i, n in enumerate(sizes))
    return x.reshape(tuple(sizes))


@onnx_op("Flatten")
def flatten(node: Node) -> Tensor:
    """Two axes: those before ``axis`` and those from it on."""
    x, axis = node[0], node.attr("axis", 1)
    at = axis if axis >= 0 else axis + x.ndim
    return x.reshape((product(x.shape[:at]), product(x.shape[at:])))


@onnx_op("Transpose")
def transpose(node: Node) -> Tensor:
    """Reversed by default."""
    return node[0].transpose(*node.attr("perm", range(node[0].ndim)[::-1]))


@onnx_op("Squeeze")
def squeeze(node: Node) -> Tensor:
    """Without axes of size 1: those given, or all."""
    x, axes = node[0], node.ints(1, "axes")
    ones = [a for a, n in enumerate(x.shape) if n == 1]
    drop = ones if axes is None else [a % x.ndim for a in axes]
    if any(x.shape[a] != 1 for a in drop):
        raise refuse(f"Squeeze of {x.type} along {drop}")
    return x.reshape(tuple(n for a, n in enumerate(x.shape) if a not in drop))


@onnx_op("Unsqueeze")
def unsqueeze(node: Node) -> Tensor:
    """New axes of size 1."""
    x, axes = node[0], node.ints(1, "axes") or ()
    rank = x.ndim + len(axes)
    new, old = {a % rank for a in axes}, iter(x.shape)
    return x.reshape(tuple(1 if a in new else next(old) for a in range(rank)))


@onnx_op("Expand")
def expand(node: Node) -> Tensor:
    """Broadcast both ways."""
    return node[0].broadcast_to(broadcast_shapes([node[0].shape, node.ints(1) or ()]))


@onnx_op("Tile")
def tile(node: Node) -> Tensor:
    """The whole tensor over and over."""
    return call("tile", node[0], repeats=node.ints(1))


@onnx_op("Concat")
def concat(node: Node) -> Tensor:
    """Along one axis."""
    return call("concat", *node.present, axis=node.axis(1, node[0].ndim))


@onnx_op("Split")
def split(node: Node) -> tuple[Tensor, ...]:
    """Parts of given sizes, or equal ones of which the last may be smaller."""
    x = node[0]
    axis, sizes = node.axis(0, x.ndim), node.ints(1, "split")
    if sizes is None:
        count = int(node.attr("num_outputs", node.results))
        each = -(-x.shape[axis] // count)
        sizes = tuple(max(0, min(each, x.shape[axis] - i * each)) for i in range(count))
    ends = np.cumsum((0, *sizes)).tolist()
    return tuple(window(x, axis, a, b) for a, b in itertools.pairwise(ends))


def window(x: Tensor, axis: int, start: int, stop: int) -> Tensor:
    """The elements start .. stop of one axis."""
    starts = tuple(start if a == axis else 0 for a in range(x.ndim))
    limits = tuple(stop if a == axis else n for a, n in enumerate(x.shape))
    return call("slice", x, starts=starts, limits=limits)


@onnx_op("Slice")
def slice_(node: Node) -> Tensor:
    """Any start, end and step, negative ones too, which clip to the axis."""
    x = node[0]
    starts, ends = node.ints(1, "starts") or (), node.ints(2, "ends") or ()
    axes = node.ints(3, "axes") or tuple(range(len(starts)))
    steps = node.ints(4) or (1,) * len(starts)
    index = [slice(None)] * x.ndim
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        index[axis % x.ndim] = slice(start, end, step)
    return strided(x, index)


def strided(x: Tensor, index: list[slice]) -> Tensor:
    """Python's slicing: what is read backwards is reversed first."""
    starts, limits, strides, backwards = [], [], [], []
    for axis, (part, size) in enumerate(zip(index, x.shape, strict=True)):
        found = range(size)[_clipped(part, size)]
        if found.step < 0:
            backwards.append(axis)
            found = range(size - 1 - found.start, size - 1 - found.stop, -found.step)
        starts.append(found.start if len(found) else 0)
        limits.append(found[-1] + 1 if len(found) else 0)
        strides.append(found.step)
    if backwards:
        x = call("reverse", x, axes=tuple(backwards))
    return call("slice", x, starts=tuple(starts), limits=tuple(limits), strides=tuple(strides))


def _clipped(part: slice, size: int) -> slice:
    """ONNX ends a backward slice at the beginning by any number far below zero."""
    stop = None if part.step is not None and part.step < 0 and part.stop < -size else part.stop
    return slice(part.start, stop, part.step)


@onnx_op("Pad")
def pad(node: Node) -> Tensor:
    """A constant, the edge, a mirror image or a wrapped copy around the elements."""
    x, pads = node[0], node.ints(1, "pads") or ()
    axes = [a % x.ndim for a in node.ints(3) or range(x.ndim)]
    low, high = [0] * x.ndim, [0] * x.ndim
    for i, axis in enumerate(axes):
        low[axis], high[axis] = pads[i], pads[i + len(axes)]
    mode = node.attr("mode", "constant")
    if mode == "constant":
        given = node.optional(2)
        value = scalar(node.attr("value", 0), x.dtype) if given is None else given.reshape(())
        return call("pad", x, value, low=tuple(low), high=tuple(high))
    for axis in range(x.ndim):
        places = range(-low[axis], x.shape[axis] + high[axis])
        x = select_static(x, axis, [_PLACE[mode](p, x.shape[axis]) for p in places])
    return x


def _mirror(place: int, size: int) -> int:
    if size == 1:
        return 0
    place %= 2 * (size - 1)
    return min(place, 2 * (size - 1) - place)


_PLACE: dict[str, Any] = {
    "edge": lambda place, size: min(max(place, 0), size - 1),
    "reflect": _mirror,
    "wrap": lambda place, size: place % size,
}


def select_static(x: Tensor, axis: int, places: list[int]) -> Tensor:
    """The elements of an axis at known places."""
    return call("take", x, constant(np.array(places, np.int32)), axis=axis)


@onnx_op("DepthToSpace")
def depth_to_space(node: Node) -> Tensor:
    """Blocks of channels become squares of pixels."""
    x, b = node[0], int(node.attr("blocksize"))
    n, c, h, w = x.shape
    if node.attr("mode", "DCR") == "DCR":
        spread = x.reshape((n, b, b, c // b**2, h, w)).transpose(0, 3, 4, 1, 5, 2)
    else:
        spread = x.reshape((n, c // b**2, b, b, h, w)).transpose(0, 1, 4, 2, 5, 3)
    return spread.reshape((n, c // b**2, h * b, w * b))


@onnx_op("SpaceToDepth")
def space_to_depth(node: Node) -> Tensor:
    """Squares of pixels become blocks of channels."""
    x, b = node[0], int(node.attr("blocksize"))
    n, c, h, w = x.shape
    squares = x.reshape((n, c, h // b, b, w // b, b))
    order = (0, 3, 5, 1, 2, 4) if node.attr("mode", "DCR") == "DCR" else (0, 1, 3, 5, 2, 4)
    return squares.transpose(*order).reshape((n, c * b**2, h // b, w // b))


@onnx_op("ReverseSequence")
def reverse_sequence(node: Node) -> Tensor:
    """The first elements of each line, as many as its length says, backwards."""
    x, lengths = node[0], node.ints(1) or ()
    time, batch = node.attr("time_axis", 0), node.attr("batch_axis", 1)
    rows = []
    for b, length in enumerate(lengths):
        places = [length - 1 - t if t < length else t for t in range(x.shape[time])]
        rows.append(select_static(window(x, batch, b, b + 1), time, places))
    return F.concat(rows, axis=batch)


@onnx_op("OneHot")
def one_hot(node: Node) -> Tensor:
    """The on value where the position is the index, which may count from the end."""
    indices, depth, values = node[0], (node.ints(1) or (0,))[0], node[2]
    axis = int(node.attr("axis", -1)) % (indices.ndim + 1)
    shape = (*indices.shape[:axis], depth, *indices.shape[axis:])
    places = call("iota", shape=shape, dtype=indices.dtype, axis=axis)
    index = indices.reshape((*indices.shape[:axis], 1, *indices.shape[axis:]))
    hit = (places == index) | (places - scalar(depth, places.dtype) == index)
    off, on = (window(values, 0, i, i + 1).reshape(()).broadcast_to(shape) for i in (0, 1))
    return call("select", hit.astype(BOOL), on, off)
