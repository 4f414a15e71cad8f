"""ONNX operators that slide a window: convolutions, their transposes, and pools."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np

from ptir import functional as F
from ptir.capture import Tensor, call
from ptir.capture.tensor import full as scalar
from ptir.types import F32, I32, I64
from ptir_testsuite.witnesses.onnx_import.contraction import centred
from ptir_testsuite.witnesses.onnx_import.elementwise import full_like
from ptir_testsuite.witnesses.onnx_import.reductions import mean_of
from ptir_testsuite.witnesses.onnx_import.scope import constant
from ptir_testsuite.witnesses.onnx_import.table import Node, onnx_op, product

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


def channels_last(x: Tensor) -> Tensor:
    """x[N,C,...] as [N,...,C]."""
    return x.transpose(0, *range(2, x.ndim), 1)


def channels_first(x: Tensor) -> Tensor:
    """x[N,...,C] as [N,C,...]."""
    return x.transpose(0, x.ndim - 1, *range(1, x.ndim - 1))


def convolved(
    x: Tensor, weight: Tensor, window: Window, groups: int, spread: Sizes | None = None
) -> Tensor:
    """x[N,C,...], its elements ``spread`` apart, with weight[M,C/g,...]: [N,M,...]."""
    sizes = x.shape[2:] if spread is None else _spread(x.shape[2:], spread)
    high = window.padding(sizes)
    if x.ndim == 4 and x.dtype == F32 and spread is None and min((*window.low, *high)) >= 0:
        padding = tuple(zip(window.low, high, strict=True))
        more: dict[str, Any] = {"strides": window.strides, "dilation": window.dilations}
        more |= {"padding": padding, "groups": groups, "layout": "oihw"}
        return channels_first(F.conv2d(channels_last(x), weight, **more))
    n, m, places, c = x.shape[0], weight.shape[0], window.results, x.shape[1]
    under = call(
        "extract_patches",
        channels_last(x),
        window=window.kernel,
        strides=window.strides,
        low=window.low,
        high=high,
        base_dilation=spread,
        window_dilation=window.dilations,
    )
    taps = product(window.kernel)
    result = call(
        "dot_general",
        under.reshape((n, product(places), taps, groups, c // groups)),
        weight.reshape((groups, m // groups, c // groups, taps)),
        lhs_batch=(3,),
        rhs_batch=(0,),
        lhs_contract=(2, 4),
        rhs_contract=(3, 2),
    )
    return result.transpose(1, 0, 3, 2).reshape((n, m, *places))


def _spread(sizes: Sizes, spread: Sizes) -> Sizes:
    return tuple((n - 1) * s + 1 for n, s in zip(sizes, spread, strict=True))


def folded(x: Tensor, window: Window, kind: str) -> Tensor:
    """x[N,C,...] folded under each window; padding is the fold's identity."""
    return call(
        "reduce_window",
        x,
        kind=kind,
        window=(1, 1, *window.kernel),
        strides=(1, 1, *window.strides),
        low=(0, 0, *window.low),
        high=(0, 0, *window.padding(x.shape[2:])),
        window_dilation=(1, 1, *window.dilations),
    )


def plain(node: Node, x: Tensor, window: Window) -> dict[str, Any] | None:
    """Arguments of a two-dimensional pool of ours that says the same, or None."""
    high = window.padding(x.shape[2:])
    sides = [*zip(window.low, window.reach, strict=True), *zip(high, window.reach, strict=True)]
    fits = all(0 <= side <= reach // 2 for side, reach in sides)
    if x.ndim != 4 or x.dtype != F32 or not fits or node.attr("ceil_mode", 0):
        return None
    padding = tuple(zip(window.low, high, strict=True))
    return {"window": window.kernel, "strides": window.strides, "padding": padding}


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
    c, m = weight.shape[:2]
    mirrored = call("reverse", weight, axes=tuple(range(2, weight.ndim)))
    grouped = mirrored.reshape((groups, c // groups, m, *kernel))
    swapped = grouped.transpose(0, 2, 1, *range(3, grouped.ndim))
    before = tuple(r - 1 - a for r, a in zip(reach, low, strict=True))
    window = Window(kernel, (1,) * rank, dilations, before, before, results)
    weights = swapped.reshape((groups * m, c // groups, *kernel))
    result = convolved(x, weights, window, groups, strides)
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
    ours = plain(node, x, window)
    if ours is None:
        pooled = folded(x, window, "max")
    else:
        ours["dilation"] = window.dilations
        pooled = channels_first(F.max_pool2d(channels_last(x), **ours))
    return (pooled,) if node.results < 2 else (pooled, max_places(node, x, window))


def max_places(node: Node, x: Tensor, window: Window) -> Tensor:
    """The flat index of the first greatest element under each window, i64."""
    order = list(range(x.ndim))
    if node.attr("storage_order", 0):
        order[2:] = reversed(order[2:])
    flat = np.arange(x.size, dtype=np.int32).reshape([x.shape[a] for a in order])
    lowest = -np.inf if x.dtype.is_float else np.iinfo(x.dtype.numpy).min
    under = taps_of(x, window, lowest)
    index = taps_of(constant(flat.transpose(np.argsort(order))), window, -1)
    best = call("arg_max", under, axis=2).reshape((*x.shape[:2], 1, *window.results))
    place = call("iota", shape=under.shape, dtype=I32, axis=2)
    chosen = call("select", place == best, index, full_like(index, -1))
    return call("reduce", chosen, axes=(2,), kind="max").astype(I64)


def taps_of(x: Tensor, window: Window, fill: Any) -> Tensor:
    """x[N,C,...] as [N,C,K,...]: the K elements under each window, ``fill`` outside."""
    low, high = (0, 0, *window.low), (0, 0, *window.padding(x.shape[2:]))
    padded = channels_last(call("pad", x, scalar(fill, x.dtype), low=low, high=high))
    more = {"strides": window.strides, "window_dilation": window.dilations}
    under = call("extract_patches", padded, window=window.kernel, **more)
    n, c, taps = x.shape[0], x.shape[1], product(window.kernel)
    lined = under.reshape((n, product(window.results), taps, c))
    return lined.transpose(0, 3, 2, 1).reshape((n, c, taps, *window.results))


@onnx_op("AveragePool")
def average_pool(node: Node) -> Tensor:
    """The mean under each window, of elements alone or with the padding."""
    x, padding = node[0], bool(node.attr("count_include_pad", 0))
    window = window_of(node, x.shape[2:], tuple(node.attr("kernel_shape")))
    ours = plain(node, x, window)
    if ours is not None and max(window.dilations) == 1:
        ours["count_include_pad"] = padding
        return channels_first(F.avg_pool2d(channels_last(x), **ours))
    counts = _counted(x.shape[2:], window, padding)
    return folded(x, window, "sum") / constant(counts.astype(x.dtype.numpy))


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
    size = F.abs(x)
    powers = size * size if p == 2 else call("pow", size, full_like(size, p))
    total = folded(powers, window, "sum")
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
