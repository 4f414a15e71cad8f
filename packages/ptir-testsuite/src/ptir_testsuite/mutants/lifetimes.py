"""Impostors in how memory is handed out and by whom it is used at the same time.

``Placing`` is right: its tensors lie in memory of its own, which is handed out again, and it counts
what is live. The impostors are it with one mistake.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ptir.backend import Device, Executable, MemoryStats, Options
from ptir.backend.contract import Feeds, repeat_by_runs
from ptir.ir.program import Instruction, Program
from ptir.types import TensorType, dtype_of
from ptir_testsuite.mutants.harness import Correct
from ptir_testsuite.mutants.impostors import impostor
from ptir_testsuite.oracles.floats import Array
from ptir_testsuite.running.outcomes import Outcome


@dataclass
class Arena:
    """Memory in one piece, handed out again to whoever asks for as many bytes."""

    memory: Array = field(default_factory=lambda: np.zeros(1 << 24, np.uint8))
    free: dict[int, list[int]] = field(default_factory=dict[int, list[int]])
    top: int = 0
    live: int = 0
    peak: int = 0

    # A lock of which a thread may hold two: a tensor may die while another is made.
    lock: Any = field(default_factory=threading.RLock)

    def take(self, nbytes: int) -> tuple[Array, int]:
        """Memory, and where this many bytes of it are nobody's."""
        with self.lock:
            self.live += nbytes
            self.peak = max(self.peak, self.live)
            if self.free.get(nbytes):
                return self.memory, self.free[nbytes].pop()
            if self.top + nbytes > len(self.memory):
                self.memory, self.top = np.zeros(max(1 << 24, nbytes), np.uint8), 0
                self.free.clear()
            self.top += nbytes
            return self.memory, self.top - nbytes

    def give_back(self, placed: Placed) -> None:
        """The memory of a tensor can be used for another."""
        with self.lock:
            self.live -= placed.type.nbytes
            if placed.memory is self.memory:
                self.free.setdefault(placed.type.nbytes, []).append(placed.start)


class Placed:
    """A tensor in an arena, or in memory of the host that is borrowed."""

    def __init__(self, type: TensorType, arena: Arena, borrowed: Array | None = None) -> None:
        self.type, self.arena, self.borrowed = type, arena, borrowed
        if borrowed is None:
            self.memory, self.start = arena.take(type.nbytes)

    def __del__(self) -> None:
        if self.borrowed is None:
            self.arena.give_back(self)

    @property
    def array(self) -> Array:
        """Its elements, where they lie."""
        if self.borrowed is not None:
            return self.borrowed
        data = self.memory[self.start : self.start + self.type.nbytes]
        return data.view(self.type.dtype.numpy).reshape(self.type.shape)


class Placing(Correct):
    """Tensors in an arena; nothing is wrong here."""

    name = "placing"

    def __init__(self) -> None:
        self.arena = Arena()

    def memory_stats(self, device: Device) -> MemoryStats:
        """What is handed out."""
        return MemoryStats(self.arena.live, self.arena.peak)

    def upload(self, array: Array, device: Device, *, borrow: bool = False) -> Any:
        """A copy, or the host's own array where it is dense."""
        type = TensorType(dtype_of(array), array.shape)
        if borrow and array.flags.c_contiguous and array.flags.aligned:
            return Placed(type, self.arena, array)
        return self.placed(array)

    def placed(self, array: Array) -> Placed:
        """A tensor with the elements of an array."""
        made = Placed(TensorType(dtype_of(array), array.shape), self.arena)
        self.write(made, array)
        return made

    def write(self, tensor: Placed, array: Array) -> None:
        """Store elements."""
        tensor.array[...] = array

    def download(self, handle: Any, device: Device) -> Array:
        """A copy."""
        return np.array(handle.array)

    def step(
        self, instruction: Instruction, operands: Sequence[Any], device: Device
    ) -> tuple[Any, ...]:
        """Results in the arena."""
        found = super().step(instruction, [operand.array for operand in operands], device)
        return tuple(self.placed(np.asarray(result)) for result in found)


