"""The suite's grade: which planted faults the corpus alone notices, and by which case."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from ptir.backend import Target
from ptir.ops import OPS
from ptir_testsuite.corpus.derivation import cases_of
from ptir_testsuite.corpus.models import model_runs
from ptir_testsuite.mutants.equivalent import EQUIVALENT
from ptir_testsuite.mutants.harness import MUTANTS, Mutant, Row
from ptir_testsuite.mutants.impostors import IMPOSTORS
from ptir_testsuite.oracles.accuracy import Terms
from ptir_testsuite.running.execute import Setting, run_case
from ptir_testsuite.running.items import Item
from ptir_testsuite.running.kinds.lifetime import KINDS, lifetimes
from ptir_testsuite.running.outcomes import Outcome
from ptir_testsuite.running.workers import Order, run_in_processes

PREFIX: Final = "lifetime-"
LIFETIMES: Final = frozenset(PREFIX + kind for kind in KINDS)
"""What an impostor names where no op shows it, but a kind of lifetimes."""


MODEL: Final = "model-"
"""What stands in front of the name of a model, where only whole models show an impostor."""

SCRIPT: Final = 10.0  # so many times as long as a case a lifetime or a model may take


@dataclass(frozen=True)
class Grade:
    """What became of one fault: the first case that fails, and how many were tried."""

    name: str
    ops: tuple[str, ...]
    caught: str
    outcome: Outcome
    tried: int

    @property
    def reason(self) -> str:
        """Why nothing can notice the fault, or nothing where something must."""
        return EQUIVALENT.get(self.name, "")

    @property
    def right(self) -> bool:
        """Whether the suite said what it must."""
        return bool(self.caught) != bool(self.reason)


def grade(row: Row) -> Grade:
    """Run the cases of the fault's ops until one fails."""
    mutant = Mutant(row)
    target = Target(mutant, mutant.devices()[0])
    setting = Setting(target, mutant.claims, Terms(mutant.correctly_rounded))
    tried = 0
    for name in row.ops:
        for case in cases_of(OPS[name]):
            tried += 1
            found = run_case(case, setting)
            if found.failed:
                return Grade(row.name, row.ops, case.id, found.outcome, tried)
    return Grade(row.name, row.ops, "", Outcome.PASS, tried)


@dataclass(frozen=True)
class Unmasked:
    """What became of an impostor: the outcomes that it must get, the first that it got."""

    name: str
    wanted: tuple[Outcome, ...]
    caught: str
    outcome: Outcome

    @property
    def right(self) -> bool:
        """Whether it was rejected, and for the right thing."""
        return self.outcome in self.wanted


def unmask(name: str, timeout: float = 2.0) -> Unmasked:
    """Run an impostor on the cases of its ops, in a process of its own, until one fails."""
    row = IMPOSTORS[name]
    order = Order("impostor", (), row.make().claims, Terms(), row.make)
    if any(op not in OPS for op in row.ops):
        timeout *= SCRIPT
    tried = [item for op in row.ops for item in _items_of(op)]
    for found in run_in_processes(tried, order, 1, timeout):
        if found.failed:
            return Unmasked(name, row.outcomes, found.case, found.outcome)
    return Unmasked(name, row.outcomes, "", Outcome.PASS)


def _items_of(name: str) -> Iterator[Item]:
    """The cases of an op, the lifetimes of a kind, or the rows of a model."""
    if name in LIFETIMES:
        return lifetimes(name.removeprefix(PREFIX))
    if name.startswith(MODEL):
        return model_runs(name.removeprefix(MODEL))
    return iter(cases_of(OPS[name]))


def grades(rows: Iterable[Row] | None = None) -> Iterator[Grade]:
    """The grades of some faults (default: all)."""
    return (grade(row) for row in (MUTANTS.values() if rows is None else rows))
