"""Kernels with their arguments, and lists of launches that become CUDA graphs.

A graph holds the addresses that it was recorded with. So it is stored under all addresses of its
list, and launched when these come again: buffers come from pools, so a program that runs again and
again (a decode step) soon has met every set of addresses that it will meet. Several runs of a list
are one graph, stored under the addresses of all of them; who asks for several will ask again, so
that is recorded at once.
"""

from __future__ import annotations

import ctypes
from collections import OrderedDict
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from ptir.codegen.api import AddressedKernel, Block, CommandBuffer
from ptir_backend_cupy.dialect import THREADS

if TYPE_CHECKING:
    from ptir_backend_cupy.device import CupyDevice

GRAPHS: Final = 16
"""Graphs that a list keeps; those not used for longest go."""
TURNS: Final = 16
"""Runs of a list in one graph, at most."""
LEAST: Final = 3
"""Launches below which a graph saves nothing."""


def grid(workgroups: int, workgroup_size: int) -> tuple[int, int]:
    """Blocks and threads of a launch: a workgroup is a block; serial ones are a thread of one."""
    if workgroup_size == 1:
        return -(-workgroups // THREADS), THREADS
    return workgroups, workgroup_size


class Kernel(AddressedKernel):
    """A function, and its arguments as CUDA takes them: addresses of values.

    The number of workgroups comes last; a cooperative kernel does not take it.
    """

    def __init__(self, function: int, name: str, buffers: int, built: object) -> None:
        self.function, self.name, self.built = function, name, built
        self.items = ctypes.c_int()
        super().__init__(buffers)

    def take(self, addresses: Any) -> None:
        """The arguments follow the addresses."""
        super().take(addresses)
        first = ctypes.addressof(addresses)
        size = ctypes.sizeof(ctypes.c_void_p)
        values = [first + number * size for number in range(len(addresses))]
        self.given = (ctypes.c_void_p * (len(values) + 1))(*values, ctypes.addressof(self.items))


class Copy(AddressedKernel):
    """A copy from its first memory to its second."""

    name = "a copy"

    def __init__(self, nbytes: int) -> None:
        super().__init__(2)
        self.nbytes = nbytes


class Replay(CommandBuffer):
    """Launches whose addresses are one block: its bytes say which graph is the right one."""

    def __init__(self, device: CupyDevice, launches: Sequence[tuple[Any, int, int]]) -> None:
        self._device, self._launches = device, launches
        self._block = Block((kernel for kernel, *_ in launches), TURNS)
        self._met: OrderedDict[bytes, Any] = OrderedDict()
        self.recorded = 0

    def bind_slot(self, slot: int) -> None:
        """Copy the block of addresses."""
        self._block.hold(slot)

    def submit(self, count: int) -> None:
        """Addresses of one run that are new are queued one by one; all others become a graph."""
        addresses = self._block.bytes_of(count)
        graph = self._met.get(addresses)
        if graph is not None:
            self._met.move_to_end(addresses)
            self._device.replay(graph)
            return
        again = count > 1 or addresses in self._met
        if again and count * len(self._launches) >= LEAST:
            graph = self._device.recorded(partial(self._queue, count))
            self.recorded += 1
            self._remember(addresses, graph)
            self._device.replay(graph)
            return
        self._remember(addresses, None)
        self._device.in_turn(partial(self._queue, count))

    def _remember(self, addresses: bytes, graph: Any) -> None:
        """Keep a graph, or that the addresses were met, as long as it is used."""
        self._met[addresses] = graph
        if len(self._met) > GRAPHS:
            self._met.popitem(last=False)

    def _queue(self, count: int, stream: Any) -> None:
        """Every run with its addresses; the block holds those of the last one then, as before."""
        for slot in range(count):
            self._block.recall(slot)
            for kernel, workgroups, workgroup_size in self._launches:
                self._device.queue(kernel, workgroups, workgroup_size, stream)