@impostor("never lets go of its results", "lifetime-memory", Outcome.MISMATCH)
class Leaking(Placing):
    """Keeps everything that it computed."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[Any] = []

    def step(
        self, instruction: Instruction, operands: Sequence[Any], device: Device
    ) -> tuple[Any, ...]:
        """The results, kept."""
        found = super().step(instruction, operands, device)
        self.kept += found
        return found


@impostor("says that no byte is live", "lifetime-memory", Outcome.MISMATCH)
class Silent(Placing):
    """Has nothing to hide."""

    def memory_stats(self, device: Device) -> MemoryStats:
        """Nothing."""
        return MemoryStats(0, 0)


@dataclass
class Shared(Executable):
    """A program whose scratch all its runs share."""

    program: Program
    bound: Executable
    scratch: list[Any] = field(default_factory=list[Any])

    def run(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """A run, which takes a while."""
        self.scratch[:] = inputs
        time.sleep(1e-4)
        return self.bound.run(list(self.scratch))


@impostor("has one scratch for all runs and no lock", "lifetime-threads", Outcome.MISMATCH)
class Racing(Placing):
    """Is right as long as one thread runs it."""

    def compile(self, program: Program, device: Device, options: Options) -> Executable:
        """The program with shared scratch."""
        return Shared(program, super().compile(program, device, options))


@dataclass
class Early(Executable):
    """A program that stores its first result in a donated input, and then reads that input."""

    program: Program
    bound: Executable
    donated: frozenset[int]

    def run(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """The first result, and then all."""
        first = self.bound.run(inputs)[0]
        for place in self.donated:
            if first.type == inputs[place].type:
                inputs[place].array[...] = first.array
                return (first, *self.bound.run(inputs)[1:])
        return self.bound.run(inputs)


@impostor("overwrites a donation before its last read", "lifetime-walk", Outcome.MISMATCH)
class Hasty(Placing):
    """Reuses what it was given a little too early."""

    def compile(self, program: Program, device: Device, options: Options) -> Executable:
        """The program, in a hurry."""
        return Early(program, super().compile(program, device, options), options.donated)


@dataclass
class InDonated(Executable):
    """A program whose first result lies in the memory of what was donated."""

    program: Program
    bound: Executable
    donated: frozenset[int]

    def run(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """The results, one in the place of a donation."""
        first, *rest = self.bound.run(inputs)
        for place in self.donated:
            if first.type == inputs[place].type and first is not inputs[place]:
                inputs[place].array[...] = first.array
                first.start, first.memory = inputs[place].start, inputs[place].memory
                break
        return (first, *rest)


@impostor("a result lies in a donation that is handed out again", "lifetime-walk", Outcome.MISMATCH)
class Twice(Placing):
    """Gives the memory of a donation back although a result is in it."""

    def compile(self, program: Program, device: Device, options: Options) -> Executable:
        """The program with results in donations."""
        return InDonated(program, super().compile(program, device, options), options.donated)


@dataclass
class Remembering(Executable):
    """A program that keeps in one place which donation its result goes to."""

    program: Program
    bound: Executable
    donated: frozenset[int]
    given: list[Any] = field(default_factory=list[Any])

    def run(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """The results, the first in the memory of a donation, which gets the result's."""
        self.given[:] = [inputs[place] for place in self.donated]
        found = self.bound.run(inputs)
        time.sleep(1e-4)
        for into in self.given[:1]:
            first = found[0]
            if first.type == into.type and first is not into and into.borrowed is None:
                into.array[...] = first.array
                first.memory, into.memory = into.memory, first.memory
                first.start, into.start = into.start, first.start
        return found


@impostor("takes the donation of another thread", "lifetime-donations", Outcome.MISMATCH)
class Snatching(Placing):
    """Is right as long as one thread donates."""

    def compile(self, program: Program, device: Device, options: Options) -> Executable:
        """The program, with its donations in one place for all threads."""
        donated = options.donated if not options.aliases else frozenset[int]()
        return Remembering(program, super().compile(program, device, options), donated)


@dataclass
class Repeating(Executable):
    """A program whose runs in a row are all given the same."""

    program: Program
    bound: Executable

    def run(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """One run."""
        return self.bound.run(inputs)

    def repeat(
        self, inputs: Sequence[Any], feeds: Feeds, count: int, keep: int
    ) -> tuple[list[Any], tuple[Any, ...]]:
        """Nothing is fed."""
        return repeat_by_runs(self.run, inputs, (), count, keep)


@impostor("runs in a row are all given the first inputs", "lifetime-repeat", Outcome.MISMATCH)
class Forgetting(Placing):
    """Forgets what goes from a run to the next."""

    def compile(self, program: Program, device: Device, options: Options) -> Executable:
        """The program."""
        return Repeating(program, super().compile(program, device, options))


@impostor("takes every input for donated", "lifetime-walk", Outcome.MISMATCH)
class Greedy(Placing):
    """Does not look whether an input was donated."""

    def compile(self, program: Program, device: Device, options: Options) -> Executable:
        """The program with its first result in its first input."""
        bound = super().compile(program, device, options)
        return InDonated(program, bound, frozenset({0}) - frozenset(sum(options.aliases, ())))


@impostor("writes one element too far", "add", Outcome.MISMATCH)
class Beyond(Placing):
    """Has an error by one in the last block of a kernel."""

    def step(
        self, instruction: Instruction, operands: Sequence[Any], device: Device
    ) -> tuple[Any, ...]:
        """The results and one more element."""
        found = super().step(instruction, operands, device)
        for tensor in found:
            end = tensor.start + tensor.type.nbytes
            tensor.memory[end : end + tensor.type.dtype.itemsize] = 0
        return found


@impostor("takes fresh memory for zeros", "pad", Outcome.MISMATCH)
class Unwritten(Placing):
    """Stores only what is not zero."""

    def write(self, tensor: Placed, array: Array) -> None:
        """The elements that are not zero."""
        whole = np.ascontiguousarray(array)
        data = whole.reshape(-1).view(np.uint8)
        target = tensor.memory[tensor.start : tensor.start + tensor.type.nbytes]
        target[data != 0] = data[data != 0]

    def upload(self, array: Array, device: Device, *, borrow: bool = False) -> Any:
        """All elements: only kernels are wrong."""
        made = Placed(TensorType(dtype_of(array), array.shape), self.arena)
        super().write(made, array)
        return made


@impostor("shares the host's memory unasked", "add", Outcome.MISMATCH)
class Sharing(Correct):
    """Copies only where it cannot do without."""

    def upload(self, array: Array, device: Device, *, borrow: bool = False) -> Array:
        """The array itself."""
        return array if array.flags.c_contiguous else np.array(array, order="C")


@impostor("writes beside what it borrowed", "lifetime-walk", Outcome.MISMATCH)
class Clearing(Placing):
    """Clears borrowed memory up to the next whole vector."""

    def upload(self, array: Array, device: Device, *, borrow: bool = False) -> Any:
        """The array, with zeros after it."""
        made = super().upload(array, device, borrow=borrow)
        if made.borrowed is not None and array.flags.writeable and array.nbytes % 16:
            end = np.lib.stride_tricks.as_strided(array.reshape(-1)[-1:], (2,), array.strides[-1:])
            end[1:] = 0
        return made
