"""What the backend's arrays take: every array is counted when it is made and when it is freed.

Intermediates and borrowed parameters count, views of counted memory do not, nor does what a kernel
allocates and frees inside.
"""

from __future__ import annotations

import weakref
from threading import RLock
from typing import Any

import numpy as np

from ptir.backend import MemoryStats

Array = np.ndarray[Any, np.dtype[Any]]


class _Owner(weakref.ref[Array]):
    """A weak reference to an array that owns memory, with its size and its key in the table."""

    __slots__ = ("key", "nbytes")

    key: int
    nbytes: int


class Memory:
    """Bytes live now and the most that were live at once; safe to use from several threads."""

    def __init__(self) -> None:
        # A lock of which a thread may hold two: an array may be freed while another is counted.
        self._lock = RLock()
        self._owners: dict[int, _Owner] = {}
        self._live = 0
        self._peak = 0

    def count(self, array: Array) -> None:
        """Count the memory behind ``array`` until it is freed, unless it is counted already."""
        owner, owners = array, self._owners
        while id(owner) not in owners:
            base = owner.base
            if not isinstance(base, np.ndarray):
                self.count_alone(owner)
                return
            owner = base

    def count_alone(self, array: Array) -> None:
        """Count the bytes of ``array`` itself until it is freed, whoever owns its memory."""
        owner = _Owner(array, self._freed)
        owner.key, owner.nbytes = id(array), array.nbytes
        with self._lock:
            self._owners[owner.key] = owner
            self._live += owner.nbytes
            if self._live > self._peak:
                self._peak = self._live

    def _freed(self, owner: Any) -> None:
        # Also called while the interpreter shuts down, when this module's names are gone.
        with self._lock:
            del self._owners[owner.key]
            self._live -= owner.nbytes

    def stats(self) -> MemoryStats:
        """The figures now."""
        with self._lock:
            return MemoryStats(self._live, self._peak)
