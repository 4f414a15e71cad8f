"""Convolution by Winograd's minimal filtering, F(2x2, 3x3): 2 x 2 outputs from 4 x 4 inputs.

Each tile takes 16 products a channel instead of 36. Tiles and filters are transformed by additions,
which round a few times more, and what is not finite reaches all four outputs of its tile. Source:
Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", 2016.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ptir.capture import Tensor, call
from ptir.functional.arrays import stack
from ptir.functional.convolution import Two
from ptir.functional.define import implementation, internal_composite, lowering
from ptir.ir.attributes import Attributes
from ptir.ops.implementations import INTERNAL_COMPOSITES
from ptir.ops.schedules import CONV2D_WINOGRAD
from ptir.ops.winograd import (
    STEP,
    TAPS,
    TILE,
    filters_of,
    inputs_of,
    outputs_along,
    outputs_of,
    tiles_along,
)
from ptir.types import F32, TensorType

Slices = Sequence[Tensor]
Transform = Callable[[Slices], list[Tensor]]


def _along(tensor: Tensor, axis: int, transform: Transform) -> list[Tensor]:
    """The transform of the slices along an axis, which is gone."""
    lead = (slice(None),) * axis
    return transform([tensor[(*lead, place)] for place in range(tensor.shape[axis])])


def _is_plain(types: Sequence[TensorType], attributes: Attributes) -> str | None:
    shape = types[1].shape
    kernel = shape[:2] if attributes["layout"] == "hwio" else shape[2:]
    if kernel != (TAPS, TAPS):
        return f"the kernel is {kernel[0]} x {kernel[1]}; 3 x 3 is taken"
    for name, plain in (("strides", (1, 1)), ("dilation", (1, 1)), ("groups", 1)):
        if attributes[name] != plain:
            return f"{name} is {attributes[name]}; {plain} is taken"
    return None


@implementation("conv2d", "winograd", supports=_is_plain)
def _conv2d_winograd(*operands: Tensor, **attributes: Any) -> Tensor:
    """Tiles of 2 x 2 outputs by 16 products a channel, not 36 (Winograd; Lavin and Gray 2016)."""
    return internal_composite(CONV2D_WINOGRAD, *operands, **attributes)[0]


def _tiled(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    strides: Two,
    low: Two,
    high: Two,
    dilation: Two,
    groups: int,
    layout: str,
) -> Tensor:
    """A call that ``_is_plain``: strides, dilation and groups are 1."""
    filters = weight.astype(F32)
    filters = filters if layout == "hwio" else filters.transpose(2, 3, 1, 0)
    taps = [part for row in _along(filters, 0, filters_of) for part in _along(row, 0, filters_of)]
    count, outputs = x.shape[0], filters.shape[3]
    axes = list(zip(x.shape[1:3], low, high, strict=True))
    rows, columns = (outputs_along(*axis) for axis in axes)
    tall, wide = (tiles_along(*axis) for axis in axes)
    down, across = tall.count, wide.count
    tiles = call(
        "extract_patches",
        x,
        window=(TILE, TILE),
        strides=(STEP, STEP),
        low=low,
        high=(tall.high, wide.high),
        window_dilation=(1, 1),
    )
    seen = [part for row in _along(tiles, 3, inputs_of) for part in _along(row, 3, inputs_of)]
    flat = stack(seen).reshape(TILE * TILE, count * down * across, x.shape[3])
    products = call(
        "dot_general",
        flat,
        stack(taps),
        lhs_contract=(2,),
        rhs_contract=(1,),
        lhs_batch=(0,),
        rhs_batch=(0,),
    )
    squares = products.reshape(TILE, TILE, count, down, across, outputs)
    placed = [stack(_along(row, 0, outputs_of), axis=3) for row in _along(squares, 0, outputs_of)]
    whole = stack(placed, axis=2).reshape(count, STEP * down, STEP * across, outputs)
    result = whole[:, :rows, :columns]
    return result if bias is None else result + bias


INTERNAL_COMPOSITES[CONV2D_WINOGRAD] = lowering(_tiled)
