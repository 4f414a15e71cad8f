"""What window ops share: their attributes, the rules of a geometry, and the taps of all windows.

The ops are in ``window_folds`` and ``window_patches``; ``sliding`` has the arithmetic of an axis.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from math import prod
from typing import Any, Final, NamedTuple

from ptir.ir.graph import Ref
from ptir.ops.movement import pad
from ptir.ops.movement import slice as slice_op
from ptir.ops.record import REQUIRED, Attribute, BadCall, Call, bad
from ptir.ops.sliding import WindowDimension, window_dimensions

MOST_TAPS: Final = 2**20
"""Taps of a window: decomposed, each of them is an instruction."""


class _Entries(NamedTuple):
    """An attribute with an integer, ``least`` or more, for each axis that windows slide along."""

    name: str
    least: int | None
    doc: str
    default: Any = None

    def said(self, call: Call, count: int, each: str) -> tuple[int, ...] | None:
        """What the call says, one entry per ``each``; None where it says nothing."""
        if call[self.name] is self.default:
            return None
        return call.integers(self.name, count, self.least, each)


_GEOMETRY: Final = (
    _Entries("window", 1, "taps of the window, one entry per {each}", REQUIRED),
    _Entries("strides", 1, "elements between the starts of windows; none: 1"),
    _Entries("low", None, "elements added before each axis; negative: removed; none: 0"),
    _Entries("high", None, "elements added after each axis; negative: removed; none: 0"),
    _Entries("base_dilation", 1, "distance of neighbours once spread; none: 1"),
    _Entries("window_dilation", 1, "elements between the taps of a window; none: 1"),
)


def geometry(each: str) -> tuple[Attribute, ...]:
    """The attributes of a window op, with one entry for ``each``."""
    return tuple(Attribute(e.name, e.doc.format(each=each), e.default) for e in _GEOMETRY)


def checked_dimensions(call: Call, sizes: Sequence[int], each: str) -> tuple[WindowDimension, ...]:
    """The geometry of a call over axes of these sizes; refuses one that breaks a rule."""
    given: dict[str, Any] = {e.name: e.said(call, len(sizes), each) for e in _GEOMETRY}
    found = window_dimensions(sizes, **given)
    sides = f"low {given['low']} and high {given['high']}"
    padded = tuple(dimension.padded for dimension in found)
    message = f"{sides} crop more than there is: the padded sizes are {padded}"
    call.require(all(size >= 0 for size in padded), "size", message)
    excess = call.types[0].with_shape(padded).excess
    call.require(not excess, "size", f"the padded operand {excess}: sizes {padded}")
    window = tuple(dimension.window for dimension in found)
    message = f"window {window} has {prod(window)} taps; at most {MOST_TAPS} are taken"
    call.require(prod(window) <= MOST_TAPS, "window", message)
    return found


def padded(operand: Ref, value: Ref, found: Sequence[WindowDimension], lead: int) -> Ref:
    """The operand spread and padded with ``value``; ``found`` are its axes from ``lead`` on."""
    before, after = (0,) * lead, (0,) * (operand.type.rank - lead - len(found))
    low = (*before, *(dimension.low for dimension in found), *after)
    high = (*before, *(dimension.high for dimension in found), *after)
    gaps = (*before, *(dimension.base_dilation - 1 for dimension in found), *after)
    if not any((*low, *high, *gaps)):
        return operand
    return pad(operand, value, low=low, high=high, interior=gaps)


def taps(operand: Ref, found: Sequence[WindowDimension], lead: int) -> Iterator[Ref]:
    """What each tap sees of a padded operand in every window; the window's last axis is fastest."""
    shape = operand.type.shape
    end = shape[lead + len(found) :]
    for numbers in itertools.product(*(range(dimension.window) for dimension in found)):
        seen = [dimension.tap(number) for dimension, number in zip(found, numbers, strict=True)]
        yield slice_op(
            operand,
            starts=(*(0 for _ in range(lead)), *(start for start, _ in seen), *(0 for _ in end)),
            limits=(*shape[:lead], *(limit for _, limit in seen), *end),
            strides=(*(1 for _ in range(lead)), *(s.stride for s in found), *(1 for _ in end)),
        )


def refused_entries(
    operand: str, rows: Sequence[tuple[str, Any, str]], **good: Any
) -> tuple[BadCall, ...]:
    """Bad calls with one wrong attribute each; a row is its name, its value and what is wrong."""
    return tuple(
        bad(name, operand, **(good | {name: value}), message=f"{name} {value!r} {wrong}")
        for name, value, wrong in rows
    )
