"""Memory that is an address, and the addresses that kernels of one launch after another take."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from typing import Any, Protocol


class Addressed:
    """An address, and what keeps it valid."""

    __slots__ = ("address", "nbytes", "owner")

    def __init__(self, address: int, nbytes: int, owner: object) -> None:
        self.address, self.nbytes, self.owner = address, nbytes, owner

    def part(self, offset: int, nbytes: int) -> Addressed:
        """An address further on."""
        return Addressed(self.address + offset, nbytes, self.owner)


class Taking(Protocol):
    """A kernel with an array of the addresses of its buffers."""

    addresses: Any

    def take(self, addresses: Any) -> None:
        """Use another array, of ours, from now on."""


class Block:
    """The addresses of kernels in one block, of which a copy is held for each of some runs."""

    def __init__(self, kernels: Iterable[Taking], runs: int) -> None:
        before = [(kernel, kernel.addresses) for kernel in kernels]
        self.nbytes = sum(ctypes.sizeof(array) for _, array in before)
        self._now = ctypes.create_string_buffer(max(1, self.nbytes))
        self._held = ctypes.create_string_buffer(max(1, self.nbytes * runs))
        self.now, self.held = ctypes.addressof(self._now), ctypes.addressof(self._held)
        self.offsets: list[int] = []
        offset = 0
        for kernel, array in before:
            own = type(array).from_buffer(self._now, offset)
            ctypes.memmove(own, array, ctypes.sizeof(own))
            kernel.take(own)
            self.offsets.append(offset)
            offset += ctypes.sizeof(own)

    def hold(self, run: int) -> None:
        """Copy what the kernels are bound to now."""
        ctypes.memmove(self.held + run * self.nbytes, self.now, self.nbytes)

    def recall(self, run: int) -> None:
        """Bind the kernels to what was held for a run."""
        ctypes.memmove(self.now, self.held + run * self.nbytes, self.nbytes)

    def bytes_of(self, runs: int) -> bytes:
        """What is held for the first runs."""
        return ctypes.string_at(self.held, runs * self.nbytes)
