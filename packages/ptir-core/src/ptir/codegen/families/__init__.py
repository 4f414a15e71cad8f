"""**The kernel families**, in the order in which they are asked for an anchor: one row each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ptir.codegen import rounded
from ptir.codegen.family import Family, whole
from ptir.codegen.filters import NAME, STORED
from ptir.ops.rounded import BYTES, PAIRS, ROUND
from ptir.types import F32

if TYPE_CHECKING:
    from ptir.codegen.graph import Graph
    from ptir.codegen.kernel import Group

_ROWS: Final = (
    Family(
        "attention",
        "attention",
        composites={"attention": whole(F32)},
        coop="attention_matrices",
        measured=("coop",),
    ),
    Family("cache", "cache", composites={"cache_update": whole(*STORED)}, coop="cache"),
    Family(
        "convolution",
        "convolution",
        composites={NAME: whole(*STORED)},
        written="convolution_tiles",
        coop="convolution_coop",
    ),
    Family(
        "product",
        "product",
        ops=("dot_general",),
        composites={BYTES: rounded.refusal, PAIRS: rounded.refusal},
        coop="product",
        prologue="product",
        materialized="product",
        measured=("serial", "coop"),
    ),
    Family("rounding", "rounding", composites={ROUND: rounded.refusal}, inlined="rounding"),
    Family("dot", "dot", ops=("dot_general",), coop="dot"),
    Family("random", "random", ops=("rng_bits",), coop="random"),
    Family("rows", "rows", ops=("reduce", "arg_max"), coop="rows_coop", measured=("coop",)),
    Family("fold", "fold", ops=("reduce", "arg_max", "reduce_window"), coop="fold"),
    Family("order", "order", ops=("sort", "top_k"), written="sorting", coop="order_coop"),
    Family("running", "running", ops=("cumulative",), coop="running"),
    Family("scatter", "scatter", ops=("scatter_reduce",), coop="scatter"),
    Family("map", "elements", ops=("constant",), coop="elements"),
)

FAMILIES: Final[dict[str, Family]] = {family.name: family for family in _ROWS}


def stored(graph: Graph, value: int) -> Group:
    """The group that stores a value which no anchor makes."""
    from ptir.codegen.families.elements import group

    return group(graph, value)
