"""The suite's grade: which planted faults the corpus alone notices, and by which case."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Final

from ptir.backend import Target
from ptir.ops import OPS
from ptir_testsuite.corpus.case import Case
from ptir_testsuite.corpus.composites import CALLS, CompositeCall
from ptir_testsuite.corpus.derivation import cases_of
from ptir_testsuite.corpus.models import model_runs
from ptir_testsuite.corpus.sweeps import Sweep, sweeps_of
from ptir_testsuite.mutants.equivalent import EQUIVALENT
from ptir_testsuite.mutants.harness import Mutant, Row
from ptir_testsuite.mutants.impostors import IMPOSTORS
from ptir_testsuite.oracles.accuracy import Terms
from ptir_testsuite.running.execute import Setting
from ptir_testsuite.running.items import Item, in_slice, items, run_item
from ptir_testsuite.running.kinds.lifetime import KINDS, lifetimes
from ptir_testsuite.running.outcomes import Outcome
from ptir_testsuite.running.workers import Order, run_in_processes

PROGRAMS: Final = 200
"""Random programs of every run, beside those that are kept."""

PREFIX: Final = "lifetime-"
LIFETIMES: Final = frozenset(PREFIX + kind for kind in KINDS)
"""What an impostor names where no op shows it, but a kind of lifetimes."""


SWEEP: Final = "sweep-"
COMPOSITE: Final = "composite-"
"""What stands in front of the name of an op, or a composite, where only these show an impostor."""

MODEL: Final = "model-"
"""What stands in front of the name of a model, where only whole models show an impostor."""

IMPORTED: Final = ("ptir_testsuite.mutants",)
"""What all processes of planted faults import, and so have from the start."""

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


@cache
def slice_of(number: int) -> frozenset[str]:
    """The ids of what slice ``number`` of the corpus holds."""
    return frozenset(item.id for item in in_slice(list(items(PROGRAMS)), number))


def within(found: Iterable[Item], number: int | None) -> Iterator[Item]:
    """What of it lies in slice ``number`` (None: in the corpus)."""
    return (item for item in found if number is None or item.id in slice_of(number))


def grade(row: Row, number: int | None = None) -> Grade:
    """Run the cases and sweeps of the fault's ops until one fails; only those of a slice if any."""
    mutant = Mutant(row)
    target = Target(mutant, mutant.devices()[0])
    setting = Setting(target, mutant.claims, Terms(mutant.correctly_rounded))
    tried = 0
    for item in within(shown_to(row), number):
        tried += 1
        found = run_item(item, setting)
        if found.failed:
            return Grade(row.name, row.ops, item.id, found.outcome, tried)
    return Grade(row.name, row.ops, "", Outcome.PASS, tried)


def shown_to(row: Row) -> Iterator[Case | Sweep]:
    """What the corpus has of the fault's ops; of each first what is likelier to show it."""
    for op in (OPS[name] for name in row.ops):
        if row.in_sweeps:
            yield from sweeps_of(op)
        yield from cases_of(op)
        if not row.in_sweeps:
            yield from sweeps_of(op)


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


def unmask(name: str, timeout: float = 2.0, number: int | None = None) -> Unmasked:
    """Run an impostor on the cases of its ops, in a process of its own, until one fails."""
    row = IMPOSTORS[name]
    claims = row.make().claims
    order = Order("impostor", (), claims, Terms(), row.make, imported=IMPORTED)
    if any(op not in OPS for op in row.ops):
        timeout *= SCRIPT
    tried = [item for op in row.ops for item in within(_items_of(op), number)]
    for found in run_in_processes(tried, order, 1, timeout):
        if found.failed:
            return Unmasked(name, row.outcomes, found.case, found.outcome)
    return Unmasked(name, row.outcomes, "", Outcome.PASS)


def _items_of(name: str) -> Iterator[Item]:
    """The cases or sweeps of an op, calls of a composite, lifetimes of a kind, rows of a model."""
    if name in LIFETIMES:
        return lifetimes(name.removeprefix(PREFIX))
    if name.startswith(MODEL):
        return model_runs(name.removeprefix(MODEL))
    if name.startswith(SWEEP):
        return sweeps_of(OPS[name.removeprefix(SWEEP)])
    if name.startswith(COMPOSITE):
        called = name.removeprefix(COMPOSITE)
        return (CompositeCall(called, number) for number in range(len(CALLS[called])))
    return iter(cases_of(OPS[name]))
