"""How many threads work on the host may take."""

from __future__ import annotations

import os


def usable_processors() -> int:
    """The processors that this process may use: of a container or a job often not all there are."""
    usable = getattr(os, "sched_getaffinity", None)
    return len(usable(0)) if usable else os.cpu_count() or 1
