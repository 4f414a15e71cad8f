"""The processor that this process runs on: its class, and which dot products it has."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Final

from ptir.codegen.schedules.tiles import TILES

DOTS: Final = {
    "avx512_vnni": ("dot_bytes", "dot_signed_bytes"),
    "avx512_bf16": ("dot_bf16",),
}
"""The dot products that features of x86 processors are (``Dialect.dots``)."""
PERMUTES: Final = frozenset(("avx512f", "avx512bw", "avx512vbmi"))
"""The features that ``Language.permutes_bytes`` stands for."""
WIDTHS: Final = {16: "cpu-avx512", 8: "cpu-avx2"}
"""Classes of CPUs (``Traits.device_class``) by the f32 of their vectors."""
REGISTERS: Final = {"avx512f": 16, "avx2": 8}
"""The f32 in a register of x86 processors with a feature, the widest first; others hold four."""
AMD: Final = "AuthenticAMD"
FILE: Final = Path("/proc/cpuinfo")
"""Where the system lists the features of its processors."""


def dots() -> frozenset[str]:
    """The dot products that are instructions of this processor, on vectors of 512 bits."""
    features = {*facts().get("flags", "").split()}
    found = (ops for feature, ops in DOTS.items() if {feature, "avx512f"} <= features)
    return frozenset(op for ops in found for op in ops)


def permutes_bytes() -> bool:
    """Whether this processor permutes the bytes of vectors of 512 bits."""
    return {*facts().get("flags", "").split()} >= PERMUTES


def permutes_words() -> bool:
    """Whether this processor permutes the words of vectors of 512 bits."""
    return "avx512f" in facts().get("flags", "").split()


def class_of(lanes: int) -> str:
    """The row of ``tiles.TILES`` for vectors of so many f32 on this processor."""
    found = WIDTHS.get(lanes, "cpu-neon")
    amd = f"{found}-amd"
    return amd if amd in TILES and facts().get("vendor_id") == AMD else found


def register_lanes(lanes: int) -> int:
    """How many of a vector's ``lanes`` f32 a register of this processor holds.

    Compilers split wider vectors over several: tiles for wider ones would not stay in registers.
    """
    features = facts().get("flags", "").split()
    return min(lanes, next((held for name, held in REGISTERS.items() if name in features), 4))


def facts() -> dict[str, str]:
    """What Linux says of its first processor, by the name of each fact; elsewhere nothing."""
    found: dict[str, str] = {}
    with suppress(OSError):
        for line in FILE.read_text().splitlines():
            name, colon, value = line.partition(":")
            if colon:
                found.setdefault(name.strip(), value.strip())
    return found
