"""What sweeps are for: rows of calls of one op, over sizes, ranks, views, places of NaN, long sums.

Each row of ``NEEDS`` says which calls are made of an op's own, and in which dtypes; it knows no op.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final

from ptir.ops import OPS
from ptir.ops.record import Op
from ptir.types import DTYPES, DType
from ptir_testsuite.corpus.resizing import (
    dimensions,
    multiplied,
    rank_of,
    resized,
    size_of,
    stretched,
    with_axis,
)
from ptir_testsuite.corpus.variants import Template, branches, dtype_variants, from_samples
from ptir_testsuite.corpus.views import REPEATING, VIEWS, view_of
from ptir_testsuite.oracles.accuracy import bound_of

EDGES: Final = {"a vector": 16, "a tile": 64, "a group": 256, "a chunk": 1024}
"""Sizes at which schedules change; tried are they and the sizes beside them."""
LARGE: Final = 5003
SIZES: Final = (*(n + d for n in EDGES.values() for d in (-1, 0, 1)), LARGE)
BESIDE: Final = tuple(n + 1 for n in EDGES.values())
"""The sizes of an op's further calls: those that leave a rest of one."""
MOST_PARTS: Final = 24  # calls of a program
FACTORS: Final = (15, 16, 17, 33)
"""What sizes are multiplied by where they cannot grow by one, as groups of a quantized axis."""
RANKS: Final = range(7)
MOST_OF_A_RANK: Final = 4
AXES: Final = (3, 2)  # sizes of the axes that are added, in turn
LINE: Final = 47  # a NaN at each of its places: two vectors, and a tail of all lanes but one
SUM: Final = 520  # terms of a long sum: twice 256 and a few
COUNTED: Final = (1 << 18) + 5
"""More elements made of nothing than 16 bits count blocks of four."""
VIEWED: Final = 17  # the axes of what is read through views
PLAIN: Final = tuple(DTYPES[name] for name in ("f32", "i32", "u32", "bool"))
"""The dtypes that attributes of a sweep have."""
ALL: Final = tuple(dict.fromkeys((*PLAIN, *DTYPES.values())))
"""The dtypes that operands of a sweep have: the first of these that the op takes."""
NARROW: Final = tuple(DTYPES[name] for name in ("f16", "bf16"))


@dataclass(frozen=True)
class Part:
    """One call of a sweep: which values its operands have, and which come by which view."""

    template: Template
    palette: str = "plain"
    view: str = ""
    viewed: frozenset[int] = frozenset()

    @property
    def key(self) -> Any:
        """What makes two parts the same."""
        return self.template.key, self.palette, self.view, self.viewed


# --- the calls of an op ---


@cache
def parts_of(name: str, _: int) -> dict[str, tuple[tuple[Part, ...], ...]]:
    """By need, the programs of an op; without those that there are none of."""
    op, found = OPS[name], dict[str, tuple[tuple[Part, ...], ...]]()
    for need, row in NEEDS.items():
        parts: dict[Any, Part] = {}
        for plain in row.plain:
            for turn, templates in enumerate(_groups(op, plain)):
                parts |= {p.key: p for p in row.parts(op, templates, turn == 0)}
        if parts:
            every = tuple(parts.values())
            starts = range(0, len(every), MOST_PARTS)
            found[need] = tuple(every[start : start + MOST_PARTS] for start in starts)
    return found


def _groups(op: Op, plain: Sequence[DType]) -> list[list[Template]]:
    """The op's calls in the plainest dtypes, a list for each choice of its attributes.

    Attributes that are dtypes are choices too, among the plain ones.
    """
    groups: dict[Any, dict[Any, Template]] = {}
    least: dict[Any, int] = {}
    for variant in _variants(op.name, id(op)):
        chosen = _chosen(op, variant)
        if any(isinstance(d, DType) and d not in plain[: len(PLAIN)] for d in chosen):
            continue
        if any(t.dtype not in plain for t in variant.types):
            continue
        worth = sum(plain.index(t.dtype) for t in variant.types)
        if worth < least.get(chosen, worth + 1):
            least[chosen], groups[chosen] = worth, {}
        if worth == least[chosen]:
            groups[chosen].setdefault(variant.key, replace(variant, origin=""))
    return [list(group.values()) for group in groups.values()]


@cache
def _variants(name: str, _: int) -> tuple[Template, ...]:
    """The op's calls in all dtypes."""
    op = OPS[name]
    templates = branches(op, from_samples(op))
    return tuple(variant for t in templates for variant in dtype_variants(op, t))


def _chosen(op: Op, template: Template) -> tuple[Any, ...]:
    choices = [template.attributes[a.name] for a in op.attributes if a.choices]
    return (*choices, *(v for v in template.attributes.values() if isinstance(v, DType)))


def _typical(templates: Sequence[Template]) -> list[Template]:
    """Two calls on matrices, and one of the next higher rank; where there are none, the first."""
    full = [t for t in templates if all(x.size > 1 for x in (*t.types, *(t.results or ())))]
    flat = [t for t in full if rank_of(t) == 2][:2]
    deep = sorted((t for t in full if rank_of(t) > 2), key=rank_of)[:1]
    return [*flat, *deep] or full[:1] or list(templates)[:1]


def _elementwise(op: Op) -> bool:
    return "elementwise" in op.traits


