"""The greatest few elements of lines, with their places."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ptir.capture import Tensor, call_multi
from ptir.functional.arrays import arange
from ptir.functional.define import composite_multi, functional, implementation
from ptir.functional.indexing import take_along_axis
from ptir.ir.attributes import Attributes
from ptir.ops.record import type_error
from ptir.types import TensorType

BLOCKS: Final = (16, 8, 4, 2)
"""Into how many equal stretches a line is cut: the first that leaves ``SPARE`` times k in each."""
SPARE: Final = 2


@functional(
    "top_k", "the k greatest of the last axis, greatest first, and their places", "x[M...,N]"
)
def _top_k(x: Tensor, *, k: int) -> tuple[Tensor, Tensor]:
    values, places = call_multi("top_k", x, k=k)
    return values, places


def _count(size: int, k: int) -> int | None:
    fitting = (n for n in BLOCKS if size % n == 0 and size // n >= SPARE * k)
    return next(fitting, None)


def _has_blocks(types: Sequence[TensorType], attributes: Attributes) -> str | None:
    size, k = types[0].shape[-1], attributes["k"]
    if k == 0 or _count(size, k) is None:
        return f"{size} elements are no equal stretches of at least {SPARE} x {k}"
    return None


@implementation("top_k", "blocks", supports=_has_blocks, accuracy="exact")
def _top_k_blocks(x: Tensor, *, k: int) -> tuple[Tensor, Tensor]:
    """The greatest of each stretch of a line, side by side, then the greatest of those."""
    *lead, size = x.shape
    count = _count(size, k)
    assert count is not None
    values, places = call_multi("top_k", x.reshape(*lead, count, size // count), k=k)
    places = places + (arange(count) * (size // count)).reshape(count, 1)
    best, where = call_multi("top_k", values.reshape(*lead, count * k), k=k)
    return best, take_along_axis(places.reshape(*lead, count * k), where, axis=-1)


def top_k(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The ``k`` greatest of the last axis, greatest first, and their i32 places.

    Of equal elements the first comes first; NaN comes last. Raises ``TypeRuleError``.
    """
    if not isinstance(x, Tensor):
        kind = type(x).__name__
        raise type_error("top_k", (), f"x is {kind}, not a Tensor; make one with ptir.tensor(x)")
    values, places = composite_multi("top_k", x, k=k)
    return values, places
