"""ONNX operators that slide a window: convolutions, their transposes, and pools."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np

from ptir import functional as F
from ptir.capture import Tensor, call
from ptir.capture.tensor import constant as scalar
from ptir.types import I32, I64
from ptir_testsuite.witness.onnx_import.contraction import centred
from ptir_testsuite.witness.onnx_import.elementwise import full_like
from ptir_testsuite.witness.onnx_import.reductions import mean_of
from ptir_testsuite.witness.onnx_import.scope import constant
from ptir_testsuite.witness.onnx_import.table import Node, onnx_op, product

Sizes = tuple[int, ...]


@dataclass(frozen=True)
class Window:
    """How a window slides over the last axes of an input: sizes, steps, padding, results."""

    kernel: Sizes
    strides: Sizes
    dilations: Sizes
    low: Sizes
    high: Sizes
    results: Sizes

    @property
    def reach(self) -> Sizes:
        """What a window spans on each axis."""
        return tuple((k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations, strict=True))

    def padding(self, spatial: Sizes) -> Sizes:
        """How much padding on the high side every result needs; negative: not all is read."""
        needs = zip(self.results, self.strides, self.reach, spatial, self.low, strict=True)
        return tuple((out - 1) * s + r - n - low for out, s, r, n, low in needs)


def window_of(node: Node, spatial: Sizes, kernel: Sizes) -> Window:
    """The window that a node's attributes describe."""
    rank = len(spatial)
    strides = tuple(node.attr("strides") or (1,) * rank)
    dilations = tuple(node.attr("dilations") or (1,) * rank)
    pads = tuple(node.attr("pads") or (0,) * 2 * rank)
    low, high = pads[:rank], pads[rank:]
    mode, results = node.attr("auto_pad", "NOTSET"), []
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    if mode.startswith("SAME"):
        total = [
            max((-(-n // s) - 1) * s + r - n, 0)
            for n, s, r in zip(spatial, strides, reach, strict=True)
        ]
        less = tuple(t // 2 for t in total)
        more = tuple(t - t // 2 for t in total)
        low, high = (less, more) if mode == "SAME_UPPER" else (more, less)
    for n, s, r, a, b in zip(spatial, strides, reach, low, high, strict=True):
        room = n + a + b - r
        count = room // s + 1
        if node.attr("ceil_mode", 0):
            count = -(-room // s) + 1
            count -= (count - 1) * s >= n + a
        results.append(count)
    return Window(kernel, strides, dilations, low, high, tuple(results))


def patches(x: Tensor, window: Window, fill: Any) -> Tensor:
    """x[N,C,...] as [N,C,K,...]: the K elements under each window, ``fill`` outside."""
    lead, spatial = x.shape[:2], x.shape[2:]
    x = call(
        "pad",
        x,
        scalar(fill, x.dtype),
        low=(0, 0, *window.low),
        high=(0, 0, *window.padding(spatial)),
    )
    parts = []
    for offset in itertools.product(*map(range, window.kernel)):
        starts = tuple(o * d for o, d in zip(offset, window.dilations, strict=True))
        ends = zip(starts, window.results, window.strides, strict=True)
        part = call(
            "slice",
            x,
            starts=(0, 0, *starts),
            limits=(*lead, *(a + (n - 1) * s + 1 for a, n, s in ends)),
            strides=(1, 1, *window.strides),
        )
        parts.append(part.reshape((*lead, 1, *window.results)))
    return F.concat(parts, axis=2)


def convolved(x: Tensor, weight: Tensor, window: Window, groups: int) -> Tensor:
    """x[N,C,...] with weight[M,C/g,...]: [N,M,...]."""
    n, m = x.shape[0], weight.shape[0]
    under = patches(x, window, 0)
    terms, places = product(weight.shape[1:]), product(window.results)
    result = call(
        "dot_general",
        weight.reshape((groups, m // groups, terms)),
        under.reshape((n, groups, terms, places)),
        lhs_batch=(0,),
        rhs_batch=(1,),
        lhs_contract=(2,),
        rhs_contract=(2,),
    )
    return result.transpose(2, 0, 1, 3).reshape((n, m, *window.results))


def channelwise(bias: Tensor, rank: int) -> Tensor:
    """One number per channel, shaped to broadcast over [N,C,...]."""
    return bias.reshape((bias.size, *[1] * (rank - 2)))


@onnx_op("Conv")
def conv(node: Node) -> Tensor:
    """A convolution with bias."""
    x, weight, bias = node[0], node[1], node.optional(2)
    window = window_of(node, x.shape[2:], weight.shape[2:])
    result = convolved(x, weight, window, node.attr("group", 1))
    return result if bias is None else result + channelwise(bias, x.ndim)


@onnx_op("ConvInteger")
def conv_integer(node: Node) -> Tensor:
    """Bytes less their zero points, convolved as i32."""
    x, weight = centred(node[0], node.optional(2), 0), centred(node[1], node.optional(3), 0)
    window = window_of(node, x.shape[2:], weight.shape[2:])
    return convolved(x, weight, window, node.attr("group", 1))


@onnx_op("ConvTranspose")
def conv_transpose(node: Node) -> Tensor:
    """The convolution of a spread input with the mirrored kernel."""
    x, weight, bias = node[0], node[1], node.optional(2)
    groups, rank = node.attr("group", 1), x.ndim - 2
    strides = tuple(node.attr("strides") or (1,) * rank)
    dilations = tuple(node.attr("dilations") or (1,) * rank)
    extra = tuple(node.attr("output_padding") or (0,) * rank)
    kernel = weight.shape[2:]
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    full = [(n - 1) * s + r for n, s, r in zip(x.shape[2:], strides, reach, strict=True)]
    low, results = _transposed(node, x.shape[2:], strides, full, extra)
    spread = call(
        "pad",
        x,
        scalar(0, x.dtype),
        low=(0,) * x.ndim,
        high=(0,) * x.ndim,
        interior=(0, 0, *(s - 1 for s in strides)),
    )
    c, m = weight.shape[:2]
    mirrored = call("reverse", weight, axes=tuple(range(2, weight.ndim)))
    grouped = mirrored.reshape((groups, c // groups, m, *kernel))
    swapped = grouped.transpose(0, 2, 1, *range(3, grouped.ndim))
    before = tuple(r - 1 - a for r, a in zip(reach, low, strict=True))
    window = Window(kernel, (1,) * rank, dilations, before, before, results)
    weights = swapped.reshape((groups * m, c // groups, *kernel))
    result = convolved(spread, weights, window, groups)
    return result if bias is None else result + channelwise(bias, x.ndim)


def _transposed(
    node: Node, spatial: Sizes, strides: Sizes, full: list[int], extra: Sizes
) -> tuple[Sizes, Sizes]:
    """What is cut off on the low side, and the result's sizes."""
    rank = len(spatial)
    pads = tuple(node.attr("pads") or (0,) * 2 * rank)
    low, high = pads[:rank], pads[rank:]
    wanted, mode = node.attr("output_shape"), node.attr("auto_pad", "NOTSET")
    if wanted is None and mode.startswith("SAME"):
        wanted = [n * s for n, s in zip(spatial, strides, strict=True)]
    if wanted is None:
        sizes = zip(full, extra, low, high, strict=True)
        return low, tuple(f + e - a - b for f, e, a, b in sizes)
    wanted = tuple(wanted)[-rank:]
    cut = [f + e - w for f, e, w in zip(full, extra, wanted, strict=True)]
    low = tuple(c // 2 if mode == "SAME_UPPER" else c - c // 2 for c in cut)
    return low, wanted


@onnx_op("MaxPool")
def max_pool(node: Node) -> tuple[Tensor, ...]:
    """The greatest under each window, and its flat index."""
    x = node[0]
    window = window_of(node, x.shape[2:], tuple(node.attr("kernel_shape")))
    lowest = -np.inf if x.dtype.is_float else np.iinfo(x.dtype.numpy).min
    under = patches(x, window, lowest)
    pooled = call("reduce", under, axes=(2,), kind="max")
    if node.results < 2:
        return (pooled,)
    order = list(range(x.ndim)) if not node.attr("storage_order", 0) else [0, 1, *range(2, x.ndim)]
    flat = np.arange(x.size).reshape(x.shape)
    if node.attr("storage_order", 0):
        swapped = [0, 1, *reversed(range(2, x.ndim))]
        flat = (
            np.arange(x.size).reshape([x.shape[a] for a in swapped]).transpose(np.argsort(swapped))
        )
    index = patches(constant(flat.transpose(order).astype(np.int32)), window, -1)
    best = call("arg_max", under, axis=2).reshape((*x.shape[:2], 1, *window.results))
    place = call("iota", shape=under.shape, dtype=I32, axis=2)
    chosen = call("select", place == best, index, full_like(index, -1))
    return pooled, call("reduce", chosen, axes=(2,), kind="max").astype(I64)


@onnx_op("AveragePool")
def average_pool(node: Node) -> Tensor:
    """The mean under each window, of elements alone or with the padding."""
    x = node[0]
    window = window_of(node, x.shape[2:], tuple(node.attr("kernel_shape")))
    total = call("reduce", patches(x, window, 0), axes=(2,), kind="sum")
    counts = _counted(x.shape[2:], window, bool(node.attr("count_include_pad", 0)))
    return total / constant(counts.astype(x.dtype.numpy))


def _counted(spatial: Sizes, window: Window, padding: bool) -> np.ndarray[Any, Any]:
    """How many elements each window holds; ``padding`` counts, what ceil_mode adds does not."""
    counts = np.ones(())
    for axis, n in enumerate(spatial):
        ends = (-window.low[axis], n + window.high[axis]) if padding else (0, n)
        starts = np.arange(window.results[axis]) * window.strides[axis] - window.low[axis]
        places = starts[:, None] + np.arange(window.kernel[axis]) * window.dilations[axis]
        inside = ((places >= ends[0]) & (places < ends[1])).sum(axis=1)
        counts = counts[..., None] * inside
    return counts


@onnx_op("LpPool")
def lp_pool(node: Node) -> Tensor:
    """The p-norm under each window."""
    x, p = node[0], int(node.attr("p", 2))
    window = window_of(node, x.shape[2:], tuple(node.attr("kernel_shape")))
    under = F.abs(patches(x, window, 0))
    powers = under * under if p == 2 else call("pow", under, full_like(under, p))
    total = call("reduce", powers, axes=(2,), kind="sum")
    return F.sqrt(total) if p == 2 else call("pow", total, full_like(total, 1.0 / p))


@onnx_op("GlobalAveragePool", "GlobalMaxPool")
def global_pool(node: Node) -> Tensor:
    """Over all axes but the first two, which stay with size 1."""
    x = node[0]
    axes = tuple(range(2, x.ndim))
    return mean_of(x, axes) if node.op == "GlobalAveragePool" else x.max(axis=axes, keepdims=True)


@onnx_op("Col2Im")
def col2im(node: Node) -> Tensor:
    """Columns put back under their windows and added where those overlap."""
    x, image, block = node[0], node.ints(1) or (), node.ints(2) or ()
    n, channels = x.shape[0], x.shape[1] // product(block)
    window = window_of(node, image, block)
    columns = x.reshape((n, channels, product(block), *window.results))
    total = scalar(0, x.dtype, (n, channels, *image))
    for place, offset in enumerate(itertools.product(*map(range, block))):
        part = columns[:, :, place]
        low = [o * d - a for o, d, a in zip(offset, window.dilations, window.low, strict=True)]
        taken = [(r - 1) * s + 1 for r, s in zip(window.results, window.strides, strict=True)]
        total = total + call(
            "pad",
            part,
            scalar(0, x.dtype),
            low=(0, 0, *low),
            high=(0, 0, *(i - t - a for i, t, a in zip(image, taken, low, strict=True))),
            interior=(0, 0, *(s - 1 for s in window.strides)),
        )
    return total
