"""Bytes and seconds for people."""

from __future__ import annotations


def size(nbytes: int) -> str:
    """Bytes in the largest decimal unit that keeps them above one; nothing for zero."""
    if not nbytes:
        return ""
    for factor, unit in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if nbytes >= factor:
            return f"{nbytes / factor:.{0 if nbytes >= 100 * factor else 1}f} {unit}"
    return f"{nbytes} B"


def duration(seconds: float) -> str:
    """Seconds in a unit that fits."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 1:
        return f"{seconds * 1e3:.{2 if seconds < 1e-2 else 1}f} ms"
    return f"{seconds:.2f} s"
