"""Statistics: what the events of a command add up to, in total and by name."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Any, Final

from ptir.events import (
    CacheLookup,
    Event,
    ImplementationChosen,
    KernelsBuilt,
    ParameterLoaded,
    PassRun,
    ProgramCompiled,
    ProgramRun,
)
from ptir.trace.sink import Sink


@dataclass
class Total:
    """How often something happened, how long it took in all, and the bytes it moved."""

    count: int = 0
    seconds: float = 0.0
    nbytes: int = 0


@dataclass(frozen=True)
class ProfileRow:
    """One line of a profile: a kind of event, the name of what happened, its total."""

    kind: str
    name: str
    total: Total


KINDS: Final = ("pass", "compile", "build", "restore", "run", "load")


class StatsSink(Sink):
    """Counts passes, compilations, runs and parameter loads, and keeps what was chosen last."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._totals: defaultdict[tuple[str, str], Total] = defaultdict(Total)
        self._chosen: dict[str, tuple[str, str]] = {}
        self._lookups: Counter[tuple[str, bool]] = Counter()

    def __call__(self, event: Event) -> None:
        """Add one event."""
        with self._lock:
            match event:
                case PassRun():
                    self._add("pass", event.name, event.seconds)
                case ProgramCompiled():
                    self._add("compile", event.captured.digest[:8], event.seconds)
                case KernelsBuilt():
                    kind = "restore" if event.restored else "build"
                    self._add(kind, event.key[:8], event.seconds)
                case ProgramRun():
                    self._add("run", event.program.digest[:8], event.seconds)
                case ParameterLoaded():
                    self._add("load", event.name, event.seconds, event.nbytes)
                case CacheLookup():
                    self._lookups[event.cache, event.hit] += 1
                case ImplementationChosen():
                    self._chosen[event.functional] = (event.implementation, event.reason)
                case _:
                    pass

    def _add(self, kind: str, name: str, seconds: float, nbytes: int = 0) -> None:
        total = self._totals[kind, name]
        total.count += 1
        total.seconds += seconds
        total.nbytes += nbytes

    def summary(self) -> dict[str, Any]:
        """The totals of the command as one JSON value (seconds and bytes)."""
        with self._lock:
            by_kind = {kind: self._sum(kind) for kind in KINDS}
        return {
            "programs_compiled": by_kind["compile"].count,
            "compile_seconds": by_kind["compile"].seconds,
            "kernel_files_built": by_kind["build"].count,
            "kernel_files_restored": by_kind["restore"].count,
            "build_seconds": by_kind["build"].seconds + by_kind["restore"].seconds,
            "pass_seconds": by_kind["pass"].seconds,
            "programs_run": by_kind["run"].count,
            "run_seconds": by_kind["run"].seconds,
            "parameters_loaded": by_kind["load"].count,
            "parameter_bytes": by_kind["load"].nbytes,
            "load_seconds": by_kind["load"].seconds,
        }

    def _sum(self, kind: str) -> Total:
        totals = [total for (found, _), total in self._totals.items() if found == kind]
        return Total(
            sum(t.count for t in totals),
            sum(t.seconds for t in totals),
            sum(t.nbytes for t in totals),
        )

    def chosen(self) -> list[tuple[str, tuple[str, str]]]:
        """Each functional with the implementation chosen last, and why."""
        with self._lock:
            return sorted(self._chosen.items())

    def caches(self) -> dict[str, tuple[int, int]]:
        """Hits and misses of each cache that something was looked for in."""
        with self._lock:
            names = sorted({name for name, _ in self._lookups})
            return {n: (self._lookups[n, True], self._lookups[n, False]) for n in names}

    def profile(self) -> list[ProfileRow]:
        """Every name with its total, the longest first."""
        with self._lock:
            rows = [ProfileRow(kind, name, t) for (kind, name), t in self._totals.items()]
        return sorted(rows, key=lambda row: -row.total.seconds)
