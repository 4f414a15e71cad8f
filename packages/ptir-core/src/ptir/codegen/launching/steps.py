"""What a run of a compiled program queues: kernels and copies, each bound to its memories.

A kernel may be a whole program in one launch; several steps can be recorded and queued in one
call (``launches``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ptir.backend.kernel import KernelDevice, Memory
from ptir.codegen.artifact.record import BufferBinding, Command


class Launch:
    """A kernel, the number of its workgroups and their size."""

    launches = 1
    """Kernels of the program that one run launches."""
    holds = False
    """Whether it keeps what it is bound to, so that it must be bound to nothing after a run."""
    launched: tuple[Any, int, int] | None
    """The kernel, its workgroups and their size, where that is all there is to it."""

    def __init__(
        self,
        device: KernelDevice,
        kernel: Any,
        workgroups: int,
        parts: Sequence[BufferBinding],
        workgroup_size: int = 1,
    ) -> None:
        self._device, self._kernel, self._parts = device, kernel, parts
        self.launched = kernel, workgroups, workgroup_size
        self.places = [part.slot for part in parts]
        """The memories it uses, by argument position."""

    def bind(self, position: int, memory: Memory) -> None:
        """Use ``memory`` for an argument from now on; a kernel does not keep it."""
        self._device.bind(self._kernel, position, self._within(position, memory))

    def _within(self, position: int, memory: Memory) -> Memory:
        """The part of an input or output that is used."""
        part = self._parts[position]
        return self._device.subspan(memory, part.offset, part.nbytes) if part.offset else memory

    def takes(self, position: int) -> Any | None:
        """The kernel whose argument at ``position`` is the memory as it is, or None."""
        return None if self._parts[position].offset else self._kernel

    def run(self) -> None:
        """Queue it."""
        assert self.launched is not None
        self._device.launch(*self.launched)


class CopyKernel(Launch):
    """A copy that the device launches as a kernel."""

    launches = 0


class Transfer(Launch):
    """A copy from one memory to another, which is a command of its own."""

    launches = 0
    holds = True

    def __init__(self, device: KernelDevice, parts: Sequence[BufferBinding]) -> None:
        super().__init__(device, None, 0, parts)
        self.launched, self._held = None, dict[int, Memory]()

    def bind(self, position: int, memory: Memory) -> None:
        """Use another source or target, or nothing."""
        self._held[position] = memory if memory is None else self._within(position, memory)

    def run(self) -> None:
        """Queue the copy."""
        self._device.copy(self._held[0], self._held[1], self._parts[0].nbytes)


def step_of(device: KernelDevice, built: Any, command: Command) -> Launch:
    """The step of a command, still unbound; ``built`` is the artifact's source file."""
    if command.kernel:
        kernel = device.kernel(built, command.kernel, len(command.bindings))
        return Launch(device, kernel, command.workgroups, command.bindings, command.workgroup_size)
    copier = device.copy_kernel(command.bindings[0].nbytes)
    if copier is None:
        return Transfer(device, command.bindings)
    return CopyKernel(device, copier, 1, command.bindings)
