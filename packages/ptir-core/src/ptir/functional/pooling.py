"""Pooling over images [N,H,W,C]: the greatest element or the average of each window."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ptir.capture import Tensor, call
from ptir.functional.check import Checked
from ptir.functional.define import composite, functional, implementation
from ptir.functional.window import Padding, Pair, checked_window
from ptir.ir.attributes import Attributes, Literal
from ptir.ops.signature import Measure
from ptir.ops.sliding import window_dimensions
from ptir.types import TensorType

Two = tuple[int, int]


def _reduce(
    kind: str, x: Tensor, window: Two, strides: Two, low: Two, high: Two, dilation: Two
) -> Tensor:
    """``reduce_window`` over H and W."""
    return call(
        "reduce_window",
        x,
        kind=kind,
        window=(1, *window, 1),
        strides=(1, *strides, 1),
        low=(0, *low, 0),
        high=(0, *high, 0),
        window_dilation=(1, *dilation, 1),
    )


_IMAGES: Final = "x[N,H,W,C]"
_WINDOW: Final[dict[str, Measure]] = {
    "KH": lambda types, attributes: attributes["window"][0],
    "KW": lambda types, attributes: attributes["window"][1],
}


@functional("max_pool2d", "the greatest element of each window", _IMAGES, **_WINDOW)
def _max_pool2d(
    x: Tensor, *, window: Two, strides: Two, low: Two, high: Two, dilation: Two
) -> Tensor:
    return _reduce("max", x, window, strides, low, high, dilation)


@functional("avg_pool2d", "the average of each window", _IMAGES, **_WINDOW)
def _avg_pool2d(
    x: Tensor, *, window: Two, strides: Two, low: Two, high: Two, count_include_pad: bool
) -> Tensor:
    total = _reduce("sum", x, window, strides, low, high, (1, 1))
    return _averaged(total, x, window, strides, low, high, count_include_pad)


def _averaged(
    total: Tensor,
    x: Tensor,
    window: Two,
    strides: Two,
    low: Two,
    high: Two,
    count_include_pad: bool,
) -> Tensor:
    """Sums of windows over x, divided by how many elements count."""
    if count_include_pad or not any((*low, *high)):
        return total / float(window[0] * window[1])
    rows, columns = (
        dimension.seen for dimension in window_dimensions(x.shape[1:3], window, strides, low, high)
    )
    table = [[[float(row * column)] for column in columns] for row in rows]
    return total / _constant(table)


def _constant(table: list[list[list[float]]]) -> Tensor:
    import numpy as np

    return call("constant", value=Literal.of(np.array(table, np.float32)))


def _in_turn(
    kind: str, x: Tensor, window: Two, strides: Two, low: Two, high: Two, dilation: Two
) -> Tensor:
    """``_reduce`` along W, and of that along H."""
    (down, across), (step_h, step_w), (space_h, space_w) = window, strides, dilation
    top, bottom = low[0], high[0]
    rows = _reduce(kind, x, (1, across), (1, step_w), (0, low[1]), (0, high[1]), (1, space_w))
    return _reduce(kind, rows, (down, 1), (step_h, 1), (top, 0), (bottom, 0), (space_h, 1))


def _fewer_in_turn(types: Sequence[TensorType], attributes: Attributes) -> str | None:
    """Why windows are folded in turn: where they lie one apart and a third less is compared.

    With less to save, what W leaves for H, which goes through memory, costs more than it gains.
    """
    down, across = attributes["window"]
    at_once, in_turn = down * across, across + down
    if attributes["strides"] != (1, 1) or 3 * in_turn > 2 * at_once:
        return None
    return f"{in_turn} comparisons for a window of {down} x {across}, not {at_once}"


@implementation("max_pool2d", "separable", accuracy="exact", preferred=_fewer_in_turn)
def _max_pool2d_separable(
    x: Tensor, *, window: Two, strides: Two, low: Two, high: Two, dilation: Two
) -> Tensor:
    """Along W, then along H: KH + KW comparisons for a window instead of KH x KW."""
    return _in_turn("max", x, window, strides, low, high, dilation)


@implementation("avg_pool2d", "separable")
def _avg_pool2d_separable(
    x: Tensor, *, window: Two, strides: Two, low: Two, high: Two, count_include_pad: bool
) -> Tensor:
    """Along W, then along H: KH + KW additions for a window instead of KH x KW."""
    total = _in_turn("sum", x, window, strides, low, high, (1, 1))
    return _averaged(total, x, window, strides, low, high, count_include_pad)


def max_pool2d(
    x: Tensor,
    window: Pair,
    *,
    strides: Pair | None = None,
    padding: Padding = "valid",
    dilation: Pair = 1,
) -> Tensor:
    """The greatest element of each window over H and W of x f32[N,H,W,C]; NaN propagates.

    Window, strides (the window's size unless given) and dilation are one number, or one for H and
    one for W. Padding is -inf, at most half the window, and given as for ``conv2d``. Raises
    ``TypeRuleError``.
    """
    checked = Checked("max_pool2d", _IMAGES, x=x)
    over = checked_window(checked, window, strides, padding, dilation, sees_something=True)
    return composite("max_pool2d", x, window=over.window, **over.named)


def avg_pool2d(
    x: Tensor,
    window: Pair,
    *,
    strides: Pair | None = None,
    padding: Padding = "valid",
    count_include_pad: bool = True,
) -> Tensor:
    """The average of each window over H and W of x f32[N,H,W,C].

    Arguments are those of ``max_pool2d``. Padding counts as zeros; with ``count_include_pad`` off
    it does not count, and the average is over the elements of x that a window sees. Raises
    ``TypeRuleError``.
    """
    checked = Checked("avg_pool2d", _IMAGES, x=x)
    known = isinstance(count_include_pad, bool)
    shown = f"count_include_pad is {count_include_pad!r}; it must be True or False"
    checked.require(known, "", shown)
    over = checked_window(checked, window, strides, padding, sees_something=True)
    return composite(
        "avg_pool2d",
        x,
        window=over.window,
        strides=over.strides,
        low=over.low,
        high=over.high,
        count_include_pad=count_include_pad,
    )
