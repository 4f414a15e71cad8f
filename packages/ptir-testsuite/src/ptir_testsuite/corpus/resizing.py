"""Calls of other sizes and ranks, made from one call by trying: its type rule says what is a call.

Which sizes of a call hang together is written nowhere. A *dimension* here is a smallest set of axis
sizes and of integers in attributes that can only grow together: both contracted axes of a product,
an axis and the limit of its slice. What is found for one call holds for all sizes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from ptir.ir.attributes import Attributes
from ptir.types import TensorType
from ptir_testsuite.corpus.variants import Template

Place = tuple[str | int, int]
"""An axis of the operand of a number, or an element of the attribute of a name (-1: itself)."""
Dimension = tuple[Place, ...]

PROBE: Final = 17  # what sizes grow by to see what belongs together; no sample is as large
WIDEST: Final = 12  # places up to which sets of them are tried
DEEPEST: Final = 4  # places of a set
MOST_ELEMENTS: Final = 300_000  # of an operand or result
FEW_ELEMENTS: Final = 16_000  # of those that get more axes


def is_call(template: Template, most: int = MOST_ELEMENTS) -> bool:
    """Whether the op takes the call, and nothing in it is too large to be judged."""
    found = template.results
    return found is not None and all(t.size <= most for t in (*template.types, *found))


def dimensions(template: Template) -> list[Dimension]:
    """The dimensions of a call; of attributes alone, those with which its results grow."""
    places = _places(template)
    if template.regions or len(places) > WIDEST:
        return []
    before = _elements(template)
    alone: list[set[Place]] = []
    growing: list[set[Place]] = []
    for count in range(1, DEEPEST + 1):
        for some in itertools.combinations(places, count):
            chosen = set(some)
            if any(other <= chosen for other in growing):
                continue
            larger = grown_by(template, some, PROBE)
            if not is_call(larger) or (_of_attributes(some) and _elements(larger) <= before):
                continue
            if larger.results != template.results:
                growing.append(chosen)
            elif not any(other <= chosen for other in (*alone, *growing)):
                alone.append(chosen)
    return [tuple(p for p in places if p in one) for one in (*growing, *alone)]


def _of_attributes(places: Iterable[Place]) -> bool:
    return not any(isinstance(holder, int) for holder, _ in places)


def _elements(template: Template) -> int:
    return sum(type.size for type in template.results or ())


def _places(template: Template) -> list[Place]:
    """Where sizes stand, or may stand, in a call; of 1 only where there are no others."""
    found: list[tuple[Place, int]] = [
        ((number, axis), n)
        for number, type in enumerate(template.types)
        for axis, n in enumerate(type.shape)
    ]
    for name, value in template.attributes.items():
        if isinstance(value, tuple):
            found += [((name, at), n) for at, n in enumerate(value) if type(n) is int]
        elif type(value) is int:
            found.append(((name, -1), value))
    large = [place for place, n in found if n > 1]
    return large or [place for place, n in found if n == 1]


def size_of(template: Template, place: Place) -> int:
    """What stands at a place."""
    holder, at = place
    if isinstance(holder, int):
        return template.types[holder].shape[at]
    value = template.attributes[holder]
    found: int = value if at < 0 else value[at]
    return found


def grown_by(template: Template, places: Iterable[Place], more: int) -> Template:
    """The call with ``more`` added at all of the places."""
    types, attributes = list(template.types), dict(template.attributes)
    for holder, at in places:
        if isinstance(holder, int):
            shape = types[holder].shape
            types[holder] = types[holder].with_shape(_added(shape, at, more))
        else:
            value = attributes[holder]
            attributes[holder] = value + more if at < 0 else _added(value, at, more)
    return replace(template, types=tuple(types), attributes=Attributes(attributes))


def _added(values: Sequence[int], at: int, more: int) -> tuple[int, ...]:
    return (*values[:at], values[at] + more, *values[at + 1 :])


def resized(template: Template, dimension: Dimension, size: int) -> Template | None:
    """The call with its dimension of ``size``; of several places the least has it."""
    least = min(size_of(template, place) for place in dimension)
    found = grown_by(template, dimension, size - least)
    return found if is_call(found) else None


def multiplied(template: Template, factor: int) -> Iterator[Template]:
    """The call with axis sizes times ``factor``, all of them, or those of one axis number."""
    ranks = max((t.rank for t in template.types), default=0)
    for axis in (None, *range(ranks)):
        shapes = [
            tuple(n * factor if axis in (None, at) else n for at, n in enumerate(t.shape))
            for t in template.types
        ]
        types = tuple(t.with_shape(s) for t, s in zip(template.types, shapes, strict=True))
        found = replace(template, types=types)
        if found.types != template.types and is_call(found):
            yield found


# --- ranks ---


def rank_of(template: Template) -> int:
    """The highest rank of an operand or result."""
    return max((t.rank for t in (*template.types, *(template.results or ()))), default=0)


MOST_CHOICES: Final = 1000  # combinations that are looked at for one more axis


def with_axis(template: Template, size: int, front: bool) -> Template | None:
    """The call with one more axis of ``size`` before the others or after them.

    What becomes of each operand and attribute is found by trying: an operand gets the axis, or one
    more element where it has an element for every axis, or stays; so do attributes, of which those
    that are axis numbers move on.
    """
    if template.regions:
        return None
    names = list(template.attributes)
    options = [list(_attribute_grown(template.attributes[n], size, front)) for n in names]
    operands = itertools.product(*(list(_operand_grown(t, size, front)) for t in template.types))
    empty = any(not t.size for t in template.results or ())
    choices = ((types, values) for types in operands for values in itertools.product(*options))
    for types, values in itertools.islice(choices, MOST_CHOICES):
        attributes = Attributes(dict(zip(names, values, strict=True)))
        found = replace(template, types=types, attributes=attributes)
        larger = is_call(found, FEW_ELEMENTS) and rank_of(found) > rank_of(template)
        if larger and (empty or all(t.size for t in found.results or ())):
            return found
    return None


def _operand_grown(type: TensorType, size: int, front: bool) -> Iterator[TensorType]:
    yield type.with_shape((size, *type.shape) if front else (*type.shape, size))
    yield type
    if type.rank == 1:
        yield type.with_shape((type.shape[0] + 1,))


def _attribute_grown(value: Any, size: int, front: bool) -> Iterator[Any]:
    """What an attribute may become, what is likely first."""
    if type(value) is int:
        yield from (value + 1, value) if front else (value,)
    elif isinstance(value, tuple) and all(type(n) is int for n in value):
        moved = tuple(n + 1 for n in value)
        if front:
            yield from ((size, *value), (0, *moved), moved, (1, *value), (0, *value), value)
        else:
            yield from (value, (*value, len(value)), (*value, size), (*value, 1), (*value, 0))
    else:
        yield value


def stretched(template: Template) -> Iterator[Template]:
    """The call with an axis of one operand of size 1 where that gives results of the same types.

    What broadcasts repeats such an axis; what folds it or looks places up in it has but one.
    """
    for number, type in enumerate(template.types):
        for axis, n in enumerate(type.shape):
            if n == 1:
                continue
            types = list(template.types)
            types[number] = type.with_shape((*type.shape[:axis], 1, *type.shape[axis + 1 :]))
            found = replace(template, types=tuple(types))
            if is_call(found) and found.results == template.results:
                yield found
