"""Memory of this process as the system counts it: the most of a while that was resident at once."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

PROCESS: Final = Path("/proc/self")
"""Where Linux tells of a process, and takes orders."""
FORGET: Final = "5"
"""What, written to ``clear_refs``, has the peak begin again at what is resident (proc(5))."""


def restart_peak() -> bool:
    """Have ``peak_resident`` count from now on; whether the system can."""
    try:
        (PROCESS / "clear_refs").write_text(FORGET)
    except OSError:  # another system than Linux, or one whose /proc is read-only
        return False
    return True


def peak_resident() -> int | None:
    """The most bytes that were resident at once; None where the system does not tell."""
    try:
        found = re.search(r"VmHWM:\s+(\d+) kB", (PROCESS / "status").read_text())
    except OSError:
        return None
    return int(found[1]) * 1024 if found else None