def _of_shape(template: Template, shape: tuple[int, ...]) -> Template:
    return replace(template, types=tuple(t.with_shape(shape) for t in template.types))


def _edges(op: Op, templates: Sequence[Template], first: bool) -> Iterator[Part]:
    if _elementwise(op):
        sizes = SIZES if first else BESIDE
        yield from (Part(_of_shape(templates[0], (size,)), "cycle") for size in sizes)
        return
    for turn, template in enumerate(_typical(templates)[: None if first else 1]):
        found = False
        for dimension in dimensions(template):
            for size in SIZES if first and not turn else BESIDE:
                larger = resized(template, dimension, size)
                if larger is not None:
                    found = True
                    yield Part(larger, "places")
        for factor in () if found else FACTORS:
            yield from (Part(larger) for larger in multiplied(template, factor))


def _ranks(op: Op, templates: Sequence[Template], first: bool) -> Iterator[Part]:
    most = MOST_OF_A_RANK if first else 1
    if _elementwise(op):
        shapes = [tuple(AXES[n % 2] for n in range(rank)) for rank in RANKS]
        yield from (Part(_of_shape(templates[0], shape), "cycle") for shape in shapes)
        return
    below: list[Template] = []
    for rank in RANKS:
        sizes = itertools.product(below, (True, False))
        grown = [with_axis(t, AXES[rank % 2], front) for t, front in sizes]
        own = [t for t in templates if rank_of(t) == rank]
        found = {t.key: t for t in (*own[: (most + 1) // 2], *grown) if t is not None}
        below = list(found.values())[:most]
        for template in below:
            yield Part(template)
            thin = itertools.islice(stretched(template), 2) if first else ()
            yield from (Part(one) for one in thin)


def _views(op: Op, templates: Sequence[Template], first: bool) -> Iterator[Part]:
    names = VIEWS if first else ("transposed", "inner")
    if _elementwise(op):
        shapes = ((VIEWED, 2 * VIEWED + 1), (5, 3, VIEWED))[: None if first else 1]
        templates = [_of_shape(templates[0], shape) for shape in shapes]
    else:
        found = _typical(templates)[: None if first else 1]
        templates = [_all_of(t, VIEWED if rank_of(t) < 3 else 5) for t in found]
    for template in templates:
        kept = template.kept or (None,) * len(template.types)
        free = [n for n, own in enumerate(kept) if own is None]
        for name in names:
            fitting = [n for n in free if view_of(name, template.types[n]) is not None]
            alone = [frozenset((n,)) for n in fitting] if name == "transposed" else []
            for viewed in dict.fromkeys((frozenset(fitting), *alone)):
                if viewed:
                    palette = "ties" if name in REPEATING else "cycle"
                    yield Part(template, palette, name, viewed)


def _all_of(template: Template, size: int) -> Template:
    """The call with all dimensions of operands of one size, as far as the op takes it."""
    for dimension in dimensions(template):
        if any(isinstance(holder, int) for holder, _ in dimension):
            template = resized(template, dimension, size) or template
    return template


def _nan(op: Op, templates: Sequence[Template], first: bool) -> Iterator[Part]:
    if not any(t.dtype.is_float for t in templates[0].types):
        return
    if _elementwise(op):
        yield Part(_of_shape(templates[0], (LINE,)), "nan")
        return
    few = [t for t in templates if rank_of(t) < 3 and not t.regions]
    for template in (*_typical(few), *[t for t in few if rank_of(t) == 1][:1]):
        yield Part(_all_of(template, LINE), "nan")


def _sums(op: Op, templates: Sequence[Template], first: bool) -> Iterator[Part]:
    dtype = templates[0].types[0].dtype if templates[0].types else None
    if dtype not in NARROW or bound_of(op, dtype).kind != "dot":
        return
    for template in _typical([t for t in templates if rank_of(t) < 3]):
        for dimension in dimensions(template):
            larger = resized(template, dimension, SUM)
            if larger is not None:
                yield Part(larger, "cancel")


def _counted(op: Op, templates: Sequence[Template], first: bool) -> Iterator[Part]:
    if "creation" not in op.traits or not first:
        return
    for template in _typical(templates)[:1]:
        for dimension in dimensions(template)[:1]:
            size = size_of(template, dimension[0])
            (result,) = template.results or ()
            larger = resized(template, dimension, -(-COUNTED * size // max(result.size, 1)))
            if larger is not None:
                yield Part(larger)


Parts = Callable[[Op, Sequence[Template], bool], Iterator[Part]]


@dataclass(frozen=True)
class Need:
    """What sweeps are for: which calls of a group, and in which dtypes. ``first``: more of them."""

    doc: str
    parts: Parts
    plain: Sequence[Sequence[DType]] = (ALL,)


NEEDS: Final[dict[str, Need]] = {
    "edges": Need("sizes beside the edges of schedules", _edges),
    "ranks": Need("every rank", _ranks),
    "views": Need("operands that are views", _views),
    "nan": Need("NaN at every place of a line", _nan),
    "sums": Need("long sums of 16-bit numbers that cancel", _sums, [(d, *PLAIN) for d in NARROW]),
    "counted": Need("more elements than 16 bits count", _counted),
}
"""Why an op has sweeps, and the calls in them."""
