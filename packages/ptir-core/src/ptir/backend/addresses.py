"""Memory that is an address, and the addresses that kernels of one launch after another take."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ptir.backend.kernel import KernelDevice


class Addressed:
    """An address, and what keeps it valid."""

    __slots__ = ("address", "nbytes", "owner")

    def __init__(self, address: int, nbytes: int, owner: object) -> None:
        self.address, self.nbytes, self.owner = address, nbytes, owner

    def part(self, offset: int, nbytes: int) -> Addressed:
        """An address further on."""
        return Addressed(self.address + offset, nbytes, self.owner)


class AddressedKernel:
    """A kernel with an array of the addresses of its buffers."""

    __slots__ = ("addresses",)

    def __init__(self, buffers: int) -> None:
        self.take((ctypes.c_void_p * buffers)())

    def take(self, addresses: Any) -> None:
        """Have the addresses in another array, of ours, from now on."""
        self.addresses = addresses


class AddressedDevice(KernelDevice):
    """A device whose memory is ``Addressed``, and whose kernels are told addresses."""

    def subspan(self, memory: Addressed, offset: int, nbytes: int) -> Addressed:
        """An address further on, which keeps the whole allocation."""
        return memory.part(offset, nbytes)

    def bind(self, kernel: AddressedKernel, position: int, memory: Addressed) -> None:
        """Write an address into the kernel's array."""
        kernel.addresses[position] = memory.address

    def binder(
        self, arguments: Sequence[tuple[AddressedKernel, int]]
    ) -> Callable[[Addressed], None]:
        """Write an address to where the kernels' arrays have it: they stay where they are now."""
        size = ctypes.sizeof(ctypes.c_void_p)
        places = [
            ctypes.c_void_p.from_buffer(kernel.addresses, position * size)
            for kernel, position in arguments
        ]

        def bind(memory: Addressed) -> None:
            address = memory.address
            for place in places:
                place.value = address

        return bind


class Block:
    """The addresses of kernels in one block, of which a copy is held for each of some runs."""

    def __init__(self, kernels: Iterable[AddressedKernel], runs: int) -> None:
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
