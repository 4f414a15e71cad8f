"""Derived parameters computed run by run along their first axis, where all at once is too much.

Rows of a packed weight come from rows of what is stored, so neither the stored weight nor its
packed form is in memory whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ptir.ir.graph import Ref, freeze, inline, reachable, source
from ptir.ir.program import Block
from ptir.params.store import MOST_RUNS
from ptir.passes.context import Derivation
from ptir.passes.ranges import NotByRanges, Ranges


@dataclass(frozen=True)
class StoredRange:
    """Places along an axis of a stored parameter, by its port."""

    port: str
    axis: int
    first: int
    end: int


@dataclass(frozen=True)
class Run:
    """Some of a derived parameter: what computes it, of which places of what is stored."""

    block: Block
    given: tuple[StoredRange, ...]

    @property
    def nbytes(self) -> int:
        """Bytes that there are at once while it is computed."""
        return sum(type.nbytes for type in (*self.block.inputs, *self.block.output_types))


@dataclass(frozen=True)
class DerivedRuns:
    """A derived parameter in runs, each made when it is asked for."""

    whole: Ref
    given: tuple[tuple[str, Ref], ...]
    """The stored parameters that it is computed from, by port."""
    places: tuple[tuple[int, int], ...]

    def __iter__(self) -> Iterator[Run]:
        return (_run(self.whole, self.given, first, end) for first, end in self.places)

    @property
    def nbytes(self) -> int:
        """Most bytes that there are at once: no run is larger than the first."""
        return next(iter(self)).nbytes


def runs_of(derived: Mapping[str, Derivation], name: str, largest: int) -> DerivedRuns | None:
    """``name`` in runs that take about ``largest`` bytes; None where one is enough, or must be."""
    given: list[tuple[str, Ref]] = []
    whole = _composed(derived, name, given)
    size = whole.type.shape[0] if whole.type.rank else 1
    total = whole.type.nbytes + sum(value.type.nbytes for _, value in given)
    count = min(size, MOST_RUNS, -(-total // max(1, largest)))
    if count < 2:
        return None
    each = -(-size // count)
    places = ((first, min(first + each, size)) for first in range(0, size, each))
    found = DerivedRuns(whole, tuple(given), tuple(places))
    try:
        next(iter(found))
    except NotByRanges:
        return None
    return found


def _composed(derived: Mapping[str, Derivation], name: str, given: list[tuple[str, Ref]]) -> Ref:
    """A derived parameter as a value of stored ones, which are added to ``given``."""
    derivation, operands = derived[name], list[Ref]()
    for port, type in zip(derivation.ports, derivation.block.inputs, strict=True):
        if port.name in derived:
            operands.append(_composed(derived, port.name, given))
            continue
        known = next((value for other, value in given if other == port.name), None)
        if known is None:
            known = source(type)
            given.append((port.name, known))
        operands.append(known)
    return inline(derivation.block, operands)[0]


def _run(whole: Ref, given: Sequence[tuple[str, Ref]], first: int, end: int) -> Run:
    """Places of the first axis; raises ``NotByRanges``."""
    names = {value.key: port for port, value in given}
    read: dict[StoredRange, Ref] = {}

    def leaf(value: Ref, axis: int, start: int, stop: int) -> Ref:
        place = StoredRange(names[value.key], axis, start, stop)
        if place not in read:
            shape = value.type.shape
            part = (*shape[:axis], stop - start, *shape[axis + 1 :])
            read[place] = source(value.type.with_shape(part))
        return read[place]

    made = Ranges(leaf).of(whole, 0, first, end)
    used = [*_untouched(made, given)]
    block = freeze([made], [*read.values(), *(value for _, value in used)])
    return Run(block, (*read, *(_all_of(port, value) for port, value in used)))


def _untouched(made: Ref, given: Sequence[tuple[str, Ref]]) -> Iterator[tuple[str, Ref]]:
    """Stored parameters that are read whole: a factor of all rows."""
    serials = {node.serial for node in reachable([made])}
    return ((port, value) for port, value in given if value.node.serial in serials)


def _all_of(port: str, value: Ref) -> StoredRange:
    return StoredRange(port, 0, 0, value.type.shape[0] if value.type.rank else 0)
