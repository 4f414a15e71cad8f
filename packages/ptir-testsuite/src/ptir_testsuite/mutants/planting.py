"""Faults planted in the kernel generator: where they are put, on which backend, and their grades.

A backend of level 2 shares the generator with every other, so a fault planted there is one in each
kernel that it writes. A row of ``PLANTED`` names places in the code; what is there is replaced in a
process of its own, and the corpus runs on the backend until a case fails.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from ptir.backend import Backend, registry
from ptir.ops import OPS
from ptir_testsuite.corpus.composites import CALLS, CompositeCall
from ptir_testsuite.corpus.derivation import cases_of
from ptir_testsuite.corpus.stored import stored
from ptir_testsuite.mutants.score import IMPORTED, PROGRAMS, Grade, within
from ptir_testsuite.oracles.accuracy import Terms
from ptir_testsuite.running.items import Item, random_programs
from ptir_testsuite.running.kinds.lifetime import KINDS, lifetimes
from ptir_testsuite.running.outcomes import Outcome
from ptir_testsuite.running.workers import Order, run_in_processes

CODE: Final = "ptir.codegen."
TIMEOUT: Final = 60.0

ON: Final = ("c", "opencl")
"""Backends of level 2, the one whose kernels are built sooner first."""

Wrong = Callable[[Any], Any]


@dataclass(frozen=True)
class Planted:
    """One fault: what the corpus has that shows it, where it is put, and what it makes of that.

    ``shows`` names ops, ``composite-NAME``, ``lifetime-KIND`` and ``programs``. A place is
    ``module:attribute``, ``module:Class.method`` or ``module:TABLE[row]`` in ``ptir.codegen``;
    ``wrong`` takes what is there and gives what is put there instead.
    """

    name: str
    shows: tuple[str, ...]
    places: tuple[str, ...]
    wrong: Wrong
    on: tuple[str, ...] = ON


PLANTED: Final[dict[str, Planted]] = {}


def planted(
    name: str, shows: str, *places: str, on: tuple[str, ...] = ON
) -> Callable[[Wrong], Wrong]:
    """Plant what the function below makes of the right thing in these places."""

    def add(wrong: Wrong) -> Wrong:
        if name in PLANTED:
            raise ValueError(f"fault {name!r} is defined twice")
        PLANTED[name] = Planted(name, tuple(shows.split()), places, wrong, on)
        return wrong

    return add


def plant(row: Planted) -> None:
    """Put the fault where it belongs, for the rest of this process."""
    for place in row.places:
        module, _, path = place.partition(":")
        holder: Any = importlib.import_module(CODE + module)
        *outer, last = path.partition("[")[0].split(".")
        for name in outer:
            holder = getattr(holder, name)
        if "[" in path:
            table, wanted = getattr(holder, last), path.partition("[")[2].rstrip("]")
            (key,) = (key for key in table if str(key) == wanted)
            table[key] = row.wrong(table[key])
        else:
            setattr(holder, last, row.wrong(getattr(holder, last)))


def faulty(name: str, backend: str) -> Backend:
    """The backend, opened, and then with the fault in its generator: what a worker runs on."""
    importlib.import_module("ptir_testsuite.mutants")  # fills the table
    os.environ["PTIR_REBUILD_KERNELS"] = "1"  # what is kept on disk was written without the fault
    found = registry.get(backend).backend
    plant(PLANTED[name])
    return found


def usable(row: Planted) -> str:
    """The first backend on which the fault can be graded, or nothing."""
    working = {status.name for status in registry.status_table() if status.status == "ok"}
    return next((name for name in row.on if name in working), "")


@dataclass(frozen=True)
class KernelGrade(Grade):
    """The grade of a fault in the generator, with the backend that it was graded on."""

    backend: str = ""

    @property
    def right(self) -> bool:
        """Whether results gave it away, or the process; an error is that of a fault put wrong."""
        return self.outcome in (Outcome.MISMATCH, Outcome.CRASH)

    @property
    def graded(self) -> bool:
        """Whether a backend that it needs is there."""
        return bool(self.backend)


def grade_planted(row: Planted, timeout: float = TIMEOUT, number: int | None = None) -> KernelGrade:
    """Run the items that may show the fault until one fails; only those of a slice if any."""
    backend = usable(row)
    if not backend:
        return KernelGrade(row.name, row.shows, "", Outcome.UNSUPPORTED, 0)
    target = registry.get(backend)
    claims, rounded = target.backend.claimed(target.device), target.backend.correctly_rounded
    made_by = partial(faulty, row.name, backend)
    order = Order(backend, (), claims, Terms(rounded), made_by, imported=IMPORTED)
    tried = 0
    for found in run_in_processes(list(within(_shown(row), number)), order, 1, timeout):
        tried += 1
        if found.failed:
            caught = found.case
            return KernelGrade(row.name, row.shows, caught, found.outcome, tried, backend)
    return KernelGrade(row.name, row.shows, "", Outcome.PASS, tried, backend)


def _shown(row: Planted) -> Iterator[Item]:
    """What the corpus has of each name: cases in the order of their ids, which is no order."""
    for name in row.shows:
        kind, _, rest = name.partition("-")
        if name == "programs":
            yield from stored()
            yield from random_programs(PROGRAMS)
        elif kind == "composite":
            yield from (CompositeCall(rest, number) for number in range(len(CALLS[rest])))
        elif kind == "lifetime" and rest in KINDS:
            yield from lifetimes(rest)
        else:
            yield from sorted(cases_of(OPS[name]), key=lambda case: case.id)
