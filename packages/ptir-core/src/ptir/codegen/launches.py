"""A compiled program: a list of steps, bound to memory and replayed.

Everything that can be settled at compile time is: kernel objects, sizes, arena parts, constants.
A replay binds only the inputs and outputs that changed since the last one and queues the steps. A
step is anything with ``run``: today kernels and copies; a whole program in one launch, or a
recorded graph, can take the place of many. A device that walks lists of launches by itself
(``KernelDevice.sequence``) gets them all in one call.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from ptir.backend.contract import Executable, Handle, RunStats
from ptir.backend.kernel import KernelDevice, Memory
from ptir.codegen.kernel import Kernel
from ptir.codegen.memory import Pool
from ptir.codegen.plan import Place
from ptir.ir.program import Program


class Step(ABC):
    """One thing to queue."""

    kernels = 0
    """Kernels that one run launches."""
    launched: tuple[Any, int] | None = None
    """The kernel and its items, where that is all there is to it."""

    @abstractmethod
    def places(self) -> Sequence[Place]:
        """The memories it uses, by argument position."""

    @abstractmethod
    def bind(self, position: int, memory: Memory) -> None:
        """Use ``memory`` for an argument from now on."""

    @abstractmethod
    def run(self) -> None:
        """Queue it."""


class Launch(Step):
    """A kernel and its number of items."""

    kernels = 1

    def __init__(
        self, device: KernelDevice, kernel: Any, items: int, places: Sequence[Place]
    ) -> None:
        self._device, self._kernel, self._items = device, kernel, items
        self.launched = (kernel, items)
        self._places = places
        self._held: list[Memory] = [None] * len(places)
        self.kernel: Kernel | None = None
        """What was launched, for those who explain a program."""

    def places(self) -> Sequence[Place]:
        """One memory per kernel argument."""
        return self._places

    def bind(self, position: int, memory: Memory) -> None:
        """Set a kernel argument, unless it is that memory already."""
        if self._held[position] is not memory:
            self._device.bind(self._kernel, position, memory)
            self._held[position] = memory

    def run(self) -> None:
        """Queue the kernel."""
        self._device.launch(self._kernel, self._items)


class Transfer(Step):
    """A copy from one memory to another."""

    def __init__(self, device: KernelDevice, source: Place, target: Place, nbytes: int) -> None:
        self._device, self.nbytes = device, nbytes
        self._places = (source, target)
        self._held: list[Memory] = [None, None]
        self._copier = device.copier(nbytes)
        self.launched = None if self._copier is None else (self._copier, 1)

    def places(self) -> Sequence[Place]:
        """The source and the target."""
        return self._places

    def bind(self, position: int, memory: Memory) -> None:
        """Use another source or target."""
        self._held[position] = memory
        if self._copier is not None:
            self._device.bind(self._copier, position, memory)

    def run(self) -> None:
        """Queue the copy."""
        self._device.copy(self._held[0], self._held[1], self.nbytes)


class KernelProgram(Executable):
    """A program as steps on a device. Runs of several threads follow one another."""

    def __init__(
        self,
        program: Program,
        device: KernelDevice,
        pool: Pool,
        stats: RunStats,
        steps: Sequence[Step],
        outputs: Sequence[Place],
        fixed: Sequence[Memory],
    ) -> None:
        self.program = program
        self._pool, self._stats = pool, stats
        self._steps = tuple(steps)
        self._queue = _in_one_call(device, self._steps) or _one_by_one(self._steps)
        self._outputs = tuple(outputs)
        self._fixed = tuple(fixed)  # arena and constants live as long as the program
        self._kernels = sum(step.kernels for step in steps)
        self._inputs = self._users("input")
        self._results = self._users("output")
        self._lock = threading.Lock()

    def _users(self, kind: str) -> tuple[tuple[int, Step, int], ...]:
        """The arguments that are inputs or outputs: number, step and argument position."""
        return tuple(
            (place.number, step, position)
            for step in self._steps
            for position, place in enumerate(step.places())
            if place.kind == kind
        )

    def __del__(self) -> None:
        self._pool.retire((self._steps, self._fixed), 0)

    @property
    def steps(self) -> tuple[Step, ...]:
        """What one run queues, in order."""
        return self._steps

    def run(self, inputs: Sequence[Handle]) -> tuple[Handle, ...]:
        """Queue one run."""
        types = self.program.outputs
        with self._lock:
            results = [
                inputs[place.number]
                if place.kind == "input"
                else self._pool.allocate(types[place.number])
                for place in self._outputs
            ]
            for number, step, position in self._inputs:
                step.bind(position, inputs[number].memory)
            for number, step, position in self._results:
                step.bind(position, results[number].memory)
            self._queue()
            self._stats.kernels_launched += self._kernels
        return tuple(results)


def _one_by_one(steps: Sequence[Step]) -> Callable[[], None]:
    """What queues one step after the other."""

    def queue() -> None:
        for step in steps:
            step.run()

    return queue


def _in_one_call(device: KernelDevice, steps: Sequence[Step]) -> Callable[[], None] | None:
    """What queues every step at once, where the device does that."""
    launches = [step.launched for step in steps if step.launched is not None]
    return device.sequence(launches) if len(launches) == len(steps) else None
