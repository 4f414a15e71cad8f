"""How many threads to use and where: affinity, physical cores and the quota of the container."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal

from ptir.codegen.api import THREADS
from ptir.errors import UsageError

SHARED: Final = "PTIR_C_SHARED"

MOST: Final = 1024
"""Threads above which a number can only be a mistake."""
SYSTEM: Final = Path("/sys/devices/system/cpu")
GROUPS: Final = Path("/sys/fs/cgroup")
OWN_GROUP: Final = Path("/proc/self/cgroup")


def threads() -> int:
    """``PTIR_C_THREADS``, else the physical cores that this process may use."""
    given = os.environ.get(THREADS, "")
    if not given:
        return max(1, min(len(cores()), int(quota() or MOST)))
    if not given.isdecimal() or not 1 <= int(given) <= MOST:
        raise UsageError(f"{THREADS}={given}: give a number of threads from 1 to {MOST}")
    return int(given)


def sharing() -> Literal["never", "cheaper", "always"]:
    """``PTIR_C_SHARED``: when threads share programs as workers; by default never."""
    match os.environ.get(SHARED, ""):
        case "" | "never":
            return "never"
        case "cheaper":
            return "cheaper"
        case "always":
            return "always"
        case given:
            raise UsageError(f"{SHARED}={given}: set it to never, cheaper or always")


def places(count: int) -> Sequence[int] | None:
    """A processor for each of ``count`` threads where they take every core, else None.

    Fewer threads are not bound: several processes would all be bound to the first cores.
    """
    found = cores()
    if not hasattr(os, "sched_setaffinity") or count != len(found):
        return None
    return found


def cores() -> list[int]:
    """One processor of each physical core that this process may use."""
    if not hasattr(os, "sched_getaffinity"):
        return list(range(_counted()))
    allowed = sorted(os.sched_getaffinity(0))
    found: dict[str, int] = {}
    for number in allowed:
        found.setdefault(_siblings(number), number)
    return sorted(found.values())


def _siblings(processor: int) -> str:
    """Names the physical core that a processor belongs to."""
    file = SYSTEM / f"cpu{processor}/topology/thread_siblings_list"
    with suppress(OSError):
        return file.read_text().strip()
    return str(processor)


def _counted() -> int:
    """Physical cores where the system only counts them."""
    if sys.platform == "darwin":
        said = subprocess.run(
            ["sysctl", "-n", "hw.physicalcpu"], capture_output=True, text=True, check=False
        )
        if said.stdout.strip().isdecimal():
            return int(said.stdout)
    return os.cpu_count() or 1


def quota() -> float | None:
    """Processors' worth of time that the container may use, or None where it is not limited."""
    found = [*_unified(), *_separate()]
    return min(found) if found else None


def _unified() -> Iterator[float]:
    """The limits of version 2 groups, from this process's group up to the root."""
    for own in _groups(""):
        for folder in (own, *own.parents):
            if not folder.is_relative_to(GROUPS):
                break
            with suppress(OSError, ValueError):
                limit, period = (folder / "cpu.max").read_text().split()
                yield float(limit) / float(period)


def _separate() -> Iterator[float]:
    """The limits of version 1 groups."""
    for own in (*_groups("cpu"), GROUPS / "cpu"):
        with suppress(OSError, ValueError):
            limit = float((own / "cpu.cfs_quota_us").read_text())
            period = float((own / "cpu.cfs_period_us").read_text())
            if limit > 0:
                yield limit / period


def _groups(controller: str) -> Iterator[Path]:
    """Where this process's group for a controller is; version 2 has one for all, called ``""``."""
    with suppress(OSError):
        for line in OWN_GROUP.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controller in controllers.split(","):
                yield GROUPS / controller / path.lstrip("/")
