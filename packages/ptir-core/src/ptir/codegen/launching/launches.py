"""A compiled program: a list of steps, bound to memory and replayed.

Everything that can be settled at compile time is: kernel objects, sizes, arena parts, constants.
A replay binds only the inputs and outputs that changed since the last one and queues the steps. A
device with command buffers (``KernelDevice.record``) gets them all in one call.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import itemgetter
from typing import Final, TypeAlias

from ptir.backend.contract import Executable, Feeds, Handle, Queue, RunStats, repeat_by_runs
from ptir.backend.explanation import Explanation
from ptir.backend.kernel import CommandBuffer, KernelDevice, Memory
from ptir.codegen.artifact.record import Artifact
from ptir.codegen.launching.memory import DeviceBuffer, Layout, Pool
from ptir.codegen.launching.steps import Launch
from ptir.codegen.planning.buffer_slot import BufferSlot
from ptir.ir.program import Program
from ptir.types import TensorType

COMPARED: Final = 16
"""Inputs whose handles are compared with those of the last run at once."""


Apart: TypeAlias = "Callable[[], tuple[KernelProgram, Explanation]]"
"""What gives a program whose kernels are launched one by one, and what is in it."""


class KernelProgram(Executable):
    """A program as steps on a device. Runs of several threads follow one another."""

    def __init__(
        self,
        program: Program,
        device: KernelDevice,
        pool: Pool,
        stats: RunStats,
        artifact: Artifact,
        steps: Sequence[Launch],
        fixed: Sequence[Memory],
        apart: Apart | None = None,
        staged: bool = False,
    ) -> None:
        """``steps`` are the artifact's commands, ``fixed`` the memories that are the program's.

        ``apart`` gives the same program with every kernel launched by itself, and what is in it. A
        ``staged`` one is never run in one call.
        """
        self.program = program
        self._device, self._pool, self._stats = device, pool, stats
        self._steps = tuple(steps)
        self._commands = None if staged else _in_one_call(device, self._steps, artifact.counts)
        self._some: dict[tuple[int, int], CommandBuffer] = {}
        self._most_runs = device.runs_per_call
        self._made_types, self._results_of = _outputs_of(program, artifact.outputs)
        self._fixed = tuple(fixed)  # arena and constants live as long as the program
        self._kernels = sum(step.launches for step in steps)
        self._inputs = self._binders("input")
        self._results = self._binders("output")
        self._layouts: dict[int, Layout] = {}
        # By input: the identity of its handle, or no number once that is gone.
        self._bound: list[object] = [None] * len(program.inputs)
        self._watched: list[weakref.ref[Handle] | None] = [None] * len(program.inputs)
        self._holding = [
            (number, step, position)
            for kind in ("input", "output")
            for number, found in self._users(kind).items()
            for step, position in found
            if step.holds
        ]
        self._lock = threading.Lock()
        self.sharing, self.apart = artifact.partitioning, apart
        self.workers = device.traits.compute_units if self.sharing else 1

    def _users(self, kind: str) -> dict[int, list[tuple[Launch, int]]]:
        """The steps and argument positions where each input or output is used."""
        found: dict[int, list[tuple[Launch, int]]] = {}
        for step in self._steps:
            for position, place in enumerate(step.places):
                if place.kind == kind:
                    found.setdefault(place.number, []).append((step, position))
        return found

    def _binders(self, kind: str) -> dict[int, Callable[[Memory], None]]:
        """What binds all users of each input or output."""
        return {number: self._binder(users) for number, users in self._users(kind).items()}

    def _binder(self, users: Sequence[tuple[Launch, int]]) -> Callable[[Memory], None]:
        """Arguments of kernels are set by the device, all at once; the others one by one."""
        plain = [(kernel, n) for step, n in users if (kernel := step.takes(n)) is not None]
        others = [(step, n) for step, n in users if step.takes(n) is None]
        binder = self._device.binder(plain)
        if not others:
            return binder

        def bind(memory: Memory) -> None:
            binder(memory)
            for step, position in others:
                step.bind(position, memory)

        return bind

    def __del__(self) -> None:
        self._pool.defer_free((self._steps, self._fixed), 0)

    @property
    def steps(self) -> tuple[Launch, ...]:
        """What one run queues, in order."""
        return self._steps

    def run(self, inputs: Sequence[Handle]) -> tuple[Handle, ...]:
        """Queue one run."""
        return self._run(inputs, self._queue)

    def _queue(self) -> None:
        """Queue every step as it is bound now."""
        if self._commands is not None:
            self._commands.bind_slot(0)
            self._commands.submit(1)
            return
        for step in self._steps:
            step.run()

    @property
    def workspace_bytes(self) -> int:
        """Bytes of the arena and the constants."""
        return sum(held.type.nbytes for held in self._fixed if isinstance(held, DeviceBuffer))

    def reads(self) -> Sequence[Collection[int]]:
        """The inputs that each step uses."""
        return [{p.number for p in step.places if p.kind == "input"} for step in self._steps]

    def run_staged(
        self, inputs: Sequence[Handle | None], drive: Callable[[Queue], None]
    ) -> tuple[Handle, ...]:
        """Queue one run, some steps at a time."""

        def queue(first: int, end: int, handles: Mapping[int, Handle]) -> None:
            for number, handle in handles.items():
                if self._bound[number] != id(handle):
                    self._rebind(number, handle)
            self._queue_some(first, end)

        present = {number: handle for number, handle in enumerate(inputs) if handle is not None}
        self._pool.check(present.values())
        with self._lock:
            results = self._made(inputs)
            try:
                queue(0, 0, present)
                self._bind_results(results)
                drive(queue)
            finally:
                self._let_go()
            self._stats.kernels_launched += self._kernels
        return results

    def _queue_some(self, first: int, end: int) -> None:
        """Queue some steps, in one call where the device does that."""
        if first == end:
            return
        commands = self._some.get((first, end)) or self._recorded(first, end)
        if commands is None:
            for step in self._steps[first:end]:
                step.run()
            return
        commands.bind_slot(0)
        commands.submit(1)

    def _recorded(self, first: int, end: int) -> CommandBuffer | None:
        """A command buffer of some steps; a kernel is in one, so others that have it go.

        Where arguments are written has moved then: what binds them is made anew.
        """
        commands = _in_one_call(self._device, self._steps[first:end], ())
        if commands is not None:
            apart = {at: c for at, c in self._some.items() if at[1] <= first or end <= at[0]}
            self._some = {**apart, (first, end): commands}
            self._inputs = self._binders("input")
            self._results = self._binders("output")
        return commands

    def repeat(
        self, inputs: Sequence[Handle], feeds: Feeds, turns: int, keep: int
    ) -> tuple[list[Handle], tuple[Handle, ...]]:
        """Runs in a row, in one call where the device takes as many at once."""
        commands = self._commands
        if commands is None or turns > self._most_runs:
            return repeat_by_runs(self.run, inputs, feeds, turns, keep)
        self._pool.check(inputs)
        given, size = list(inputs), len(self._made_types)
        made: list[tuple[Handle, ...]] = []
        with self._lock:
            new = self._pool.allocate_packed(
                self._layout(turns)
            )  # all of them live until all is done
            try:
                for turn in range(turns):
                    if made:
                        self._feed(given, made[-1], feeds)
                    else:
                        self._bind(given)
                    own = new[turn * size : (turn + 1) * size]
                    made.append(self._results_of((*given, *own)))
                    self._bind_results(made[-1])
                    commands.bind_slot(turn)
                commands.submit(turns)
            finally:
                self._let_go()
            self._stats.kernels_launched += self._kernels * turns
        return [outputs[keep] for outputs in made], made[-1]

    def _layout(self, turns: int) -> Layout:
        """How the outputs of so many runs are allocated."""
        if turns not in self._layouts:
            types, alignment = self._made_types * turns, self._device.traits.alignment
            self._layouts[turns] = Layout.of(types, alignment)
        return self._layouts[turns]

    def _feed(self, given: list[Handle], outputs: Sequence[Handle], feeds: Feeds) -> None:
        """Give the next run what the last one made: most of it is where it was."""
        for into, out in feeds:
            if given[into] is not outputs[out]:
                given[into] = outputs[out]
                self._rebind(into, outputs[out])

    def timed(
        self, inputs: Sequence[Handle], wait: Callable[[], None]
    ) -> tuple[tuple[Handle, ...], tuple[float, ...]]:
        """One run with every kernel launched by itself, and the seconds of each."""
        if self.apart is not None:
            return self.apart()[0].timed(inputs, wait)
        seconds: list[float] = []

        def queue() -> None:
            found = None
            if self._commands is not None:
                self._commands.bind_slot(0)
                found = self._commands.timed()
            seconds.extend(found or self._device.timed([step.run for step in self._steps]))

        return self._run(inputs, queue), tuple(seconds)

    def explain(self) -> Explanation | None:
        """The kernels and copies as parts."""
        if self.apart is None:
            return None
        return replace(self.apart()[1], sharing=self.sharing, workers=self.workers)

    def _run(self, inputs: Sequence[Handle], queue: Callable[[], None]) -> tuple[Handle, ...]:
        """One run whose steps ``queue`` queues; gives the outputs."""
        self._pool.check(inputs)
        with self._lock:
            results = self._made(inputs)
            try:
                self._bind(inputs)
                self._bind_results(results)
                queue()
            finally:
                self._let_go()
            self._stats.kernels_launched += self._kernels
        return results

    def _made(self, inputs: Sequence[Handle | None]) -> tuple[Handle, ...]:
        """The outputs of a run: donated inputs, and new memory."""
        allocate = self._pool.allocate
        return self._results_of((*inputs, *[allocate(type) for type in self._made_types]))

    def _bind_results(self, results: Sequence[Handle]) -> None:
        """Bind the outputs."""
        for number, bind in self._results.items():
            bind(results[number].memory)

    def _bind(self, inputs: Sequence[Handle]) -> None:
        """Bind the inputs that are not those of the last run.

        Inputs are remembered weakly: a program keeps no handle of its caller's alive, and an
        identity counts only as long as its handle lives.
        """
        given, bound = list(map(id, inputs)), self._bound
        if given != bound:
            for first in range(0, len(given), COMPARED):
                if given[first : first + COMPARED] != bound[first : first + COMPARED]:
                    for number in range(first, min(first + COMPARED, len(given))):
                        if given[number] != bound[number]:
                            self._rebind(number, inputs[number])

    def _rebind(self, number: int, handle: Handle) -> None:
        """Bind the users of an input to another handle."""
        self._bound[number] = None  # unknown, should a driver fail half way
        bind = self._inputs.get(number)
        if bind is not None:
            bind(handle.memory)
        # What forgets is no Python code: an interrupt that arrived there would be lost. It puts
        # the dead reference where the identity was.
        forget = partial(self._bound.__setitem__, number)
        self._watched[number] = weakref.ref(handle, forget)
        self._bound[number] = id(handle)

    def _let_go(self) -> None:
        """Bind steps that hold on to an input or output to nothing."""
        for number, step, position in self._holding:
            step.bind(position, None)
            if step.places[position].kind == "input":
                self._bound[number] = None


def _outputs_of(
    program: Program, outputs: Sequence[BufferSlot]
) -> tuple[tuple[TensorType, ...], Callable[[Sequence[Handle]], tuple[Handle, ...]]]:
    """The types of outputs in new memory, and what picks all outputs out of inputs and those."""
    made = [number for number, place in enumerate(outputs) if place.kind != "input"]
    types = tuple(program.outputs[outputs[number].number] for number in made)
    after = {number: len(program.inputs) + n for n, number in enumerate(made)}
    where = [after.get(n, place.number) for n, place in enumerate(outputs)]
    if len(where) > 1:
        return types, itemgetter(*where)
    return types, lambda every: tuple(every[n] for n in where)


def _in_one_call(
    device: KernelDevice, steps: Sequence[Launch], counts: Sequence[Sequence[int]]
) -> CommandBuffer | None:
    """Every step in one call, where the device does that."""
    launches = [step.launched for step in steps if step.launched is not None]
    if len(launches) != len(steps):
        return None
    return device.record_partitioned(launches, counts) if counts else device.record(launches)
