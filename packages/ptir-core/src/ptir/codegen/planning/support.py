"""What the generator can compile: the capability predicate of every kernel-level backend."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from ptir.backend.contract import OpQuery
from ptir.backend.control import CONTROL
from ptir.backend.kernel import Traits
from ptir.codegen.expressions.elementwise import ELEMENTWISE
from ptir.codegen.expressions.movement import MOVEMENT
from ptir.codegen.families import FAMILIES
from ptir.types import F64

ANCHORS: Final = frozenset(op for family in FAMILIES.values() for op in family.ops)
"""The ops that are heroes of a family."""
COMPOSITES: Final = {n: r for family in FAMILIES.values() for n, r in family.composites.items()}
"""The composites that are taken whole, and when not; all others are fused from their lowerings."""


def refusal(query: OpQuery, traits: Traits, dots: Collection[str] = ()) -> str | None:
    """Why the generator cannot compile one op, or None; ``dots`` are a dialect's dot products."""
    if query.is_composite and query.name not in COMPOSITES:
        return f"{query.name} is fused from its lowering"
    for type in (*query.operands, *query.results):
        if type.dtype == F64 and not traits.has_f64:
            return "the device has no f64"
    return COMPOSITES[query.name](query, dots) if query.is_composite else _op(query)


def _op(query: OpQuery) -> str | None:
    if query.op in CONTROL:
        return None
    if query.op not in ELEMENTWISE and query.op not in MOVEMENT and query.op not in ANCHORS:
        return f"{query.op} has no kernel family yet"
    return None
