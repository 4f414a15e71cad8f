"""Parts of the conformance suite's corpus, run on a target."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

import gate
from ptir.backend.contract import Target
from ptir_testsuite.corpus.case import Case
from ptir_testsuite.corpus.derivation import corpus
from ptir_testsuite.oracles.accuracy import Terms
from ptir_testsuite.running.execute import Setting
from ptir_testsuite.running.items import Item, groups, in_slice, run_group
from ptir_testsuite.running.outcomes import Row

T = TypeVar("T")


def by_op() -> dict[str, list[Case]]:
    """The whole corpus, by op."""
    found: dict[str, list[Case]] = {}
    for case in corpus():
        found.setdefault(case.op, []).append(case)
    return found


def outcomes(items: Iterable[Item], target: Target) -> list[Row]:
    """A row for every item, held to what the backend claims; an op's cases are compiled at once."""
    backend = target.backend
    claims = backend.claimed(target.device)
    held = Setting(target, claims, Terms(backend.correctly_rounded, ()), at_once=True)
    return [row for group in groups(items, at_once=True) for row in run_group(group, held)]


def in_turn(items: Sequence[T], one_in: int) -> list[T]:
    """In the gate one in so many, others for each slice; all of them where everything runs."""
    number = gate.seed()
    return list(items) if number is None else list(items[number % one_in :: one_in])


def part(items: Iterable[T]) -> list[T]:
    """What the gate's slice holds of the items of one kind; all of them where everything runs."""
    number, found = gate.seed(), list(items)
    return found if number is None else in_slice(found, number)


def spread(items: Sequence[Case], count: int) -> list[Case]:
    """``count`` items, evenly spread."""
    return [items[len(items) * n // count] for n in range(min(count, len(items)))]
