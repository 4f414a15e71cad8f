"""Profiles: seconds, bytes and FLOPs of all parts that ran, by layer, functional and kernel."""

from __future__ import annotations

import statistics
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ptir.backend.contract import Executable
from ptir.backend.explanation import Explanation
from ptir.events import CompiledPlan, Event, ProgramRun
from ptir.runtime.layers import Layered, LayerPart
from ptir.trace.sink import Sink

SAMPLES: Final = 32
"""Runs of a program whose parts' seconds are kept one by one."""


@dataclass(frozen=True)
class Roofs:
    """The most bytes and FLOPs a second that were measured of a device; None where unknown."""

    bytes_per_second: float | None = None
    flops_per_second: float | None = None

    def share(self, seconds: float, nbytes: int, flops: int) -> float | None:
        """Which share of the time something takes the nearer roof alone would take.

        None where neither roof is known, or nothing was timed.
        """
        given = (nbytes, self.bytes_per_second), (flops, self.flops_per_second)
        least = [amount / roof for amount, roof in given if roof]
        return max(least) / seconds if least and seconds else None


@dataclass
class Work:
    """What parts of one name add up to: how often they ran, and what of each run."""

    name: str
    detail: str = ""
    count: int = 0
    seconds: float = 0.0
    nbytes: int = 0
    flops: int = 0

    def add(self, runs: int, seconds: float, part: LayerPart) -> None:
        """Runs of a part, with their seconds together."""
        self.count += runs
        self.seconds += seconds
        self.nbytes += runs * part.moved.total
        self.flops += runs * part.flops


@dataclass
class ProgramProfile:
    """The runs of one program: ``parts`` are the seconds of each of its parts, in all."""

    plan: CompiledPlan
    executable: Executable
    """That of the plan, which may give it up."""
    runs: int = 0
    seconds: float = 0.0
    parts: list[float] = field(default_factory=list[float])
    timed: int = 0
    """Runs whose parts were timed."""
    samples: list[tuple[float, ...]] = field(default_factory=list[tuple[float, ...]], repr=False)
    """The seconds of parts in the latest of these runs."""

    def take(self, event: ProgramRun) -> None:
        """Add a run."""
        self.runs += 1
        self.seconds += event.seconds
        if event.parts:
            before = self.parts or [0.0] * len(event.parts)
            self.parts = [one + more for one, more in zip(before, event.parts, strict=True)]
            self.timed += 1
            self.samples = [*self.samples[1 - SAMPLES :], event.parts]

    def explanation(self) -> Explanation | None:
        """What a run does, where its parts were timed."""
        found = self.executable.explain() if self.timed else None
        return found if found is not None and len(found.parts) == len(self.parts) else None

    def typical(self) -> list[float]:
        """The seconds of each part in one run: the median of the latest."""
        return [statistics.median(column) for column in zip(*self.samples, strict=True)]

    def works(self, seconds: Sequence[float] | None = None) -> list[tuple[str, LayerPart]]:
        """Each part in order with its layer; nothing where parts were not timed.

        With other ``seconds`` than those of all runs together.
        """
        explanation, plan = self.explanation(), self.plan
        if explanation is None:
            return []
        taken = self.parts if seconds is None else seconds
        inputs = sum(port.kind == "input" for port in plan.optimized.ports)
        donated = frozenset(n for n in plan.donated if n < inputs)
        made = Layered(plan.optimized, explanation, plan.derived, donated, taken, plan.rows)
        return made.in_order()


Key = Callable[[str, LayerPart], tuple[str, str]]


def _functional(layer: str, part: LayerPart) -> tuple[str, str]:
    """What a part computes, and the implementations that were chosen for that."""
    names = dict.fromkeys(one.functional for one in part.locations if one.functional)
    chosen = dict.fromkeys(one.implementation for one in part.locations if one.implementation)
    return " + ".join(names) or " + ".join(part.fused) or part.name, ", ".join(chosen)


VIEWS: Final[dict[str, Key]] = {
    "layer": lambda layer, part: (layer or "outside the layers", ""),
    "functional": _functional,
    "kernel": lambda layer, part: (part.name, part.schedule),
}
"""Ways to add parts up: the name of what a part of a layer goes to, and what is said of it."""


class ProfileSink(Sink):
    """Adds up the runs of every program; parts are timed inside ``ptir.events.timing_parts``."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._programs: dict[int, ProgramProfile] = {}

    def __call__(self, event: Event) -> None:
        """Take a run."""
        if isinstance(event, ProgramRun) and event.plan is not None:
            with self._lock:
                executable = event.plan.executable
                known = self._programs.get(id(executable))
                if known is None:
                    known = ProgramProfile(event.plan, executable)
                    self._programs[id(executable)] = known
                known.take(event)

    def programs(self) -> list[ProgramProfile]:
        """Every program that ran, what took longest first."""
        with self._lock:
            return sorted(self._programs.values(), key=lambda one: -one.seconds)


def works_by(view: str, programs: Iterable[ProgramProfile]) -> list[Work]:
    """The parts of programs, added up as a row of ``VIEWS`` says, what took longest first."""
    key, found = VIEWS[view], dict[tuple[str, str], Work]()
    for program in programs:
        for layer, part in program.works():
            names = key(layer, part)
            work = found.setdefault(names, Work(*names))
            work.add(program.timed, part.seconds or 0.0, part)
    return sorted(found.values(), key=lambda work: -work.seconds)


def profile_json(programs: Sequence[ProgramProfile], roofs: Roofs) -> dict[str, Any]:
    """A profile as JSON values: programs, and the parts of all by layer, functional and kernel."""
    return {
        "roofs": vars(roofs),
        "programs": [
            {
                "name": one.plan.name,
                "target": str(one.plan.target),
                "runs": one.runs,
                "seconds": one.seconds,
            }
            for one in programs
        ],
        **{
            view: [
                {**vars(work), "roof_share": roofs.share(work.seconds, work.nbytes, work.flops)}
                for work in works_by(view, programs)
            ]
            for view in VIEWS
        },
    }


def total(works: Iterable[Work]) -> float:
    """The seconds of all."""
    return sum(work.seconds for work in works)


__all__ = ["VIEWS", "ProfileSink", "ProgramProfile", "Roofs", "Work", "profile_json", "works_by"]
