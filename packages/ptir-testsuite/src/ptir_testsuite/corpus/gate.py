"""The gate's slice: few cases of each op that meet every need of it once, and some of the rest.

A whole run takes minutes to hours; a slice takes seconds, and is what runs before every change is
taken. ``NEEDS`` says what must be met. What a slice leaves out is taken in turn: the number of the
slice picks other cases among equals, and a share of those that are not needed.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import cache
from itertools import groupby
from typing import Any, Final, TypeVar

from ptir.types import DType, TensorType
from ptir_testsuite.corpus.case import Case
from ptir_testsuite.corpus.coverage import kind_of
from ptir_testsuite.corpus.derivation import Identified
from ptir_testsuite.corpus.pairs import paired, pairs_of

Need = Hashable

T = TypeVar("T", bound=Identified)

_SAMPLE: Final = re.compile(r"(sample \d+|wired) ?")

OF_A_DTYPE: Final = frozenset({"edges", "all combinations"})
"""Origins of values that are chosen by the dtype: its limits, its subnormal numbers, its NaNs."""

IN_TURN: Final = 24
"""Of the cases that no need asks for, a slice holds one in so many."""


def _first(case: Case) -> TensorType:
    """The first operand, or the result of a case without any."""
    return (*case.types, *case.results)[0]


def _kind(case: Case) -> str:
    return kind_of(_first(case).dtype)


def _dtypes(case: Case) -> Iterator[Need]:
    """Each dtype of each operand, together with that of the result: every cast there is."""
    result = case.results[0].dtype.name
    for place, type in enumerate(case.types):
        yield place, type.dtype.name, result


def _branch(value: Any) -> Hashable:
    """What of an attribute's value is a branch: a switch, a choice, a dtype, given or not."""
    exact = isinstance(value, bool | str | DType) or value is None
    return str(value) if exact else "given"


def _branches(case: Case) -> Iterator[Need]:
    """Each branch of each attribute with each kind of dtype."""
    for name, value in case.attributes.items():
        yield name, _branch(value), _kind(case)


def _pairs(case: Case) -> Iterator[Need]:
    """Each pair of the values that ``pairs.py`` lists for ops with several attributes."""
    listed = _listed(case.op)
    return (pair for pair in pairs_of(case.attributes) if pair in listed)


@cache
def _listed(op: str) -> frozenset[Need]:
    return frozenset(pair for row in paired(op) for pair in pairs_of(row.attributes))


def _wiring(case: Case) -> Iterator[Need]:
    """Each host layout, and each way of wiring operands to buffers."""
    yield case.layout
    yield case.form


def _values(case: Case) -> Iterator[Need]:
    """Each sample; each way of choosing values and sizes (edges, ties, a shape) with each kind.

    Where the values are those at the ends of a dtype, each dtype has ends of its own.
    """
    origin = case.origin if case.gives else _SAMPLE.sub("", case.origin)
    yield origin, _kind(case)
    if origin in OF_A_DTYPE:
        yield origin, _first(case).dtype.name, case.results[0].dtype.name


def _ranks(case: Case) -> Iterator[Need]:
    """Each rank, and each extent of a row's end: nothing, one, more than a vector, many."""
    first = _first(case)
    yield first.rank
    yield first.rank, min(first.size, 2), first.size > 64, first.size > 1000


NEEDS: Final[dict[str, Callable[[Case], Iterator[Need]]]] = {
    "dtypes": _dtypes,
    "branches": _branches,
    "pairs": _pairs,
    "wiring": _wiring,
    "values": _values,
    "ranks": _ranks,
}
"""What each op's cases in a slice must meet, where any case of it does."""


def needs_of(case: Case) -> frozenset[Need]:
    """All that a case meets."""
    return frozenset((name, need) for name, found in NEEDS.items() for need in found(case))


def sliced(cases: Iterable[Case], number: int) -> Iterator[Case]:
    """The cases of slice ``number``, in order; those of an op must stand side by side."""
    for _, mine in groupby(cases, lambda case: case.op):
        alike = list(mine)
        kept = {case.id for case in covering(alike, number)}
        kept |= {case.id for case in window(alike, number, IN_TURN)}
        yield from (case for case in alike if case.id in kept)


def covering(cases: Sequence[Case], number: int) -> list[Case]:
    """Few cases that together meet all that any of them meets; among equals the number decides."""
    left = sorted(cases, key=lambda case: _hash(case.id, number))
    meets = {case.id: needs_of(case) for case in cases}
    owed = frozenset().union(*meets.values())
    found: list[Case] = []
    while owed:
        best = max(left, key=lambda case: len(meets[case.id] & owed))
        found.append(best)
        owed -= meets[best.id]
    return found


def in_turn(one_in: int, of: Callable[[T], str]) -> Callable[[Sequence[T], int], Iterable[T]]:
    """What a slice holds of items that no need is written down for: one in so many, in turn.

    At least one of each name that ``of`` gives.
    """

    def kept(items: Sequence[T], number: int) -> Iterable[T]:
        few: set[str] = set()
        for _, alike in groupby(sorted(items, key=of), of):
            few |= {item.id for item in window(list(alike), number, one_in)}
        return (item for item in items if item.id in few)

    return kept


def everything(items: Sequence[T], number: int) -> Iterable[T]:
    """What a slice holds of items each of which is a need of its own: all of them."""
    return items


def window(items: Sequence[T], number: int, one_in: int) -> list[T]:
    """One in so many of the items, at least one: ``one_in`` numbers in a row meet all of them.

    Which stand side by side has nothing to do with the order in which they are derived.
    """
    shuffled = sorted(items, key=lambda item: _hash(item.id, 0))
    turns = min(one_in, len(shuffled))
    return shuffled[number % turns :: turns] if turns else []


def _hash(text: str, number: int) -> int:
    digest = hashlib.blake2b(f"{text} {number}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")
