"""Conditions on whole numbers, as families ask them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from ptir.codegen.expressions.expr import Apply, Const, Coordinate, Expr
from ptir.codegen.expressions.index import Index
from ptir.types import BOOL, I32


def less(place: Index | Expr, limit: int | Expr) -> Expr:
    """Whether a place is below a limit."""
    left = Coordinate(I32, place) if isinstance(place, Index) else place
    return Apply(BOOL, "lt", left, Const(I32, limit) if isinstance(limit, int) else limit)


def all_of(conditions: Sequence[Expr]) -> Expr | None:
    """Whether all hold; None where there are none."""
    return reduce(lambda a, b: a & b, conditions) if conditions else None
