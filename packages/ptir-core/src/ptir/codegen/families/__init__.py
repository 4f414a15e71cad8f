"""**The kernel families**, in the order in which they are asked for an anchor: one row each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ptir.codegen.schedules.family import Family, whole
from ptir.codegen.weights import rounded
from ptir.codegen.weights.filters import NAME, STORED
from ptir.ops.rounded import BYTES, PAIRS, ROUND
from ptir.types import F32

if TYPE_CHECKING:
    from ptir.codegen.fusion.graph import Graph
    from ptir.codegen.schedules.kernel import Group

_ROWS: Final = (
    Family(
        "attention",
        "attention.serial",
        composites={"attention": whole(F32)},
        written="attention.tiles",
        coop="attention.matrices",
        measured=("coop",),
    ),
    Family(
        "cache", "cache.serial", composites={"cache_update": whole(*STORED)}, coop="cache.serial"
    ),
    Family(
        "convolution",
        "convolution.match",
        ops=("dot_general",),
        composites={NAME: whole(*STORED)},
        written="convolution.serial",
        coop="convolution.coop",
    ),
    Family(
        "product",
        "matmul.match",
        ops=("dot_general",),
        composites={BYTES: rounded.refusal, PAIRS: rounded.refusal},
        coop="matmul.match",
        prologue="matmul.match",
        materialized="matmul.match",
        measured=("serial", "coop"),
    ),
    Family(
        "rounding",
        "rounding.serial",
        composites={ROUND: rounded.refusal},
        inlined="rounding.serial",
    ),
    Family("dot", "dot.serial", ops=("dot_general",), coop="dot.serial"),
    Family("random", "random.serial", ops=("rng_bits",), coop="random.serial"),
    Family(
        "rows",
        "reduction.rows",
        ops=("reduce", "arg_max"),
        coop="reduction.rows_coop",
        measured=("coop",),
    ),
    Family(
        "fold", "reduction.fold", ops=("reduce", "arg_max", "reduce_window"), coop="reduction.fold"
    ),
    Family("order", "sort.order", ops=("sort", "top_k"), written="sort.serial", coop="sort.coop"),
    Family("running", "scan.serial", ops=("cumulative",), coop="scan.serial"),
    Family("scatter", "scatter.serial", ops=("scatter_reduce",), coop="scatter.serial"),
    Family("map", "map.serial", ops=("constant",), coop="map.serial"),
)

FAMILIES: Final[dict[str, Family]] = {family.name: family for family in _ROWS}


def stored(graph: Graph, value: int) -> Group:
    """The group that stores a value which no anchor makes."""
    from ptir.codegen.families.map.serial import group

    return group(graph, value)
