"""A whole run: choose the items, run them, and make the report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from ptir.backend import Target, registry
from ptir.errors import UsageError
from ptir.ir.structure import VERSION
from ptir.ops import OPS
from ptir.ops.implementations import FUNCTIONALS
from ptir_testsuite.corpus.derivation import corpus_hash, judged
from ptir_testsuite.corpus.selection import selection
from ptir_testsuite.oracles.accuracy import Terms, accuracy_hash
from ptir_testsuite.oracles.composites import FORMULAS
from ptir_testsuite.reports.distribution import version_of
from ptir_testsuite.reports.files import SCHEMA, Journal
from ptir_testsuite.reports.provenance import digest_of, origin_of, suite_version
from ptir_testsuite.reports.report import Report
from ptir_testsuite.reports.waivers import Waiver, applied, require_known
from ptir_testsuite.running.execute import Setting
from ptir_testsuite.running.items import (
    Item,
    groups,
    hashed,
    in_slice,
    items,
    profiles,
    random_programs,
    run_group,
    selected,
)
from ptir_testsuite.running.modules import import_all
from ptir_testsuite.running.outcomes import Row
from ptir_testsuite.running.workers import Order, run_in_processes


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
    ``slice`` is the number of the slice to run. Its cases, and all with ``at_once``, are compiled
    many at once; users' programs are compiled one by one.
    """

    backend: str
    claims: frozenset[str] | None = None
    words: str = ""
    jobs: int = 1
    timeout: float = 60.0
    relaxations: tuple[str, ...] = ()
    imports: tuple[str, ...] = ()
    programs: Programs = Programs()
    waivers: tuple[Waiver, ...] = ()
    slice: int | None = None
    at_once: bool = False


Progress = Callable[[Row, int], None]


def run(wish: Wish, progress: Progress | None = None, journal: Journal | None = None) -> Report:
    """Run the corpus on the backend called ``wish.backend``; raises ``BackendUnavailable``.

    Rows go into the journal as they come, and rows that it has already are not run again. Ctrl-C
    ends the run with a report of the rows that there are.
    """
    setting, everything, chosen = prepared(wish)
    report = empty_report(setting, everything, chosen, wish)
    order = {item.id: number for number, item in enumerate(chosen)}
    report.rows += journal.begin(report.header, order) if journal is not None else ()
    done = {row.case for row in report.rows}
    left = [item for item in chosen if item.id not in done]
    waivers = {waiver.id: waiver for waiver in wish.waivers}
    try:
        for found in _rows(left, setting, wish):
            row = applied(found, waivers)
            report.rows.append(row)
            if journal is not None:
                journal.add(row)
            if progress is not None:
                progress(row, len(left))
    except KeyboardInterrupt:
        report.interrupted = True
    except BaseException:
        if journal is not None:
            journal.close()
        raise
    report.rows.sort(key=lambda row: order[row.case])
    if journal is not None:
        journal.finish(report)
    return report


def prepared(wish: Wish) -> tuple[Setting, list[Item], list[Item]]:
    """The setting, everything that there is to run, and what the wish selects of it."""
    setting = opened(wish)
    everything = list(wish.programs.items())
    require_known(wish.waivers, {item.id for item in everything})
    if wish.claims is not None and not wish.programs.alone:
        require_cases(wish.claims, everything)
    return setting, everything, chosen_from(everything, wish)


def require_cases(claims: frozenset[str], everything: Iterable[Item]) -> None:
    """Raise ``UsageError`` for a profile of which nothing lies within the claims."""
    kinds = {profiles(item) for item in everything}
    for name in sorted(claims):
        mine = [one for one in kinds if name in one]
        if mine and not any(one <= claims for one in mine):
            needed = min(mine, key=lambda one: (len(one - claims), "core" not in one, sorted(one)))
            least = ",".join(sorted(claims | needed))
            raise UsageError(
                f"--claims {','.join(sorted(claims))}: no case of {name} needs these alone; write"
                f" --claims {least}"
            )


def opened(wish: Wish) -> Setting:
    """The setting of a wish, with its modules imported; raises ``BackendUnavailable``."""
    import_all(wish.imports)
    return setting_of(registry.get(wish.backend), wish)


def setting_of(target: Target, wish: Wish) -> Setting:
    """What the target is held to: its own claims unless the wish narrows them."""
    claims = target.backend.claimed(target.device) if wish.claims is None else wish.claims
    terms = Terms(target.backend.correctly_rounded, wish.relaxations)
    at_once = wish.at_once or wish.slice is not None
    return Setting(target, claims, terms, wish.imports, at_once)


def chosen_from(everything: Sequence[Item], wish: Wish) -> list[Item]:
    """The items that the wish selects."""
    matches = selection(wish.words) if wish.words else None
    found = list(selected(iter(everything), wish.claims, matches))
    return found if wish.slice is None else in_slice(found, wish.slice)


def _rows(chosen: Sequence[Item], setting: Setting, wish: Wish) -> Iterator[Row]:
    if wish.jobs == 0:
        return run_here(chosen, setting)
    order = Order(
        wish.backend, wish.imports, setting.claims, setting.terms, at_once=setting.at_once
    )
    return run_in_processes(chosen, order, wish.jobs, wish.timeout)


def run_here(chosen: Iterable[Item], setting: Setting) -> Iterator[Row]:
    """A row for every item, run in this process."""
    each = (run_group(group, setting) for group in groups(chosen, setting.at_once))
    return chain.from_iterable(each)


def empty_report(
    setting: Setting, everything: Sequence[Item], chosen: Sequence[Item], wish: Wish
) -> Report:
    """A report without rows: the facts that its verdict rests on."""
    backend = setting.target.backend
    header: dict[str, Any] = {
        "kind": "header",
        "schema": SCHEMA,
        "backend": backend.name,
        "version": version_of(backend),
        "number": setting.target.device.index,
        "spec": ".".join(map(str, VERSION)),
        "suite": suite_version(),
        **origin_of(setting.target, wish.imports),
        "imports": list(wish.imports),
        "corpus": corpus_hash(hashed(everything)),
        "accuracy": accuracy_hash(OPS.values()),
        "profiles": sorted(setting.claims),
        "narrowed": wish.claims is not None,
        "correctly_rounded": sorted(setting.terms.rounds),
        "relaxations": list(setting.terms.relaxations),
        "programs": [wish.programs.seed, wish.programs.first, wish.programs.count],
        "alone": wish.programs.alone,
        "waivers": [waiver.record() for waiver in wish.waivers],
        "words": wish.words,
        "slice": wish.slice,
        "items": digest_of(item.id for item in chosen),
        "selected": len(chosen),
        "total": sum(1 for _ in selected(iter(everything), wish.claims, None)),
    }
    lacking = tuple(op.name for op in OPS.values() if op.samples and not judged(op))
    unchecked = tuple(sorted(set(FUNCTIONALS) - set(FORMULAS)))
    return Report(header, samples_only=lacking, unchecked=unchecked)
