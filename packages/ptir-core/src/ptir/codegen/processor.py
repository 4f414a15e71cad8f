"""Which dot products are instructions of the processor that this process runs on."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Final

DOTS: Final = {"avx512_vnni": "dot_bytes", "avx512_bf16": "dot_bf16"}
"""The dot products that features of x86 processors are (``Dialect.dots``)."""
FILE: Final = Path("/proc/cpuinfo")
"""Where the system lists the features of its processors."""


def dots() -> frozenset[str]:
    """The dot products that are instructions of this processor, on vectors of 512 bits."""
    features: set[str] = set()
    with suppress(OSError):
        for line in FILE.read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "flags":
                features = set(value.split())
                break
    return frozenset(op for feature, op in DOTS.items() if {feature, "avx512f"} <= features)
