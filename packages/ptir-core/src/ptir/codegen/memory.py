"""Device memory as the generator's backends hand it out: handles, reuse, and counters."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from ptir.backend.contract import MemoryStats
from ptir.backend.kernel import KernelDevice, Memory
from ptir.errors import DeviceLost, OutOfMemory
from ptir.types import TensorType

SPARE = 1 << 25
"""Most bytes that are kept for reuse."""
IDLE: Final = 4 << 20
IDLE_PART: Final = 32
"""No more than ``IDLE`` bytes, or this part of what is in use, are kept however much is allowed."""
RETIRED = 1 << 26
"""Most bytes that wait for the queue before they are given up."""


@dataclass(eq=False)
class Resident:
    """A tensor on a device: the handle of a kernel-level backend.

    ``owner`` gets the memory back when the handle goes away; ``host`` is what borrowed memory
    belongs to, which must stay until everything queued is done.
    """

    memory: Memory
    type: TensorType
    owner: Pool = field(repr=False)
    host: Any = field(default=None, repr=False)

    def __del__(self) -> None:
        if self.host is None:
            self.owner.release(self.memory, self.type.nbytes)
        else:
            self.owner.retire((self.memory, self.host), self.type.nbytes)


class Pool:
    """Allocations of a device. Queues run in order, so freed memory may be handed out at once."""

    def __init__(self, device: KernelDevice, reopened: bool = False) -> None:
        self._device = device
        self._reopened = reopened
        self._free: defaultdict[int, list[Memory]] = defaultdict(list)
        self._spare, self._most_spare = 0, SPARE
        self._live = 0
        self._peak = 0
        self._retired: list[object] = []
        self._waiting = 0
        self._patience = RETIRED  # handles may die after this module's names, when Python ends
        self._lock = threading.RLock()

    def allocate(self, type: TensorType) -> Resident:
        """A tensor of uninitialized memory; raises ``OutOfMemory``."""
        return Resident(self.take(type.nbytes), type, self)

    def take(self, nbytes: int) -> Memory:
        """Memory of at least one byte, perhaps used before."""
        size = max(1, nbytes)
        with self._lock:
            if self._free[size]:
                self._spare -= size
                memory = self._free[size].pop()
            else:
                memory = self._fresh(size)
            self._live += size
            self._peak = max(self._peak, self._live + self._spare)
            return memory

    def _fresh(self, size: int) -> Memory:
        """New memory, if need be after giving up all that is kept for reuse."""
        try:
            return self._device.allocate(size)
        except OutOfMemory:
            kept = self._spare or self._retired
            if not kept or size > self._device.traits.largest:
                raise
            self._free.clear()
            self._spare = 0
            self._device.finish()
            self.settled()
            return self._device.allocate(size)

    def check(self, handles: Iterable[Resident]) -> None:
        """Raise ``DeviceLost`` where the device, or a handle's device, is gone."""
        if self._device.lost:
            raise DeviceLost("the device was lost after the program was compiled; compile it again")
        if self._reopened and any(handle.owner is not self for handle in handles):
            raise DeviceLost("a tensor was on a device that was lost; make it again from the host")

    def release(self, memory: Memory, nbytes: int) -> None:
        """Take memory back."""
        size = max(1, nbytes)
        with self._lock:
            self._live -= size
            if self._spare + size <= min(self._most_spare, max(IDLE, self._live // IDLE_PART)):
                self._free[size].append(memory)
                self._spare += size
            else:
                self.retire(memory, size)

    def retire(self, things: object, nbytes: int) -> None:
        """Keep ``things`` until what is queued now is done: drivers do not."""
        with self._lock:
            self._retired.append(things)
            self._waiting += nbytes
            if self._waiting > self._patience and not self._device.lost:
                self._device.finish()
                self.settled()

    def settled(self) -> None:
        """Everything queued is done: give up what waited for that."""
        with self._lock:
            self._retired.clear()
            self._waiting = 0

    def stats(self) -> MemoryStats:
        """Bytes in use now, and the most that there were with those kept for reuse."""
        return MemoryStats(self._live, self._peak)
