"""The corpus: every case of every op record, derived without knowing any op by name.

For each op: its samples as they stand; awkward operands in all combinations where the op is
elementwise, and those beside which functions overflow or underflow; every dtype and attribute
branch with drawn values; other axis sizes; host layouts; shared buffers. The same records always
give the same cases with the same ids.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol

from ptir.ops import OPS
from ptir.ops.record import Op
from ptir.types import TensorType
from ptir_testsuite.corpus.case import Case, Form, make
from ptir_testsuite.corpus.edges import at_edges
from ptir_testsuite.corpus.layouts import LAYOUTS
from ptir_testsuite.corpus.pairs import paired
from ptir_testsuite.corpus.values import Draws, all_tuples, draw
from ptir_testsuite.corpus.variants import (
    Template,
    branches,
    dtype_variants,
    from_samples,
    sample_template,
    size_variants,
)
from ptir_testsuite.oracles import ORACLES
from ptir_testsuite.oracles.floats import Array

SHAPES: Final = ((), (0,), (1,), (2, 0, 3), (3, 5, 7), (1031,))
"""Shapes in which every elementwise op is tried; the last is more than a block of any size."""

SIZES_TRIED: Final = ("x17", "x3", "square", "empty", "ones")


def corpus(ops: Iterable[Op] | None = None) -> Iterator[Case]:
    """All cases of the ops (default: all that are defined), each id once, in a fixed order."""
    seen: set[str] = set()
    for op in OPS.values() if ops is None else ops:
        for case in cases_of(op):
            if case.id not in seen:
                seen.add(case.id)
                yield case


class Identified(Protocol):
    """Whatever has an id that changes with its content."""

    @property
    def id(self) -> str:
        """The id."""


def corpus_hash(cases: Iterable[Identified]) -> str:
    """A digest of the cases' ids: equal hashes mean equal corpora."""
    state = hashlib.blake2b(digest_size=16)
    for case in cases:
        state.update(f"{case.id}\n".encode())
    return state.hexdigest()


def cases_of(op: Op) -> Iterator[Case]:
    """The cases of one op; only its samples where nothing says what else it must give."""
    yield from sample_cases(op)
    if not judged(op):
        return
    templates = branches(op, from_samples(op))
    if "elementwise" in op.traits:
        yield from _elementwise(op, templates)
    else:
        yield from _shaped(op, templates)
    yield from _wired(op, templates)


def judged(op: Op) -> bool:
    """Whether an oracle says what calls beyond the samples must give."""
    return op.name in ORACLES


def sample_cases(op: Op) -> Iterator[Case]:
    """The samples of an op as they stand, with their literal results."""
    for number, sample in enumerate(op.samples):
        template = sample_template(op, number)
        arrays = [a.numpy() for a in sample.operands]
        gives = [a.numpy() for a in sample.gives]
        yield _case(template, arrays, gives=gives)


def _case(
    template: Template,
    arrays: Sequence[Array],
    origin: str = "",
    form: Form = "plain",
    layout: str = "dense",
    gives: Sequence[Array] = (),
) -> Case:
    text = f"{template.origin} {origin}".strip()
    given = template.attributes, text, template.regions, form, layout, gives
    return make(template.op, arrays, *given)


def drawn(template: Template, palette: str, *recipe: Any) -> list[Array]:
    """Operands with values from a palette, seeded by the call itself."""
    draws = Draws(template.op, template.types, template.attributes.text, palette, *recipe)
    reach = max((n for t in template.types for n in t.shape), default=1)
    kept = template.kept or (None,) * len(template.types)
    return [
        draw(t, palette, draws, reach) if k is None else k
        for t, k in zip(template.types, kept, strict=True)
    ]


# --- elementwise ops ---


