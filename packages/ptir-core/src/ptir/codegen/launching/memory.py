"""Device memory as the generator's backends hand it out: handles, reuse, and counters."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any, Final

from ptir.backend.contract import MemoryStats
from ptir.backend.kernel import KernelDevice, Memory
from ptir.errors import DeviceLost, OutOfMemory
from ptir.types import U8, TensorType

SPARE = 1 << 28
"""Most bytes that are kept for reuse."""
IDLE: Final = 4 << 20
IDLE_PART: Final = 32
"""Of sizes that did not come back yet, ``IDLE`` bytes are kept, or this part of what is in use."""
LITTLE: Final = 1 << 16
LITTLE_IN_ALL: Final = 4 << 20
"""Allocations up to ``LITTLE`` bytes are kept up to ``LITTLE_IN_ALL``, whatever the peak: they cost
nothing, and where addresses come again, so do recorded graphs."""
RECENT: Final = 64
"""Allocations given up lately: when one of their sizes is asked for again, it comes back."""
SMALL: Final = 1 << 12
"""Most bytes of a tensor that becomes a part of an allocation."""
RETIRED = 1 << 26
"""Most bytes that wait for the queue before they are given up."""


@dataclass(eq=False)
class DeviceBuffer:
    """A tensor on a device: the handle of a kernel-level backend.

    ``owner`` gets the memory back when the handle goes away; ``host`` is what borrowed memory
    belongs to, which must stay until everything queued is done; ``whole`` is what the memory is a
    part of, which goes back instead, with the last of its parts.
    """

    memory: Memory
    type: TensorType
    owner: Pool = field(repr=False)
    host: Any = field(default=None, repr=False)
    whole: DeviceBuffer | None = field(default=None, repr=False)

    def __del__(self) -> None:
        if self.whole is not None:
            return
        if self.host is None:
            self.owner.release(self.memory, self.type.nbytes)
        else:
            self.owner.defer_free((self.memory, self.host), self.type.nbytes)


@dataclass(frozen=True)
class Layout:
    """How tensors are allocated together: the small ones are parts of one allocation.

    So the addresses of many follow from one, and come again when that does.
    """

    whole: TensorType
    parts: tuple[tuple[TensorType, int, int | None], ...]
    """The type and bytes of each, and its offset; None where it is an allocation of its own."""

    @staticmethod
    def of(types: Sequence[TensorType], alignment: int) -> Layout:
        """One after the other, each aligned."""
        parts: list[tuple[TensorType, int, int | None]] = []
        end = 0
        for type in types:
            nbytes = max(1, type.nbytes)
            parts.append((type, nbytes, end if nbytes <= SMALL else None))
            end += -(-nbytes // alignment) * alignment if nbytes <= SMALL else 0
        return Layout(TensorType(U8, (end,)), tuple(parts))


class Pool:
    """Allocations of a device. Queues run in order, so freed memory may be handed out at once.

    A system pages fresh memory in, which takes longer than many kernels, so what is given back is
    kept: little of it until its size comes back, and never so much that it raises the peak. What
    was allocated first is handed out first, whatever was given back last: who does the same again
    gets the same memory.
    """

    def __init__(self, device: KernelDevice, reopened: bool = False) -> None:
        self._device = device
        self._reopened = reopened
        # Heaps of the numbers and memories that wait, by size; what was kept last comes last.
        self._free: dict[int, list[tuple[int, Memory]]] = {}
        self._given_up: deque[int] = deque(maxlen=RECENT)
        self._recurring: set[int] = set()
        self._little: dict[int, list[tuple[int, Memory]]] = {}
        self._numbers: dict[int, int] = {}  # of allocations, by the identity of their memory
        self._allocated = 0
        self._little_in_all = 0
        self._spare, self._most_spare = 0, SPARE
        self._live = 0
        self._peak = 0
        self._retired: list[object] = []
        self._waiting = 0
        self._patience = RETIRED  # handles may die after this module's names, when Python ends
        self._lock = threading.RLock()
        self._limit: int | None = None

    def limit(self, nbytes: int) -> None:
        """Hold nothing for reuse that would make it more than ``nbytes`` besides what lives now."""
        with self._lock:
            self._limit = self._live + nbytes

    def allocate(self, type: TensorType) -> DeviceBuffer:
        """A tensor of uninitialized memory; raises ``OutOfMemory``."""
        return DeviceBuffer(self.take(type.nbytes), type, self)

    def allocate_packed(self, layout: Layout) -> list[DeviceBuffer]:
        """Tensors of uninitialized memory."""
        whole = self.allocate(layout.whole) if layout.whole.size else None
        part = self._device.subspan
        return [
            self.allocate(type)
            if whole is None or offset is None
            else DeviceBuffer(part(whole.memory, offset, nbytes), type, self, whole=whole)
            for type, nbytes, offset in layout.parts
        ]

    def take(self, nbytes: int) -> Memory:
        """Memory of at least one byte, perhaps used before."""
        size = max(1, nbytes)
        with self._lock:
            little = self._little.get(size)
            if little:
                _, memory = heappop(little)
                self._little_in_all -= size
            else:
                memory = self._kept(size) if size in self._free else self._numbered(size)
            if self._limit is not None:  # what was handed out again counts no less than new memory
                self._make_room(self._limit - self._live - size)
            self._live += size
            self._peak = max(self._peak, self._live + self._spare + self._little_in_all)
            return memory

    def _kept(self, size: int) -> Memory:
        """Memory that waited for reuse."""
        waiting = self._free[size]
        _, memory = heappop(waiting)
        if not waiting:
            del self._free[size]
        self._spare -= size
        return memory

    def _trim(self, allowed: int) -> None:
        """Give up memory, what has been kept longest first, until ``allowed`` bytes wait."""
        while self._spare > max(0, allowed):
            size = next(iter(self._free))
            self._give_up(self._kept(size), size)

    def _make_room(self, left: int) -> None:
        """Have at most ``left`` bytes wait, for reuse or for the queue."""
        if self._spare + self._little_in_all + self._waiting <= left:
            return
        self._trim(left - self._little_in_all)
        if self._spare + self._little_in_all > left:
            for size, waiting in self._little.items():
                for _, memory in waiting:
                    self._give_up(memory, size)
            self._little.clear()
            self._little_in_all = 0
        self._device.finish()
        self.flush_deferred()

    def _give_up(self, memory: Memory, size: int) -> None:
        self._given_up.append(size)
        del self._numbers[id(memory)]
        self.defer_free(memory, size)

    def _numbered(self, size: int) -> Memory:
        """New memory, and its number."""
        memory = self._fresh(size)
        self._allocated += 1
        self._numbers[id(memory)] = self._allocated
        return memory

    def _fresh(self, size: int) -> Memory:
        """New memory, if need be after giving up all that is kept for reuse."""
        if size in self._given_up:
            self._recurring.add(size)
        self._trim(self._peak - self._live - size)
        if self._limit is not None:
            self._make_room(self._limit - self._live - size)
        try:
            return self._device.allocate(size)
        except OutOfMemory:
            kept = self._spare or self._little_in_all or self._retired
            if not kept or size > self._device.traits.max_allocation_bytes:
                raise
            for waiting in (*self._free.values(), *self._little.values()):
                for _, memory in waiting:
                    del self._numbers[id(memory)]
            self._free.clear()
            self._little.clear()
            self._spare = self._little_in_all = 0
            self._device.finish()
            self.flush_deferred()
            return self._device.allocate(size)

    def check(self, handles: Iterable[DeviceBuffer]) -> None:
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
            if size <= LITTLE and self._little_in_all + size <= LITTLE_IN_ALL:
                heappush(self._little.setdefault(size, []), (self._numbers[id(memory)], memory))
                self._little_in_all += size
                return
            limit = self._most_spare
            if size in self._recurring:
                self._trim(limit - size)
            else:
                limit = min(limit, max(IDLE, self._live // IDLE_PART))
            if self._spare + size > limit:
                self._give_up(memory, size)
                return
            waiting = self._free.pop(size, [])
            heappush(waiting, (self._numbers[id(memory)], memory))
            self._free[size] = waiting
            self._spare += size

    def defer_free(self, things: object, nbytes: int) -> None:
        """Keep ``things`` until what is queued now is done: drivers do not."""
        with self._lock:
            self._retired.append(things)
            self._waiting += nbytes
            if self._waiting > self._patience and not self._device.lost:
                self._device.finish()
                self.flush_deferred()

    def flush_deferred(self) -> None:
        """Everything queued is done: give up what waited for that."""
        with self._lock:
            self._retired.clear()
            self._waiting = 0

    def stats(self) -> MemoryStats:
        """Bytes in use now, and the most that there were with those kept for reuse."""
        return MemoryStats(self._live, self._peak)
