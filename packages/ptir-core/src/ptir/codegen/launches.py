"""A compiled program: a list of steps, bound to memory and replayed.

Everything that can be settled at compile time is: kernel objects, sizes, arena parts, constants.
A replay binds only the inputs and outputs that changed since the last one and queues the steps. A
step is anything with ``run``: today kernels and copies; a whole program in one launch, or a
recorded graph, can take the place of many. A device that walks lists of launches by itself
(``KernelDevice.sequence``) gets them all in one call.
"""

from __future__ import annotations

import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ptir.backend.contract import Executable, Feeds, Handle, RunStats, in_turns
from ptir.backend.explanation import Explanation
from ptir.backend.kernel import KernelDevice, Memory, Walk
from ptir.codegen.memory import Pool
from ptir.codegen.recipe import Call, Place
from ptir.ir.program import Program


class Step(ABC):
    """One thing to queue."""

    launches = 0
    """Kernels that one run launches."""
    holds = False
    """Whether it keeps what it is bound to, so that it must be bound to nothing after a run."""
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

    launches = 1

    def __init__(
        self, device: KernelDevice, kernel: Any, items: int, places: Sequence[Place]
    ) -> None:
        self._device, self._kernel, self._items = device, kernel, items
        self.launched = (kernel, items)
        self._places = places

    def places(self) -> Sequence[Place]:
        """One memory per kernel argument."""
        return self._places

    def bind(self, position: int, memory: Memory) -> None:
        """Set a kernel argument; the kernel does not keep the memory."""
        self._device.bind(self._kernel, position, memory)

    def run(self) -> None:
        """Queue the kernel."""
        self._device.launch(self._kernel, self._items)


class Transfer(Step):
    """A copy from one memory to another."""

    def __init__(self, device: KernelDevice, source: Place, target: Place, nbytes: int) -> None:
        self._device, self._nbytes = device, nbytes
        self._places = (source, target)
        self._held: list[Memory] = [None, None]
        self._copier = device.copier(nbytes)
        self.launched = None if self._copier is None else (self._copier, 1)
        self.holds = self._copier is None

    def places(self) -> Sequence[Place]:
        """The source and the target."""
        return self._places

    def bind(self, position: int, memory: Memory) -> None:
        """Use another source or target."""
        if self._copier is None:
            self._held[position] = memory
        else:
            self._device.bind(self._copier, position, memory)

    def run(self) -> None:
        """Queue the copy."""
        if self._copier is not None:
            self._device.launch(self._copier, 1)
            return
        self._device.copy(self._held[0], self._held[1], self._nbytes)


