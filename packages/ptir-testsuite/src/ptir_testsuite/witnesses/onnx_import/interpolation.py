"""ONNX operators that read images between their pixels: GridSample and DeformConv."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from ptir import functional as F
from ptir.capture import Tensor, call
from ptir.capture.tensor import full as scalar
from ptir.types import I32
from ptir_testsuite.witnesses.onnx_import.movement import window
from ptir_testsuite.witnesses.onnx_import.table import Node, onnx_op, product
from ptir_testsuite.witnesses.onnx_import.windows import channels_last, channelwise, window_of


@dataclass(frozen=True)
class Border:
    """What lies outside an image: zeros, its edge, or its mirror image.

    ``corners`` says whether the mirror stands at the centres of the outermost pixels.
    """

    mode: str
    corners: bool

    def place(self, i: Tensor, size: int) -> Tensor:
        """A whole place moved inside; for zeros it is left to ``inside``."""
        if self.mode != "reflection":
            return F.maximum(F.minimum(i, size - 1), 0)
        period = max(2 * (size - 1), 1) if self.corners else 2 * size
        folded = i % period
        last = period if self.corners else period - 1
        return F.minimum(folded, last - folded)

    def bend(self, x: Tensor, size: int) -> Tensor:
        """A coordinate outside moved inside, by the same rule; those inside are not touched."""
        low, high = (0.0, size - 1.0) if self.corners else (-0.5, size - 0.5)
        if self.mode == "zeros":
            return x
        if self.mode == "border":
            moved = F.maximum(F.minimum(x, size - 1.0), 0.0)
        else:
            reach = high - low
            folded = (x - low) % (2.0 * reach)
            moved = F.minimum(folded, 2.0 * reach - folded) + low
        return F.where((x < low) | (x > high), moved, x)


def pixels(x: Tensor, at: Sequence[Tensor], border: Border) -> Tensor:
    """x[N,C,...] at whole places i32[N,P], one tensor per spatial axis: [N,P,C]."""
    sizes = x.shape[2:]
    moved = [border.place(i, size) for i, size in zip(at, sizes, strict=True)]
    spots = F.stack(moved, axis=2)
    axes = tuple(range(1, 1 + len(sizes)))
    found = call("gather", channels_last(x), spots, axes=axes, batch=1)
    if border.mode != "zeros":
        return found
    inside = scalar(True, (at[0] < 0).dtype, at[0].shape)
    for i, size in zip(at, sizes, strict=True):
        inside = inside & (i >= 0) & (i < size)
    return F.where(inside.reshape((*inside.shape, 1)), found, 0.0)


def _cubic(distance: Tensor, near: bool) -> Tensor:
    x, a = F.abs(distance), -0.75
    if near:
        return ((x * (a + 2) - (a + 3)) * x) * x + 1.0
    return ((x * a - 5 * a) * x + 8 * a) * x - 4 * a


WEIGHTS: Final[dict[str, dict[int, Callable[[Tensor], Tensor]]]] = {
    "linear": {0: lambda w: 1.0 - w, 1: lambda w: w},
    "cubic": {
        -1: lambda w: _cubic(w + 1.0, False),
        0: lambda w: _cubic(w, True),
        1: lambda w: _cubic(1.0 - w, True),
        2: lambda w: _cubic(2.0 - w, False),
    },
}


def interpolated(x: Tensor, at: Sequence[Tensor], mode: str, border: Border) -> Tensor:
    """x[N,C,...] at coordinates f32[N,P], one tensor per spatial axis: [N,P,C]."""
    if mode == "nearest":
        whole = [border.bend(F.round(c), n) for c, n in zip(at, x.shape[2:], strict=True)]
        return pixels(x, [c.astype(I32) for c in whole], border)
    bent = [border.bend(c, n) for c, n in zip(at, x.shape[2:], strict=True)]
    first = [F.floor(c) for c in bent]
    share = [c - f for c, f in zip(bent, first, strict=True)]
    total: Tensor | None = None
    for offsets in itertools.product(WEIGHTS[mode], repeat=len(at)):
        places = [f.astype(I32) + o for f, o in zip(first, offsets, strict=True)]
        value = pixels(x, places, border)
        for part, offset in zip(share, offsets, strict=True):
            value = value * WEIGHTS[mode][offset](part).reshape((*part.shape, 1))
        total = value if total is None else total + value
    assert total is not None
    return total


MODES: Final = {"bilinear": "linear", "bicubic": "cubic"}


@onnx_op("GridSample")
def grid_sample(node: Node) -> Tensor:
    """x[N,C,...] at points of [-1, 1], whose coordinates come in reverse order of the axes."""
    x, grid, corners = node[0], node[1], bool(node.attr("align_corners", 0))
    n, *places, rank = grid.shape
    mode = node.attr("mode", "linear")
    border = Border(node.attr("padding_mode", "zeros"), corners)
    at = []
    for axis, size in enumerate(x.shape[2:]):
        part = window(grid, grid.ndim - 1, rank - 1 - axis, rank - axis)
        point = part.reshape((n, product(places)))
        scaled = (point + 1.0) * 0.5 * float(size - 1)
        at.append(scaled if corners else ((point + 1.0) * float(size) - 1.0) * 0.5)
    found = interpolated(x, at, MODES.get(mode, mode), border)
    return found.transpose(0, 2, 1).reshape((n, x.shape[1], *places))


@onnx_op("DeformConv")
def deform_conv(node: Node) -> Tensor:
    """A convolution whose taps are moved by offsets and weighted by a mask."""
    x, weight, offset, bias = node[0], node[1], node[2], node.optional(3)
    groups, moved = int(node.attr("group", 1)), int(node.attr("offset_group", 1))
    slide = window_of(node, x.shape[2:], weight.shape[2:])
    n, channels, places = x.shape[0], x.shape[1] // moved, slide.results
    taps, count = product(slide.kernel), product(slide.kernel) * product(places)
    offsets = offset.reshape((n, moved, taps, 2, *places))
    parts = []
    for group in range(moved):
        at = [_taps(offsets, group, axis, slide.kernel, node) for axis in (0, 1)]
        image = window(x, 1, group * channels, (group + 1) * channels)
        flat = [c.reshape((n, count)) for c in at]
        parts.append(interpolated(image, flat, "linear", Border("zeros", True)))
    under = F.stack(parts, axis=1).reshape((n, moved, taps, *places, channels))
    mask = node.optional(4)
    if mask is not None:
        under = under * mask.reshape((n, moved, taps, *places, 1))
    ordered = under.transpose(0, 1, under.ndim - 1, 2, *range(3, under.ndim - 1))
    m, terms = weight.shape[0], product(weight.shape[1:])
    result = call(
        "dot_general",
        weight.reshape((groups, m // groups, terms)),
        ordered.reshape((n, groups, terms, product(places))),
        lhs_batch=(0,),
        rhs_batch=(1,),
        lhs_contract=(2,),
        rhs_contract=(2,),
    )
    image = result.transpose(2, 0, 1, 3).reshape((n, m, *places))
    return image if bias is None else image + channelwise(bias, x.ndim)


def _taps(offsets: Tensor, group: int, axis: int, kernel: tuple[int, ...], node: Node) -> Tensor:
    """Where the taps of one axis lie: [N,K,OH,OW]."""
    n, _, taps, _, *places = offsets.shape
    shape = (n, taps, *places)
    moved = window(window(offsets, 1, group, group + 1), 3, axis, axis + 1).reshape(shape)
    slide = window_of(node, node[0].shape[2:], kernel)
    tap = call("iota", shape=shape, dtype=I32, axis=1)
    index = tap // kernel[1] if axis == 0 else tap % kernel[1]
    place = call("iota", shape=shape, dtype=I32, axis=2 + axis) * slide.strides[axis]
    whole = place - slide.low[axis] + index * slide.dilations[axis]
    return moved + whole.astype(moved.dtype)
