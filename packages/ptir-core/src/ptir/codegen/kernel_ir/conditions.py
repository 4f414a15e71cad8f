"""Conditions of kernels: comparisons of whole numbers, and several of them at once."""

from __future__ import annotations

from collections.abc import Sequence

from ptir.codegen.expr import Apply, Const, Coordinate, Expr
from ptir.codegen.index import Index
from ptir.types import BOOL, I32


def less(place: Index | Expr, limit: int | Expr) -> Expr:
    """Whether a whole number is below a limit."""
    below = Coordinate(I32, place) if isinstance(place, Index) else place
    return Apply(BOOL, "lt", below, Const(I32, limit) if isinstance(limit, int) else limit)


def all_of(conditions: Sequence[Expr]) -> Expr | None:
    """Whether all conditions hold; None where there are none."""
    if len(conditions) < 2:
        return conditions[0] if conditions else None
    return Apply(BOOL, "and", *conditions)
