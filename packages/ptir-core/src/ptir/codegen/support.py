"""What the generator can compile: the capability predicate of every kernel-level backend."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from ptir.backend.contract import OpQuery
from ptir.backend.control import CONTROL
from ptir.backend.kernel import Traits
from ptir.codegen import rounded
from ptir.codegen.elementwise import ELEMENTWISE
from ptir.codegen.filters import NAME, STORED
from ptir.codegen.movement import MOVEMENT
from ptir.types import F32, F64
from ptir.weights.words import spans_words

COMPOSITES: Final = frozenset(("attention", "cache_update", NAME, *rounded.DOTS))
"""Composites that are taken whole; every other one is fused from its lowering."""

STORES: Final = {NAME: STORED, "cache_update": STORED}
"""The element types that a composite takes, where that is not f32 alone."""

HEROES: Final = frozenset(
    (
        *("constant", "reduce", "arg_max", "dot_general", "sort", "top_k"),
        *("reduce_window", "cumulative", "scatter_reduce", "rng_bits"),
    )
)


def refusal(query: OpQuery, traits: Traits, dots: Collection[str] = ()) -> str | None:
    """Why the generator cannot compile one op, or None; ``dots`` are a dialect's dot products."""
    if query.is_composite and query.name not in COMPOSITES:
        return f"{query.name} is fused from its lowering"
    for type in (*query.operands, *query.results):
        if type.dtype == F64 and not traits.doubles:
            return "the device has no f64"
    if query.is_composite and query.name in rounded.DOTS:
        return rounded.refusal(query, dots)
    return _composite(query) if query.is_composite else _op(query, traits)


def _composite(query: OpQuery) -> str | None:
    taken = STORES.get(query.name, (F32,))
    if any(t.dtype.is_float and t.dtype not in taken for t in query.operands):
        return f"{query.name} is taken whole for {', '.join(map(str, taken))} only"
    if not query.results[0].size or not all(t.size for t in query.operands):
        return f"{query.name} of nothing is left to its lowering"
    return None


def _op(query: OpQuery, traits: Traits) -> str | None:
    if query.op in CONTROL:
        return None
    if query.op not in ELEMENTWISE and query.op not in MOVEMENT and query.op not in HEROES:
        return f"{query.op} has no kernel family yet"
    if query.op == "dequantize" and spans_words(query.attributes["bits"]):
        return f"values of {query.attributes['bits']} bits may span two words; they are decomposed"
    return None
