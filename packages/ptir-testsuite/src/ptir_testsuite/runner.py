"""A whole run: choose the items, run them, and make the report."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from ptir.backend import Target, registry
from ptir.ir.program import VERSION
from ptir.ops import OPS
from ptir.ops.implementations import FUNCTIONALS
from ptir_testsuite.accuracy import Terms, accuracy_hash
from ptir_testsuite.case import Case
from ptir_testsuite.composites import FORMULAS
from ptir_testsuite.corpus import corpus_hash, judged
from ptir_testsuite.execute import Setting
from ptir_testsuite.items import (
    Item,
    items,
    random_programs,
    run_item,
    selected,
)
from ptir_testsuite.outcomes import Row
from ptir_testsuite.report import Report
from ptir_testsuite.selection import selection
from ptir_testsuite.workers import Order, run_in_processes


@dataclass(frozen=True)
class Programs:
    """Which random programs are run: those of a seed, after the corpus or ``alone``."""

    count: int = 200
    seed: int = 0
    first: int = 0
    alone: bool = False

    def items(self) -> Iterator[Item]:
        """The programs, after the whole corpus unless they are run alone."""
        if self.alone:
            return random_programs(self.count, self.seed, self.first)
        return items(self.count, self.seed, self.first)


@dataclass(frozen=True)
class Wish:
    """What is asked of a run.

    ``claims`` narrows it to profiles (None: everything, held to what the backend claims), ``words``
    is the expression of ``-k``, ``jobs`` counts processes (0: this one), ``timeout`` is for a case.
    """

    backend: str
    claims: frozenset[str] | None = None
    words: str = ""
    jobs: int = 1
    timeout: float = 60.0
    relaxations: tuple[str, ...] = ()
    imports: tuple[str, ...] = ()
    programs: Programs = Programs()


Progress = Callable[[Row, int], None]


def run(wish: Wish, progress: Progress | None = None) -> Report:
    """Run the corpus on the backend called ``wish.backend``; raises ``BackendUnavailable``."""
    for name in wish.imports:
        importlib.import_module(name)
    target = registry.get(wish.backend)
    setting = setting_of(target, wish)
    everything = list(wish.programs.items())
    chosen = chosen_from(everything, wish)
    report = empty_report(setting, everything, chosen, wish)
    for row in _rows(chosen, setting, wish):
        report.rows.append(row)
        if progress is not None:
            progress(row, len(chosen))
    order = {item.id: number for number, item in enumerate(chosen)}
    report.rows.sort(key=lambda row: order[row.case])
    return report


def setting_of(target: Target, wish: Wish) -> Setting:
    """What the target is held to: its own claims unless the wish narrows them."""
    claims = target.backend.claimed(target.device) if wish.claims is None else wish.claims
    return Setting(target, claims, Terms(target.backend.correctly_rounded, wish.relaxations))


def chosen_from(everything: Sequence[Item], wish: Wish) -> list[Item]:
    """The items that the wish selects."""
    matches = selection(wish.words) if wish.words else None
    return list(selected(iter(everything), wish.claims, matches))


def _rows(chosen: Sequence[Item], setting: Setting, wish: Wish) -> Iterator[Row]:
    if wish.jobs == 0:
        return run_here(chosen, setting)
    order = Order(wish.backend, wish.imports, setting.claims, setting.terms)
    return run_in_processes(chosen, order, wish.jobs, wish.timeout)


def run_here(chosen: Iterable[Item], setting: Setting) -> Iterator[Row]:
    """A row for every item, run in this process."""
    return (run_item(item, setting) for item in chosen)


def empty_report(
    setting: Setting, everything: Sequence[Item], chosen: Sequence[Item], wish: Wish
) -> Report:
    """A report without rows: the facts that its verdict rests on."""
    cases = [item for item in everything if isinstance(item, Case)]
    header: dict[str, Any] = {
        "backend": setting.target.backend.name,
        "device": setting.target.device.name,
        "detail": setting.target.device.detail,
        "spec": ".".join(map(str, VERSION)),
        "suite": suite_version(),
        "corpus": corpus_hash(cases),
        "accuracy": accuracy_hash(OPS.values()),
        "profiles": sorted(setting.claims),
        "correctly_rounded": sorted(setting.terms.rounds),
        "relaxations": list(setting.terms.relaxations),
        "programs": [wish.programs.seed, wish.programs.first, wish.programs.count],
    }
    lacking = tuple(op.name for op in OPS.values() if op.samples and not judged(op))
    total = sum(1 for _ in selected(iter(everything), wish.claims, None))
    praise = "every program agrees" if wish.programs.alone else "conformant"
    unchecked = tuple(sorted(set(FUNCTIONALS) - set(FORMULAS)))
    report = Report(header, total, len(chosen), bool(wish.words), praise)
    report.samples_only, report.unchecked = lacking, unchecked
    return report


def suite_version() -> str:
    """The installed version of this distribution, or that it is run from its sources."""
    try:
        return metadata.version("ptir-testsuite")
    except metadata.PackageNotFoundError:
        return "not installed"
