"""Softmax: portable, and online, which finds the greatest element and the sum in one pass."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final

from ptir.capture import Tensor
from ptir.functional import elementwise as each
from ptir.functional.check import Checked
from ptir.functional.define import composite, functional, implementation
from ptir.functional.elementwise import where
from ptir.ir.attributes import Attributes
from ptir.types import TensorType

BLOCK: Final = 16
MAX_BLOCKS: Final = 8


def blocks(size: int) -> Iterator[slice]:
    """An axis of ``size`` as at most ``MAX_BLOCKS`` slices of ``BLOCK`` elements or more."""
    step = max(BLOCK, -(-size // MAX_BLOCKS))
    return (slice(start, min(start + step, size)) for start in range(0, size, step))


def shift(greatest: Tensor) -> Tensor:
    """What to subtract before exp: the greatest element, or 0 where everything is -inf."""
    return where(greatest == -math.inf, 0.0, greatest)


def divisor(total: Tensor) -> Tensor:
    """What to divide by: the sum, or 1 where nothing was summed, so that a masked line gives 0."""
    return where(total == 0.0, 1.0, total)


@functional(
    "softmax",
    "exp(x) / sum(exp(x)) along an axis; a line of -inf gives 0",
    M=lambda types, attributes: types[0].size // max(1, types[0].shape[attributes["axis"]]),
    N=lambda types, attributes: types[0].shape[attributes["axis"]],
)
def _softmax(x: Tensor, *, axis: int) -> Tensor:
    weights = each.exp(x - shift(x.max(axis=axis, keepdims=True)))
    return weights / divisor(weights.sum(axis=axis, keepdims=True))


def _has_elements(types: Sequence[TensorType], attributes: Attributes) -> str | None:
    empty = types[0].shape[attributes["axis"]] == 0
    return "the axis is empty; there is no block to start from" if empty else None


@implementation("softmax", "online", supports=_has_elements)
def _softmax_online(x: Tensor, *, axis: int) -> Tensor:
    """Greatest element and sum in one pass over blocks of the axis (Milakov, Gimelshein 2018)."""
    lead = (slice(None),) * axis
    parts = [x[(*lead, block)] for block in blocks(x.shape[axis])]
    greatest = parts[0].max(axis=axis, keepdims=True)
    total = each.exp(parts[0] - shift(greatest)).sum(axis=axis, keepdims=True)
    for part in parts[1:]:
        before, greatest = (
            greatest,
            each.maximum(greatest, part.max(axis=axis, keepdims=True)),
        )
        added = each.exp(part - shift(greatest)).sum(axis=axis, keepdims=True)
        total = total * each.exp(before - shift(greatest)) + added
    return each.exp(x - shift(greatest)) / divisor(total)


SPLITS: Final = 8
"""Stretches of a line that are summed by themselves."""


def _is_long(types: Sequence[TensorType], attributes: Attributes) -> str | None:
    size = types[0].shape[attributes["axis"]]
    if size % SPLITS or not size:
        return f"a line has {size} elements, which are not {SPLITS} equal parts"
    return None


@implementation("softmax", "split", supports=_is_long)
def _softmax_split(x: Tensor, *, axis: int) -> Tensor:
    """Each line in eight parts, whose greatest elements and sums are found side by side."""
    shape = (*x.shape[:axis], SPLITS, x.shape[axis] // SPLITS, *x.shape[axis + 1 :])
    parts = x.reshape(shape)
    most = parts.max(axis=axis + 1, keepdims=True)
    weights = each.exp(parts - shift(most))
    sums = weights.sum(axis=axis + 1, keepdims=True)
    factors = each.exp(most - shift(most.max(axis=axis, keepdims=True)))
    total = (sums * factors).sum(axis=axis, keepdims=True)
    return (weights * (factors / divisor(total))).reshape(x.shape)


def softmax(x: Tensor, *, axis: int = -1) -> Tensor:
    """``exp(x) / sum(exp(x))`` of x f32[...] along ``axis``; -inf has weight 0.

    A line that is -inf throughout gives 0, not NaN. Raises ``TypeRuleError``.
    """
    checked = Checked("softmax", "x[...]", x=x)
    known = isinstance(axis, int) and -x.ndim <= axis < x.ndim
    rule = f"axis {axis!r} is not an axis of rank {x.ndim}"
    checked.require(known, "x", rule)
    return composite("softmax", x, axis=axis % x.ndim)
