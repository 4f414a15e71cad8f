"""What sweeps owe to an op whose sizes are its own to choose, and whether they have it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from ptir.ops.record import Op
from ptir.types import TensorType
from ptir_testsuite.corpus.needs import COUNTED, EDGES, LARGE, NARROW, NEEDS, RANKS, Part
from ptir_testsuite.corpus.sweeps import sweeps_of
from ptir_testsuite.corpus.views import VIEWS
from ptir_testsuite.oracles import ORACLES
from ptir_testsuite.oracles.accuracy import bound_of

Owed = tuple[str, bool]
"""What it is, and whether it is there."""

FIXED: Final = {
    "constant": "its sizes are those of its literal, which is read and not computed",
    "regions": "what an op with regions takes is said by their bodies",
}
"""What owes no sizes and ranks of its own, and why."""


def swept(op: Op, least: int) -> Iterator[Owed]:
    """Sizes beside every edge, ranks from ``least`` on, views of every operand, and the rest."""
    if op.name not in ORACLES or op.regions or op.name in FIXED:
        return
    parts: dict[str, list[Part]] = {need: [] for need in NEEDS}
    for sweep in sweeps_of(op):
        parts[sweep.need] += sweep.parts
    sizes = {n for part in parts["edges"] for t in _types(part) for n in t.shape}
    for name, edge in EDGES.items():
        wanted = {edge - 1, edge, edge + 1}
        text = f"sizes beside {name}: {', '.join(map(str, sorted(wanted)))}"
        yield (text, wanted <= sizes)
    yield (f"a size of {LARGE}", LARGE in sizes)
    ranks = {t.rank for part in parts["ranks"] for t in _types(part)}
    yield from ((f"rank {n}", n in ranks) for n in RANKS if n >= least)
    yield from _viewed(op, parts["views"])
    if any(d.is_float for name in op.operands for d in op.dtypes[name]):
        yield ("NaN at every place of a line", bool(parts["nan"]))
    for dtype in (d for d in NARROW if op.operands and d in op.dtypes[op.operands[0]]):
        if bound_of(op, dtype).kind == "dot":
            seen = {part.template.types[0].dtype for part in parts["sums"]}
            yield (f"long sums of {dtype} that cancel", dtype in seen)
    if "creation" in op.traits:
        longest = max((t.size for part in parts["counted"] for t in _types(part)), default=0)
        yield (f"{COUNTED} elements", longest >= COUNTED)


def _types(part: Part) -> tuple[TensorType, ...]:
    return (*part.template.types, *(part.template.results or ()))


def _viewed(op: Op, parts: Sequence[Part]) -> Iterator[Owed]:
    """Every view of every operand that has axes; those of three axes where there are three."""
    met = {(place, part.view) for part in parts for place in part.viewed}
    for place, operand in enumerate(op.operands):
        ranks = [p.template.types[place].rank for p in parts if len(p.template.types) > place]
        for view in VIEWS:
            if max(ranks, default=1) > 2 or (view != "rotated" and max(ranks, default=1)):
                yield (f"{operand.rstrip('*')} {view}", (place, view) in met)
