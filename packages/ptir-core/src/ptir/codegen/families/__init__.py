"""**The kernel families**, in the order in which they are asked for a hero: one row each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ptir.codegen.families.recurrence import claim as recurrence
from ptir.codegen.schedules.family import Family, whole
from ptir.codegen.weights import experts, rounded
from ptir.codegen.weights.filters import NAMES, STORED
from ptir.ops.rounded import BYTES, IMAGES, PAIRS, ROUND, WINDOWS
from ptir.ops.schedules import ATTENTION_SPLIT
from ptir.types import F32

if TYPE_CHECKING:
    from ptir.codegen.fusion.graph import Graph
    from ptir.codegen.schedules.kernel import Fusion

_ROWS: Final = (
    Family(
        "attention",
        "attention.serial",
        composites={"attention": whole(F32), ATTENTION_SPLIT: whole(F32)},
        emit="attention.tiles",
        emit_cooperative="attention.mma",
        measured=("coop",),
    ),
    Family(
        "cache",
        "cache.serial",
        composites={"cache_update": whole(*STORED)},
        emit_cooperative="cache.serial",
    ),
    Family(
        "convolution",
        "convolution.match",
        ops=("dot_general",),
        composites=dict.fromkeys(NAMES, whole(*STORED)),
        emit="convolution.emit",
        emit_cooperative="convolution.cooperative",
        prologue="convolution.produced",
    ),
    Family(
        "byte_convolution",
        "convolution.bytes",
        composites={WINDOWS: rounded.refusal},
        materialized="convolution.bytes",
    ),
    Family(
        "linear",
        "linear.match",
        ops=("dot_general",),
        composites={BYTES: rounded.refusal, PAIRS: rounded.refusal},
        emit_cooperative="linear.match",
        prologue="linear.match",
        materialized="linear.match",
        panels=True,
        measured=("serial", "coop"),
    ),
    Family(
        "experts",
        "experts.match",
        composites=dict.fromkeys((experts.DENSE, experts.WORDS), experts.refusal),
        emit="experts.serial",
        emit_cooperative="experts.cooperative",
        materialized="experts.match",
    ),
    Family(
        "recurrence",
        "recurrence.match",
        composites={recurrence.RULE: recurrence.refusal},
        emit="recurrence.serial",
        emit_cooperative="recurrence.cooperative",
    ),
    Family(
        "rounding",
        "rounding.serial",
        composites={ROUND: rounded.refusal},
        inlined="rounding.serial",
    ),
    Family("image_rounding", "rounding.images", composites={IMAGES: rounded.refusal}),
    Family("matmul", "matmul.serial", ops=("dot_general",), emit_cooperative="matmul.serial"),
    Family("random", "random.serial", ops=("rng_bits",), emit_cooperative="random.serial"),
    Family(
        "row_reduction",
        "reduction.rows",
        ops=("reduce", "arg_max"),
        emit_cooperative="reduction.rows_cooperative",
        measured=("coop",),
    ),
    Family(
        "reduce",
        "reduction.elements",
        ops=("reduce", "arg_max", "reduce_window"),
        emit_cooperative="reduction.elements",
    ),
    Family(
        "sort",
        "sort.match",
        ops=("sort", "top_k"),
        emit="sort.serial",
        emit_cooperative="sort.cooperative",
    ),
    Family("cumulative", "scan.serial", ops=("cumulative",), emit_cooperative="scan.serial"),
    Family("scatter", "scatter.serial", ops=("scatter_reduce",), emit_cooperative="scatter.serial"),
    Family("map", "map.serial", ops=("constant",), emit_cooperative="map.serial"),
)

FAMILIES: Final[dict[str, Family]] = {family.name: family for family in _ROWS}


def stored(graph: Graph, value: int) -> Fusion:
    """The fusion that stores a value which no hero makes."""
    from ptir.codegen.families.map.serial import fusion_of

    return fusion_of(graph, value)