def _elementwise(op: Op, templates: Sequence[Template]) -> Iterator[Case]:
    flat = [_reshaped(t, (1,)) for t in templates]
    variants: dict[Any, Template] = {}
    for template in flat:
        for variant in dtype_variants(op, template):
            variants.setdefault(variant.key, replace(variant, origin=""))
    for variant in variants.values():
        yield _case(variant, all_tuples(variant.types), "all combinations")
        beside = at_edges(variant.types)
        if beside is not None:
            yield _case(variant, beside, "edges")
        large = _reshaped(variant, (1031,))
        yield _case(large, drawn(large, "bits"), "large")
    for template in {t.key: t for t in flat}.values():
        for shape in SHAPES:
            shaped = replace(_reshaped(template, shape), origin="")
            yield _case(shaped, drawn(shaped, "awkward"), f"shape {list(shape)}")


def _reshaped(template: Template, shape: tuple[int, ...]) -> Template:
    return replace(template, types=tuple(t.with_shape(shape) for t in template.types))


# --- ops on shapes ---


def _shaped(op: Op, templates: Sequence[Template]) -> Iterator[Case]:
    """Samples with every kind of values in every size; their variants, which are many, in turn."""
    own = {t.key for t in from_samples(op)}
    seen: set[Any] = set()
    for template in templates:
        for variant in dtype_variants(op, template):
            if variant.key in seen:
                continue
            seen.add(variant.key)
            yield from _in_full(variant) if variant.key in own else _in_part(variant, len(seen))
            if not variant.types:
                yield from _long(variant)
    for number, template in enumerate(paired(op.name)):
        if template.key not in seen:
            yield from _valued(template, ("plain", "awkward") if number % 4 else ("ties",))


def _in_full(template: Template) -> Iterator[Case]:
    yield from _valued(template, ("plain", "awkward", "ties"))
    for change in SIZES_TRIED:
        for variant in size_variants(template, change):
            yield from _valued(variant, GROWN if change == "x17" else ("awkward",))


def _in_part(template: Template, turn: int) -> Iterator[Case]:
    """One kind of values, and one larger size of every third variant."""
    yield from _valued(template, (("plain", "awkward", "ties")[turn % 3],))
    if turn % 3 == 0:
        for variant in size_variants(template, "x17")[:1]:
            yield from _valued(variant, (GROWN[turn // 3 % 3],))


def _long(template: Template) -> Iterator[Case]:
    """What is made of nothing is long too: longer than a narrow dtype can count."""
    for variant in size_variants(template, "x600")[:1]:
        yield from _valued(variant, ("plain",))


GROWN: Final = ("plain", "ones", "ties")
"""The values of large operands: ones and ties are where narrow sums and unstable orders show."""


def _valued(template: Template, palettes: Sequence[str]) -> Iterator[Case]:
    for palette in palettes if template.types else ("plain",):
        yield _case(template, drawn(template, palette), palette)


# --- wiring ---


def _wired(op: Op, templates: Sequence[Template]) -> Iterator[Case]:
    """Host layouts, one input as several operands, two inputs in one buffer, kept operands."""
    for template in _typical(op, templates):
        arrays = drawn(template, "plain", "wired")
        for layout in LAYOUTS if template.types else ():
            yield _case(template, arrays, layout, layout=layout)
        if template.types:
            yield _case(template, arrays, "operand kept", "operand kept")
        if len(template.types) > 1 and len(set(template.types)) == 1:
            same = [arrays[0]] * len(arrays)
            yield _case(template, same, "one input", "one input")
            yield _case(template, same, "one buffer", "one buffer")


def _typical(op: Op, templates: Sequence[Template]) -> list[Template]:
    """One call per choice of dtypes, of the highest rank; elementwise ones as matrices."""
    if "elementwise" in op.traits:
        templates = [_reshaped(t, (4, 6)) for t in templates]
    found: dict[Any, Template] = {}
    for template in sorted(templates, key=lambda t: -_rank(t.types)):
        kinds = tuple(t.dtype for t in template.types)
        found.setdefault(kinds, replace(template, origin="wired"))
    return list(found.values())


def _rank(types: Sequence[TensorType]) -> int:
    return sum(t.rank for t in types)
