"""Parts of the conformance suite's corpus, run on a target."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import gate
from ptir.backend.contract import Target
from ptir.ops import OPS
from ptir_testsuite.corpus.case import Case
from ptir_testsuite.corpus.derivation import corpus
from ptir_testsuite.corpus.models import model_runs
from ptir_testsuite.corpus.stored import stored
from ptir_testsuite.corpus.sweeps import sweeps
from ptir_testsuite.oracles.accuracy import Terms
from ptir_testsuite.running.execute import Setting
from ptir_testsuite.running.items import Item, composites, groups, in_slice, items, run_group
from ptir_testsuite.running.kinds.lifetime import lifetimes
from ptir_testsuite.running.kinds.refusals import refusals
from ptir_testsuite.running.outcomes import Row

T = TypeVar("T")


class ByOp(Mapping[str, list[Case]]):
    """The corpus by op; what nobody asks for is not derived, as all of it takes seconds."""

    def __init__(self) -> None:
        self._found: dict[str, list[Case]] = {}

    def __getitem__(self, op: str) -> list[Case]:
        if op not in self._found:
            self._found[op] = list(corpus([OPS[op]]))
        return self._found[op]

    def __iter__(self) -> Iterator[str]:
        return (name for name, op in OPS.items() if op.samples)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def in_turn(self, one_in: int) -> list[list[Case]]:
        """The cases of each op; in the gate of one op in so many, others for each slice."""
        return [self[op] for op in in_turn(list(self), one_in)]


def items_in_turn(one_in: int) -> list[Item]:
    """All items; in the gate what a slice holds of one op and one other in so many.

    Of sweeps, which take longest, a quarter: CI runs all on a generated backend.
    """
    if gate.seed() is None:
        return list(items(0))
    ops = in_turn(list(OPS.values()), one_in)
    others: list[Item] = [*composites(), *model_runs(), *lifetimes(), *stored()]
    long = in_turn(list(sweeps(ops)), 4)
    return part((*corpus(ops), *long, *refusals(ops), *in_turn(others, one_in)))


def outcomes(chosen: Iterable[Item], target: Target) -> list[Row]:
    """A row for every item, held to what the backend claims; an op's cases are compiled at once."""
    backend = target.backend
    claims = backend.claimed(target.device)
    held = Setting(target, claims, Terms(backend.correctly_rounded, ()), at_once=True)
    return [row for group in groups(chosen, at_once=True) for row in run_group(group, held)]


def in_turn(found: Sequence[T], one_in: int) -> list[T]:
    """In the gate one in so many, others for each slice; all of them where everything runs."""
    number = gate.seed()
    return list(found) if number is None else list(found[gate.turn_of(number, one_in) :: one_in])


def part(all_of_them: Iterable[T]) -> list[T]:
    """What the gate's slice holds of the items of one kind; all of them where everything runs."""
    number, found = gate.seed(), list(all_of_them)
    return found if number is None else in_slice(found, number)


def spread(items: Sequence[Case], count: int) -> list[Case]:
    """``count`` items, evenly spread."""
    return [items[len(items) * n // count] for n in range(min(count, len(items)))]
