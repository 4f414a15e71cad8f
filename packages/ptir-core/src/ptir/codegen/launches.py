"""A compiled program: a list of steps, bound to memory and replayed.

Everything that can be settled at compile time is: kernel objects, sizes, arena parts, constants.
A replay binds only the inputs and outputs that changed since the last one and queues the steps. A
step is anything with ``run``: today kernels and copies; a whole program in one launch, or a
recorded graph, can take the place of many.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from ptir.backend.contract import Executable, Handle, RunStats
from ptir.backend.kernel import KernelDevice, Memory
from ptir.codegen.memory import Pool
from ptir.codegen.plan import Place
from ptir.codegen.recipe import Call
from ptir.codegen.together import kernel_of
from ptir.ir.program import Program


class Step(ABC):
    """One thing to queue."""

    kernels = 0
    """Kernels that one run launches."""

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
        self._places = places
        self._held: list[Memory] = [None] * len(places)

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
        self._device, self._nbytes = device, nbytes
        self._places = (source, target)
        self._held: list[Memory] = [None, None]

    def places(self) -> Sequence[Place]:
        """The source and the target."""
        return self._places

    def bind(self, position: int, memory: Memory) -> None:
        """Use another source or target."""
        self._held[position] = memory

    def run(self) -> None:
        """Queue the copy."""
        self._device.copy(self._held[0], self._held[1], self._nbytes)


def step_of(device: KernelDevice, built: Any, call: Call) -> Step:
    """The step of a call, still unbound; ``built`` is the recipe's source file."""
    places = [part.place for part in call.parts]
    if call.kernel:
        kernel = kernel_of(device, built, call.kernel, len(places))
        return Launch(device, kernel, call.items, places)
    source, target = call.parts
    return Transfer(device, source.place, target.place, source.nbytes)


class KernelProgram(Executable):
    """A program as steps on a device. Runs of several threads follow one another."""

    def __init__(
        self,
        program: Program,
        pool: Pool,
        stats: RunStats,
        steps: Sequence[Step],
        outputs: Sequence[Place],
        fixed: Sequence[Memory],
    ) -> None:
        self.program = program
        self._pool, self._stats = pool, stats
        self._steps = tuple(steps)
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
        self._pool.check(inputs)
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
            for step in self._steps:
                step.run()
            self._stats.kernels_launched += self._kernels
        return tuple(results)
