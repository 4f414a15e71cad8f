"""What the generator can compile: the capability predicate of every kernel-level backend."""

from __future__ import annotations

from typing import Final

from ptir.backend.contract import OpQuery
from ptir.backend.kernel import Traits
from ptir.codegen.elementwise import ELEMENTWISE, exact_cast
from ptir.codegen.movement import MOVEMENT
from ptir.types import BF16, DTYPES, F16, F32, F64, DType

DTYPES_HELD: Final = frozenset(
    DTYPES[name] for name in ("bool", "i32", "u32", "f16", "bf16", "f32")
)
"""Element types that kernels load, store and compute with."""

COMPOSITES: Final = frozenset(("attention", "cache_update"))
"""Composites that are taken whole; every other one is fused from its lowering."""

HEROES: Final = frozenset(("constant", "reduce", "arg_max", "dot_general"))


def refusal(query: OpQuery, traits: Traits) -> str | None:
    """Why the generator cannot compile one op, or None."""
    if query.is_composite and query.name not in COMPOSITES:
        return f"{query.name} is fused from its lowering"
    held = DTYPES_HELD | ({F64} if traits.doubles else set())
    for type in (*query.operands, *query.results):
        if type.dtype not in held:
            return f"{type.dtype} has no kernels yet"
        if type.nbytes > traits.largest:
            return f"{type} is larger than the largest allocation of {traits.largest} bytes"
    return _composite(query) if query.is_composite else _op(query)


def _composite(query: OpQuery) -> str | None:
    floats = {t.dtype for t in query.operands if t.dtype.is_float}
    if floats != {F32}:
        return f"{query.name} is taken whole for f32 only"
    if not query.results[0].size or not all(t.size for t in query.operands):
        return f"{query.name} of nothing is left to its lowering"
    return None


def _op(query: OpQuery) -> str | None:
    if query.op not in ELEMENTWISE and query.op not in MOVEMENT and query.op not in HEROES:
        return f"{query.op} has no kernel family yet"
    if query.op == "cast" and not exact_cast(query.operands[0].dtype, query.results[0].dtype):
        return f"a cast from {query.operands[0].dtype} to {query.results[0].dtype} rounds twice"
    if query.op == "bitcast" and _is_short(query.operands[0].dtype, query.results[0].dtype):
        return "16-bit bitcasts have no kernels yet"
    return None


def _is_short(source: DType, target: DType) -> bool:
    return source != target and bool({source, target} & {F16, BF16})
