"""Environment variables: those that switch something on (1; 0, empty or unset is off), limits."""

from __future__ import annotations

import os
from typing import Final

from ptir.errors import UsageError, unknown_name
from ptir.units import EXPLAINED, bytes_of

SWITCHES: Final = {
    "PTIR_EAGER": "run every op at once instead of recording it",
    "PTIR_VERIFY": "verify types after every pass, and the bounds, barriers and chains of kernels",
    "PTIR_CHECK_INDICES": "raise where an index is outside instead of clamping it",
    "PTIR_AS_WRITTEN": "leave ops as they are written: raise no functionals from them",
    "PTIR_FAST_MATH": "apply rules that may change rounding, signs of zeros and NaN",
    "PTIR_REBUILD_KERNELS": "build kernels and pack weights again: neither is on disk",
    "PTIR_DEBUG": "show the traceback of an error",
}

FAST_MATH: Final = "PTIR_FAST_MATH"
"""The switch of inexact rules; ``--fast-math`` sets it."""

SCHEDULES: Final = {
    "serial": "a thread owns a tile, with vectors and without barriers",
    "coop": "a workgroup owns a tile and shares memory",
}
"""How kernels divide their work."""
SCHEDULE: Final = "PTIR_SCHEDULE"
"""The variable that forces a schedule where both can be; ``--schedule`` sets it."""

THREADS: Final = "PTIR_C_THREADS"
"""The variable that says how many threads the C backend runs; ``--threads`` sets it."""

WEIGHTS_LIMIT: Final = "PTIR_WEIGHTS_LIMIT"
LIMITS: Final = {
    WEIGHTS_LIMIT: "the most bytes of packed weights in the cache folder, such as 8GiB; 0 is none",
}
"""The variables that say how many bytes something may take."""


def switched_on(name: str) -> bool:
    """Whether the switch called ``name`` is on; raises ``UsageError`` for any other value."""
    if name not in SWITCHES:
        raise UsageError(unknown_name("switch", name, SWITCHES))
    text = os.environ.get(name, "")
    if text not in ("", "0", "1"):
        raise UsageError(f"{name}={text}: set it to 1 ({SWITCHES[name]}) or to 0")
    return text == "1"


def limited_bytes(name: str) -> int | None:
    """The bytes that the limit called ``name`` says, None where it is unset or empty.

    Raises ``UsageError`` for what is no number of bytes.
    """
    if name not in LIMITS:
        raise UsageError(unknown_name("limit", name, LIMITS))
    text = os.environ.get(name, "")
    if not text:
        return None
    try:
        return bytes_of(text)
    except ValueError as error:
        raise UsageError(
            f"{name}={text}: {error}; set it to {LIMITS[name]}, with or without a unit: {EXPLAINED}"
        ) from None
