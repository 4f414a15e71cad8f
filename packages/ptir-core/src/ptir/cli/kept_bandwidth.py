"""The bandwidth of this machine's memory, measured once and kept in the cache folder.

What is kept is the greatest that any probe has found: others may have used the memory meanwhile.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ptir.backend.record_file import RecordFile
from ptir.cli.bandwidth import CacheProbe, is_host, probe_of
from ptir.params.processors import usable_processors

if TYPE_CHECKING:
    from ptir.backend.contract import Target


CACHED: Final = tuple(1 << power for power in range(20, 27))
"""Bytes that are read again and again: from what any cache holds to what none does."""
LEAST: Final = 1 << 18
"""Bytes that a thread reads at least: fewer take no longer than starting to read."""
cache_probe = CacheProbe


@dataclass(frozen=True)
class Measured:
    """Bytes per second, and how they were measured, for people."""

    bytes_per_second: float
    kind: str

    def __post_init__(self) -> None:
        if not (isinstance(self.bytes_per_second, float) and self.bytes_per_second > 0):
            raise TypeError(f"bytes_per_second {self.bytes_per_second!r}")


BANDWIDTHS: Final = RecordFile(
    "bandwidths",
    Measured,
    "list of bandwidths",
    unread="it is measured again, and replaced",
    unwritten="the next run measures again",
)


def bandwidth_of(target: Target) -> float:
    """Bytes per second of the memory that ``target`` computes in, probed if none are known."""
    known = BANDWIDTHS.read().get(machine(target))
    if known is not None:
        return known.bytes_per_second
    probe = probe_of(target)
    return keep(target, probe.bandwidth(), probe.kind)


def keep(target: Target, bytes_per_second: float, kind: str) -> float:
    """Keep what a probe has found, if nothing greater is known; gives the greater."""
    kept, key = BANDWIDTHS.read(), machine(target)
    if key in kept and kept[key].bytes_per_second >= bytes_per_second:
        return kept[key].bytes_per_second
    kept[key] = Measured(bytes_per_second, kind)
    BANDWIDTHS.write(kept)
    return bytes_per_second


def cache_bandwidths(target: Target, *, again: bool = False) -> dict[int, float]:
    """Bytes per second at which processors read so many bytes again and again, by these.

    None are known of devices, and where threads would have too few of them. Measured once and
    kept, as memory's is; ``again`` measures anew, and the greater is kept.
    """
    if not is_host(target):
        return {}
    threads = usable_processors()
    sizes = [size for size in CACHED if size // threads >= LEAST]
    known, found = BANDWIDTHS.read(), dict[int, float]()
    for size in sizes:
        key = f"{machine(target)}, {size} bytes again"
        if again or key not in known:
            probe = cache_probe(threads, size)
            measured = Measured(probe.bandwidth(), probe.kind)
            old = known.get(key, measured)
            known[key] = max(measured, old, key=lambda one: one.bytes_per_second)
        found[size] = known[key].bytes_per_second
    if found:
        BANDWIDTHS.write(known)
    return found


def machine(target: Target) -> str:
    """What a bandwidth is kept for: the processor and how much of it is used, or the device."""
    if not is_host(target):
        return f"{target.backend.name} {target.device.name}"
    from ptir.codegen.processor import facts

    name = facts().get("model name") or platform.processor()
    return f"{platform.machine()} {name}, {usable_processors()} processors"
