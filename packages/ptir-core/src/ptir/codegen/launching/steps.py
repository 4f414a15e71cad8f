"""What a run of a compiled program queues: kernels and copies, each bound to its memories.

A step is anything with ``run``: a whole program in one launch, or a recorded graph, can take the
place of many.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from ptir.backend.kernel import KernelDevice, Memory
from ptir.codegen.artifact.record import BufferBinding, Command
from ptir.codegen.planning.buffer_slot import BufferSlot


class Step(ABC):
    """One thing to queue."""

    launches = 0
    """Kernels that one run launches."""
    holds = False
    """Whether it keeps what it is bound to, so that it must be bound to nothing after a run."""
    launched: tuple[Any, int, int] | None = None
    """The kernel, its workgroups and their size, where that is all there is to it."""

    @abstractmethod
    def places(self) -> Sequence[BufferSlot]:
        """The memories it uses, by argument position."""

    @abstractmethod
    def bind(self, position: int, memory: Memory) -> None:
        """Use ``memory`` for an argument from now on."""

    def takes(self, position: int) -> Any | None:
        """The kernel whose argument at ``position`` is the memory as it is, or None."""
        return None

    @abstractmethod
    def run(self) -> None:
        """Queue it."""


class Launch(Step):
    """A kernel, the number of its workgroups and their size."""

    launches = 1

    def __init__(
        self,
        device: KernelDevice,
        kernel: Any,
        workgroups: int,
        parts: Sequence[BufferBinding],
        workgroup_size: int = 1,
    ) -> None:
        self._device = device
        self._kernel, self._sizes = kernel, (workgroups, workgroup_size)
        self.launched = kernel, workgroups, workgroup_size
        self._parts = parts
        self._places = [part.slot for part in parts]

    def places(self) -> Sequence[BufferSlot]:
        """One memory per kernel argument."""
        return self._places

    def bind(self, position: int, memory: Memory) -> None:
        """Set a kernel argument; the kernel does not keep the memory."""
        self._device.bind(
            self._kernel, position, _within(self._device, self._parts[position], memory)
        )

    def takes(self, position: int) -> Any | None:
        """The kernel, unless it takes a part."""
        return None if self._parts[position].offset else self._kernel

    def run(self) -> None:
        """Queue the kernel."""
        self._device.launch(self._kernel, *self._sizes)


class Transfer(Step):
    """A copy from one memory to another."""

    def __init__(self, device: KernelDevice, source: BufferBinding, target: BufferBinding) -> None:
        self._device, self._nbytes = device, source.nbytes
        self._parts = (source, target)
        self._places = (source.slot, target.slot)
        nbytes = self._nbytes
        self._held: list[Memory] = [None, None]
        self._copier = device.copy_kernel(nbytes)
        self.launched = None if self._copier is None else (self._copier, 1, 1)
        self.holds = self._copier is None

    def places(self) -> Sequence[BufferSlot]:
        """The source and the target."""
        return self._places

    def bind(self, position: int, memory: Memory) -> None:
        """Use another source or target."""
        if memory is not None:
            memory = _within(self._device, self._parts[position], memory)
        if self._copier is None:
            self._held[position] = memory
        else:
            self._device.bind(self._copier, position, memory)

    def takes(self, position: int) -> Any | None:
        """What copies, where that is a kernel, unless it takes a part."""
        return None if self._parts[position].offset else self._copier

    def run(self) -> None:
        """Queue the copy."""
        if self._copier is not None:
            self._device.launch(self._copier, 1)
            return
        self._device.copy(self._held[0], self._held[1], self._nbytes)


def step_of(device: KernelDevice, built: Any, command: Command) -> Step:
    """The step of a command, still unbound; ``built`` is the artifact's source file."""
    if command.kernel:
        kernel = device.kernel(built, command.kernel, len(command.bindings))
        return Launch(device, kernel, command.workgroups, command.bindings, command.workgroup_size)
    source, target = command.bindings
    return Transfer(device, source, target)


def _within(device: KernelDevice, part: BufferBinding, memory: Memory) -> Memory:
    """The part of an input or output that a step uses."""
    return device.subspan(memory, part.offset, part.nbytes) if part.offset else memory
