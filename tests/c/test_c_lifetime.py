"""Lifetime and threads on C: all rows pass, and faults in the generator's memory are given away."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from heapq import heappush
from typing import Any, Final

import pytest

from corpus_slices import outcomes, part
from ptir.backend.contract import Target
from ptir.codegen.launching.launches import KernelProgram
from ptir.codegen.launching.memory import LITTLE, DeviceBuffer
from ptir_backend_c import CBackend
from ptir_backend_c.device import Launches
from ptir_testsuite.running.kinds.lifetime import KINDS, lifetimes
from ptir_testsuite.running.outcomes import Outcome

pytestmark = pytest.mark.usefixtures("frozen_heap")

Plant = Callable[[pytest.MonkeyPatch], None]


@pytest.fixture
def own(c: Target) -> Target:
    """A backend whose memory no other test uses."""
    backend = CBackend()
    return Target(backend, backend.devices()[c.device.index])


@pytest.mark.parametrize("kind", KINDS)
def test_lifetimes(c: Target, kind: str) -> None:
    rows = outcomes(part(lifetimes(kind)), c)
    assert not [row.message for row in rows if row.failed]
    assert not [row.case for row in rows if row.facts], "live bytes are reported"


def _no_lock(patch: pytest.MonkeyPatch) -> None:
    """Nobody waits for who is between binding and running, which takes a while."""
    made, queued = KernelProgram.__init__, KernelProgram._queue

    def slowly(self: Any) -> None:
        time.sleep(1e-3)
        queued(self)

    def unlocked(self: Any, *args: Any) -> None:
        made(self, *args)
        self._lock = nullcontext()

    patch.setattr(KernelProgram, "__init__", unlocked)
    patch.setattr(KernelProgram, "_queue", slowly)


def _never_freed(patch: pytest.MonkeyPatch) -> None:
    kept: list[Any] = []
    patch.setattr(DeviceBuffer, "__del__", lambda self: kept.append(self.memory))


def _freed_too_early(patch: pytest.MonkeyPatch) -> None:
    """The memory of a tensor that is let go of is handed out twice."""

    once = DeviceBuffer.__del__

    def twice(self: Any) -> None:
        once(self)
        size, pool = max(1, self.type.nbytes), self.owner
        if self.host is not None or self.whole is not None or size > LITTLE:
            return
        number = pool._numbers.setdefault(id(self.memory), 0)
        heappush(pool._little.setdefault(size, []), (number, self.memory))
        pool._little_in_all += size

    patch.setattr(DeviceBuffer, "__del__", twice)


def _all_donated(patch: pytest.MonkeyPatch) -> None:
    compiled = CBackend.compile

    def greedy(self: Any, program: Any, device: Any, options: Any) -> Any:
        every = frozenset(range(len(program.inputs)))
        return compiled(self, program, device, replace(options, donated=every))

    patch.setattr(CBackend, "compile", greedy)


def _turns_alike(patch: pytest.MonkeyPatch) -> None:
    """Every turn of a call is given what the first one is given."""
    hold = Launches.bind_slot

    def first(self: Any, turn: int) -> None:
        if turn:
            self._block.recall(0)
        hold(self, turn)

    patch.setattr(Launches, "bind_slot", first)


def _kept_in_donations(patch: pytest.MonkeyPatch) -> None:
    """Handles that are donated from one turn to the next are not those of the turn before."""
    repeated = KernelProgram.repeat

    def unfed(self: Any, inputs: Any, feeds: Any, turns: int, keep: int) -> Any:
        return repeated(self, inputs, (), turns, keep)

    patch.setattr(KernelProgram, "repeat", unfed)


FAULTS: Final[dict[str, tuple[Plant, str, str]]] = {
    "no lock": (_no_lock, "threads", "of thread"),
    "turns are alike": (_turns_alike, "repeat", "is wrong in"),
    "nothing is fed": (_kept_in_donations, "repeat", "is wrong in"),
    "never freed": (_never_freed, "memory", "a leak"),
    "handed out twice": (_freed_too_early, "walk", "is wrong in"),
    "every input is overwritten": (_all_donated, "walk", "is wrong in"),
}


@pytest.mark.slice(2)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_memory_is_given_away(
    own: Target, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    plant, kind, text = FAULTS[fault]
    plant(monkeypatch)
    rows = [row for row in outcomes(lifetimes(kind), own) if row.failed]
    assert {row.outcome for row in rows} == {Outcome.MISMATCH}
    assert any(text in row.message for row in rows), rows[0].message
