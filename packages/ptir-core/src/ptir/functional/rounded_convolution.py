"""Convolution of bytes: an image rounded to unsigned bytes, filters to signed ones, exact sums.

Never chosen by default: the results differ from the exact ones by what rounding loses. What counts
as zero of an image is a byte too, so that padding loses nothing and an image without negative
elements, as ReLU leaves it, has all 255 steps for the others. One image is rounded by its own
range, so that its results do not depend on those beside it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from ptir.capture import Tensor, call
from ptir.functional import elementwise as each
from ptir.functional.arrays import full
from ptir.functional.convolution import Two
from ptir.functional.define import implementation, internal_composite, lowering
from ptir.functional.elementwise import where
from ptir.ir.attributes import Attributes
from ptir.ops.implementations import INTERNAL_COMPOSITES
from ptir.ops.rounded import IMAGES, LEAST, MOST, MOST_INPUTS, MOST_UNSIGNED, PER_WORD, WINDOWS
from ptir.types import F32, I8, I32, U8, TensorType


class RoundedFilters(NamedTuple):
    """Filters as ``values`` i8[O,KH*KW*C], the ``scales`` f32[O] and ``sums`` i32[O] of each."""

    values: Tensor
    scales: Tensor
    sums: Tensor


def _is_dense(types: Sequence[TensorType], attributes: Attributes) -> str | None:
    if attributes["groups"] != 1:
        return f"groups is {attributes['groups']}; 1 is taken"
    inputs = types[1].size // max(1, types[1].shape[3 if attributes["layout"] == "hwio" else 0])
    if inputs > MOST_INPUTS:
        return f"an output has {inputs} products; sums of up to {MOST_INPUTS} bytes fit 32 bits"
    return None


@implementation("conv2d", "int8", supports=_is_dense, accuracy="narrower")
def _conv2d_int8(
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
    """Images and filters rounded to bytes, by image and output; exact sums (dot instructions)."""
    filters = weight.astype(F32)
    filters = filters.transpose(3, 0, 1, 2) if layout == "hwio" else filters.transpose(0, 2, 3, 1)
    more = -x.shape[3] % PER_WORD
    held = rounded_filters(_padded(filters, (0, 0, 0, 0), (0, 0, 0, more)))
    least = each.minimum(x.min(axis=(1, 2, 3)), 0.0)
    span = each.maximum(x.max(axis=(1, 2, 3)), 0.0) - least
    around = {"low": (*low, 0), "high": (*high, more)}
    values, zeros, scales = internal_composite(IMAGES, x, least, span, **around)
    how = {"window": filters.shape[1:3], "strides": strides, "dilation": dilation}
    found = internal_composite(WINDOWS, values, held.values, **how)[0]
    sums = (found - zeros.reshape(-1, 1, 1, 1) * held.sums).astype(F32)
    result = sums * (scales.reshape(-1, 1, 1, 1) * held.scales)
    return result if bias is None else result + bias


def rounded_filters(filters: Tensor) -> RoundedFilters:
    """Filters f32[O,KH,KW,C] in steps of a 127th of the greatest of an output, half to even.

    One of nothing above ``LEAST`` becomes zeros; the scale of one that is not finite is not a
    number.
    """
    rows = filters.reshape(filters.shape[0], -1)
    most = each.abs(rows).max(axis=-1)
    factor = where(most > LEAST, MOST / most, 0.0)
    values = each.round(rows * factor.reshape(-1, 1)).astype(I8)
    scales = where(most < math.inf, most * (1 / MOST), math.nan)
    return RoundedFilters(values, scales, values.astype(I32).sum(axis=-1))


def round_images(
    x: Tensor, least: Tensor, span: Tensor, *, low: tuple[int, ...], high: tuple[int, ...]
) -> tuple[Tensor, Tensor, Tensor]:
    """Values u8[N,H',W',C'], zero points i32[N] and scales f32[N] of images f32[N,H,W,C].

    An image's elements are between ``least`` f32[N], which is not above 0, and ``least`` plus
    ``span`` f32[N], which is not below 0: 255 steps of its scale, rounded half to even. Along H, W
    and C zeros are added before (``low``) and behind (``high``), or taken away where negative. Of
    a span up to ``LEAST`` all values are the zero point, and the scale of a span that is not finite
    is not a number.
    """
    factor = where(span > LEAST, MOST_UNSIGNED / span, 0.0)
    zeros = each.round(-least * factor)
    whole = _padded(x, (0, *low), (0, *high))
    moved = each.round(whole * factor.reshape(-1, 1, 1, 1)) + zeros.reshape(-1, 1, 1, 1)
    scales = where(span < math.inf, span * (1 / MOST_UNSIGNED), math.nan)
    return moved.astype(U8), zeros.astype(I32), scales


def _padded(x: Tensor, low: Sequence[int], high: Sequence[int]) -> Tensor:
    """``x`` with zeros around it, or without its border where negative."""
    if not any((*low, *high)):
        return x
    return call("pad", x, full((), 0.0, x.dtype), low=tuple(low), high=tuple(high))


def _convolution_of_bytes(
    values: Tensor, weight: Tensor, *, window: Two, strides: Two, dilation: Two
) -> Tensor:
    patches = call(
        "extract_patches",
        values.astype(I32),
        window=window,
        strides=strides,
        low=(0, 0),
        high=(0, 0),
        window_dilation=dilation,
    )
    filters = weight.astype(I32).reshape(weight.shape[0], *window, values.shape[3])
    return call("dot_general", patches, filters, lhs_contract=(3, 4, 5), rhs_contract=(1, 2, 3))


INTERNAL_COMPOSITES.update(
    {IMAGES: lowering(round_images), WINDOWS: lowering(_convolution_of_bytes)}
)