def step_of(device: KernelDevice, built: Any, call: Call) -> Step:
    """The step of a call, still unbound; ``built`` is the recipe's source file."""
    places = [part.place for part in call.parts]
    if call.kernel:
        kernel = device.kernel(built, call.kernel, len(places))
        return Launch(device, kernel, call.items, places)
    source, target = call.parts
    return Transfer(device, source.place, target.place, source.nbytes)


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
        self._walk = _in_one_call(device, self._steps)
        self._turns = device.turns
        self._outputs = tuple(outputs)
        self._fixed = tuple(fixed)  # arena and constants live as long as the program
        self._kernels = sum(step.launches for step in steps)
        self._inputs = self._users("input")
        self._results = self._users("output")
        self._bound = [0] * len(program.inputs)  # the identity of each input's handle
        self._alive: dict[int, weakref.ref[Handle]] = {}  # by input, while its handle lives
        self._holding = [
            (number, step, position)
            for users in (self._inputs, self._results)
            for number, found in users.items()
            for step, position in found
            if step.holds
        ]
        self._lock = threading.Lock()
        self.apart: Callable[[], tuple[KernelProgram, Explanation]] | None = None
        """The same program with every kernel launched by itself, and what is in it."""

    def _users(self, kind: str) -> dict[int, list[tuple[Step, int]]]:
        """The steps and argument positions where each input or output is used."""
        found: dict[int, list[tuple[Step, int]]] = {}
        for step in self._steps:
            for position, place in enumerate(step.places()):
                if place.kind == kind:
                    found.setdefault(place.number, []).append((step, position))
        return found

    def __del__(self) -> None:
        self._pool.retire((self._steps, self._fixed), 0)

    @property
    def steps(self) -> tuple[Step, ...]:
        """What one run queues, in order."""
        return self._steps

    def run(self, inputs: Sequence[Handle]) -> tuple[Handle, ...]:
        """Queue one run."""
        return self._run(inputs, self._queue)

    def _queue(self) -> None:
        """Queue every step as it is bound now."""
        if self._walk is not None:
            self._walk.hold(0)
            self._walk.run(1)
            return
        for step in self._steps:
            step.run()

    def repeat(
        self, inputs: Sequence[Handle], feeds: Feeds, turns: int, keep: int
    ) -> tuple[list[Handle], tuple[Handle, ...]]:
        """Runs in a row, in one call where the device takes as many turns at once."""
        walk = self._walk
        if walk is None or turns > self._turns:
            return in_turns(self.run, inputs, feeds, turns, keep)
        self._pool.check(inputs)
        given = list(inputs)
        made: list[tuple[Handle, ...]] = []  # all of them live until everything is done
        with self._lock:
            try:
                for turn in range(turns):
                    for into, out in feeds if made else ():
                        given[into] = made[-1][out]
                    made.append(self._made(given))
                    self._bind(given, made[-1])
                    walk.hold(turn)
                walk.run(turns)
            finally:
                self._let_go()
            self._stats.kernels_launched += self._kernels * turns
        return [outputs[keep] for outputs in made], made[-1]

    def timed(
        self, inputs: Sequence[Handle], wait: Callable[[], None]
    ) -> tuple[tuple[Handle, ...], tuple[float, ...]]:
        """One run with every kernel launched by itself, and the seconds of each."""
        if self.apart is not None:
            return self.apart()[0].timed(inputs, wait)
        seconds: list[float] = []

        def queue() -> None:
            for step in self._steps:
                began = time.perf_counter()
                step.run()
                wait()
                seconds.append(time.perf_counter() - began)

        return self._run(inputs, queue), tuple(seconds)

    def explain(self) -> Explanation | None:
        """The kernels and copies as parts."""
        return self.apart()[1] if self.apart else None

    def _run(self, inputs: Sequence[Handle], queue: Callable[[], None]) -> tuple[Handle, ...]:
        """One run whose steps ``queue`` queues; gives the outputs."""
        self._pool.check(inputs)
        with self._lock:
            results = self._made(inputs)
            try:
                self._bind(inputs, results)
                queue()
            finally:
                self._let_go()
            self._stats.kernels_launched += self._kernels
        return results

    def _made(self, inputs: Sequence[Handle]) -> tuple[Handle, ...]:
        """The outputs of a run: donated inputs, and new memory."""
        types = self.program.outputs
        return tuple(
            inputs[place.number]
            if place.kind == "input"
            else self._pool.allocate(types[place.number])
            for place in self._outputs
        )

    def _bind(self, inputs: Sequence[Handle], results: Sequence[Handle]) -> None:
        """Bind the outputs, and the inputs that are not those of the last run.

        Inputs are remembered weakly: a program keeps no handle of its caller's alive, and an
        identity counts only as long as its handle lives.
        """
        given = list(map(id, inputs))
        if given != self._bound or len(self._alive) != len(given):
            for number, identity in enumerate(given):
                if identity != self._bound[number] or number not in self._alive:
                    self._alive.pop(number, None)  # unknown, should a driver fail half way
                    self._rebind(number, inputs[number])
        for number, users in self._results.items():
            for step, position in users:
                step.bind(position, results[number].memory)

    def _rebind(self, number: int, handle: Handle) -> None:
        """Bind the users of an input to another handle."""
        for step, position in self._inputs.get(number, ()):
            step.bind(position, handle.memory)
        # What forgets is no Python code: an interrupt that arrived there would be lost.
        self._alive[number] = weakref.ref(handle, partial(self._alive.pop, number))
        self._bound[number] = id(handle)

    def _let_go(self) -> None:
        """Bind steps that hold on to an input or output to nothing."""
        for number, step, position in self._holding:
            step.bind(position, None)
            if step.places()[position].kind == "input":
                self._alive.pop(number, None)


def _in_one_call(device: KernelDevice, steps: Sequence[Step]) -> Walk | None:
    """Every step in one call, where the device does that."""
    launches = [step.launched for step in steps if step.launched is not None]
    return device.sequence(launches) if len(launches) == len(steps) else None
