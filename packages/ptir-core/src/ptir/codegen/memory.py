"""Device memory as the generator's backends hand it out: handles, reuse, and counters."""

from __future__ import annotations

import threading
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from ptir.backend.contract import MemoryStats
from ptir.backend.kernel import KernelDevice, Memory
from ptir.types import TensorType

SPARE = 1 << 25
"""Most bytes that are kept for reuse."""


@dataclass(eq=False)
class Resident:
    """A tensor on a device: the handle of a kernel-level backend.

    ``owner`` gets the memory back when the handle goes away; ``host`` is what borrowed memory
    belongs to.
    """

    memory: Memory
    type: TensorType
    owner: Pool | None = field(default=None, repr=False)
    host: Any = field(default=None, repr=False)

    def __del__(self) -> None:
        if self.owner is not None:
            self.owner.release(self.memory, self.type.nbytes)


class Pool:
    """Allocations of a device. Queues run in order, so freed memory may be handed out at once."""

    def __init__(self, device: KernelDevice) -> None:
        self._device = device
        self._free: defaultdict[int, list[Memory]] = defaultdict(list)
        self._spare = 0
        self._live = 0
        self._peak = 0
        self._lock = threading.RLock()

    def allocate(self, type: TensorType) -> Resident:
        """A tensor of uninitialized memory; raises ``OutOfMemory``."""
        return Resident(self.take(type.nbytes), type, self)

    def take(self, nbytes: int) -> Memory:
        """Memory of at least one byte, perhaps used before."""
        size = max(1, nbytes)
        with self._lock:
            self._live += size
            self._peak = max(self._peak, self._live + self._spare)
            if self._free[size]:
                self._spare -= size
                return self._free[size].pop()
            return self._device.allocate(size)

    def release(self, memory: Memory, nbytes: int) -> None:
        """Take memory back."""
        size = max(1, nbytes)
        with self._lock:
            self._live -= size
            if self._spare + size <= SPARE:
                self._free[size].append(memory)
                self._spare += size

    def stats(self) -> MemoryStats:
        """Bytes in use now and the most there were, kept ones included."""
        return MemoryStats(self._live + self._spare, self._peak)
