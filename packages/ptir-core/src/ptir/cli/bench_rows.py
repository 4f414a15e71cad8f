"""A row of ``ptir bench``: something that is timed again and again, and what bounds its speed."""

from __future__ import annotations

import functools
import statistics
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from ptir.cli.bandwidth import Probe, held_bytes, probe_of
from ptir.cli.resident import peak_resident, restart_peak

if TYPE_CHECKING:
    from ptir.cli.model import Formats


@dataclass(frozen=True)
class Asked:
    """What was asked for on the command line, where it was; ``speculate`` names what proposes."""

    n_prompt: int | None = None
    n_gen: int | None = None
    batches: tuple[int, ...] = ()
    speculate: str | None = None


@dataclass(frozen=True)
class Test:
    """Something to be measured: what it is called, how much a call does, and the call's seconds.

    ``rows`` are computed together. Around each call of one that is ``probed`` the bandwidth of
    memory is. ``sound`` is how many seconds of a recording it hears, if it hears one.
    """

    name: str
    count: int
    work: Callable[[], float]
    rows: int = 1
    probed: bool = False
    sound: float | None = None


class Bench(ABC):
    """What is measured of a model, and the rows of the report."""

    takes: ClassVar[frozenset[str]]
    """The options that this kind has a use for, as parameters of the command."""
    does: ClassVar[str]
    """What models of this kind do, for messages."""
    unit: ClassVar[str] = "tok/s"
    key: ClassVar[str] = "tokens_per_second"
    """What speeds are called for programs."""
    bound: ClassVar[tuple[str, str]] = ("bandwidth", "bandwidth_share")
    """What bounds the speed, of which a share is told: for people, and for programs."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._bandwidths: list[float] = []

    @abstractmethod
    def tests(self, asked: Asked) -> list[Test]:
        """What was asked for, or the usual tests; raises ``click.UsageError``."""

    @abstractmethod
    def facts(self, test: Test) -> dict[str, Any]:
        """What a row says besides speeds."""

    @abstractmethod
    def fraction(
        self, test: Test, facts: Mapping[str, Any], speed: float, read: float
    ) -> float | None:
        """The share that a speed is of what bounds it; ``read`` is what the probe said."""

    def estimated(self, formats: Formats) -> float | None:
        """Tokens per second of decoding as ``ptir list`` estimates them, with what was probed."""
        return None

    @functools.cached_property
    def _probe(self) -> Probe:
        return probe_of(self._model.target)

    def _bandwidth(self) -> float:
        """One reading of the probe."""
        self._bandwidths.append(self._probe.bandwidth())
        return self._bandwidths[-1]

    def probed(self) -> dict[str, Any] | None:
        """How bandwidth was probed and what the median was; None where nothing was decoded."""
        if not self._bandwidths:
            return None
        median = statistics.median(self._bandwidths)
        return {"kind": self._probe.kind, "bytes_per_second": median}

    def row(self, test: Test, repetitions: int) -> dict[str, Any]:
        """One row of the report: speeds behind a run that warms up, and what ``facts`` says.

        Memory is the most that the backend held up to then, and the most of this process that was
        resident meanwhile, without the probe's (None where the system cannot tell).
        """
        target = self._model.target
        with self._model.policies():
            test.work()
            memory = target.backend.memory_stats(target.device)  # the probe takes some too
            facts = self.facts(test)
            if test.probed:
                _ = self._probe  # what it keeps is there from now on
            counts, held = restart_peak(), held_bytes()  # what loading took besides is forgotten
            speeds, shares = list[float](), list[float | None]()
            for _ in range(repetitions):
                before = self._bandwidth() if test.probed else 0.0
                speeds.append(test.count / test.work())
                after = self._bandwidth() if test.probed else 0.0
                shares.append(self.fraction(test, facts, speeds[-1], (before + after) / 2))
            resident = peak_resident() if counts else None
        known = [one for one in shares if one is not None]
        return {
            "test": test.name,
            self.key: spread(speeds),
            self.bound[1]: statistics.median(known) if known else None,
            **facts,
            "peak_memory_bytes": memory.peak_bytes if memory else None,
            "peak_resident_bytes": None if resident is None else resident - held,
        }


def spread(values: Sequence[float]) -> dict[str, Any]:
    """The median of some values, their ends, and all."""
    return {
        "median": statistics.median(values),
        "min": min(values),
        "max": max(values),
        "samples": [*values],
    }


def seconds_of(work: Callable[[Any], object], given: Any) -> float:
    """The seconds of a call."""
    began = time.perf_counter()
    work(given)
    return time.perf_counter() - began
