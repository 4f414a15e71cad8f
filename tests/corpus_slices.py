"""Parts of the conformance suite's corpus, run on a target as users' programs are: one by one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ptir.backend.contract import Target
from ptir_testsuite.corpus.case import Case
from ptir_testsuite.corpus.derivation import corpus
from ptir_testsuite.oracles.accuracy import Terms
from ptir_testsuite.running.execute import Setting
from ptir_testsuite.running.items import Item, run_item
from ptir_testsuite.running.outcomes import Row


def by_op() -> dict[str, list[Case]]:
    """The whole corpus, by op."""
    found: dict[str, list[Case]] = {}
    for case in corpus():
        found.setdefault(case.op, []).append(case)
    return found


def outcomes(items: Iterable[Item], target: Target) -> list[Row]:
    """A row for every item, held to what the backend claims."""
    backend = target.backend
    claims = backend.claimed(target.device)
    held = Setting(target, claims, Terms(backend.correctly_rounded, ()))
    return [run_item(item, held) for item in items]


def spread(items: Sequence[Case], count: int) -> list[Case]:
    """``count`` items, evenly spread."""
    return [items[len(items) * n // count] for n in range(min(count, len(items)))]
