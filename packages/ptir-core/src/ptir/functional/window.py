"""Arguments of functions that slide a window over images [N,H,W,C], checked and made explicit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ptir.functional.check import Checked
from ptir.ops.sliding import WindowDimension, window_dimensions

Pair = int | tuple[int, int]
Padding = Literal["same", "valid"] | Pair | tuple[tuple[int, int], tuple[int, int]]


@dataclass(frozen=True)
class Window:
    """How a window slides over H and W; every entry has one number for each of them."""

    window: tuple[int, int]
    strides: tuple[int, int]
    low: tuple[int, int]
    high: tuple[int, int]
    dilation: tuple[int, int]

    @property
    def named(self) -> dict[str, tuple[int, int]]:
        """Strides, padding and dilation as attributes of a composite."""
        return {
            "strides": self.strides,
            "low": self.low,
            "high": self.high,
            "dilation": self.dilation,
        }


def checked_window(
    checked: Checked,
    window: Pair,
    strides: Pair | None,
    padding: Padding,
    dilation: Pair = 1,
    *,
    sees_something: bool = False,
) -> Window:
    """The window of a call whose operand x is [N,H,W,C]; at least one window must fit.

    Strides that are None are the window's size. With ``sees_something`` padding may be no more
    than half of what the window spans. Raises ``TypeRuleError``.
    """
    taps = pair(checked, "window", window, 1)
    steps = taps if strides is None else pair(checked, "strides", strides, 1)
    dilations = pair(checked, "dilation", dilation, 1)
    sizes = checked["H"], checked["W"]
    bare = window_dimensions(sizes, taps, steps, window_dilation=dilations)
    low, high = _sides(checked, padding, bare)
    padded = window_dimensions(sizes, taps, steps, low, high, window_dilation=dilations)
    for axis, dimension in zip("HW", padded, strict=True):
        sides = f"padding {dimension.low} and {dimension.high}"
        message = (
            f"{axis} {dimension.size} with {sides} is smaller than the window, {dimension.span}"
        )
        checked.require(dimension.count > 0, "x", message)
        half = f"{sides} of {axis} is more than half the window, {dimension.span}"
        wide = max(dimension.low, dimension.high) > dimension.span // 2
        checked.require(not (sees_something and wide), "x", half)
    return Window(taps, steps, low, high, dilations)


def pair(checked: Checked, name: str, value: object, least: int) -> tuple[int, int]:
    """One integer for H and one for W; a single one stands for both."""
    both = value if isinstance(value, tuple | list) else (value, value)
    good = len(both) == 2 and all(_whole(entry, least) for entry in both)
    rule = f"an integer of at least {least}, or one for H and one for W"
    checked.require(good, "", f"{name} is {value!r}; it must be {rule}")
    return int(both[0]), int(both[1])


def _whole(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _sides(
    checked: Checked, padding: Padding, bare: tuple[WindowDimension, ...]
) -> tuple[tuple[int, int], tuple[int, int]]:
    """What is added before and after H and W."""
    if padding == "valid":
        return (0, 0), (0, 0)
    if padding == "same":
        total = [_same(dimension) for dimension in bare]
        low = (total[0] // 2, total[1] // 2)
        return low, (total[0] - low[0], total[1] - low[1])
    rows = padding if isinstance(padding, tuple | list) else (padding, padding)
    sides = [row if isinstance(row, tuple | list) else (row, row) for row in rows]
    good = len(sides) == 2 and all(len(s) == 2 and all(_whole(n, 0) for n in s) for s in sides)
    rule = "an integer of at least 0, (H, W), ((top, bottom), (left, right)), 'same' or 'valid'"
    checked.require(good, "", f"padding is {padding!r}; it must be {rule}")
    (top, bottom), (left, right) = sides
    return (top, left), (bottom, right)


def _same(dimension: WindowDimension) -> int:
    """The padding with which there are size / stride windows, rounded up."""
    count = -(-dimension.size // dimension.stride)
    return max(0, (count - 1) * dimension.stride + dimension.span - dimension.size)
