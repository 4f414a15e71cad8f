"""How much of the processors went to anyone but the benchmark: figures taken beside that lie."""

from __future__ import annotations

import os
import time
from pathlib import Path

STAT = Path("/proc/stat")
SHORTEST = 0.5
"""Seconds from which counts of ticks, a hundredth of a second each, say anything."""
BUSY = (0, 1, 2, 5, 6, 7)
"""The fields of /proc/stat that are work of this machine or, the last, of its host's others."""


class Others:
    """Counts from its making on; ask once all own child processes have ended."""

    def __init__(self) -> None:
        self._began, self._all, self._own = time.monotonic(), _all(), _own()

    def share(self) -> float | None:
        """Of all processors' time, what others took; None where the system does not say, or too
        little time has gone by."""
        elapsed = time.monotonic() - self._began
        if self._all is None or elapsed < SHORTEST:
            return None
        spent = (_all() or 0.0) - self._all - (_own() - self._own)
        return max(0.0, spent / (elapsed * (os.cpu_count() or 1)))


def _all() -> float | None:
    if not STAT.exists():
        return None
    fields = STAT.read_text().splitlines()[0].split()[1:]
    return sum(int(fields[n]) for n in BUSY) / os.sysconf("SC_CLK_TCK")


def _own() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
