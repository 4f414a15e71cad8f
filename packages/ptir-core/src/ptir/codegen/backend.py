"""Level 2 of the contract: a backend made of kernel devices, everything else done here.

A backend lists its devices and opens them; programs are fused, written in the device's dialect,
planned and replayed. See ``ptir.backend.kernel`` for what a device and a dialect are.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ptir.backend.contract import (
    Backend,
    Derivation,
    Device,
    Executable,
    Handle,
    MemoryStats,
    OpQuery,
    Options,
    RunStats,
)
from ptir.backend.control import CONTROL
from ptir.backend.interpreter import check_instruction
from ptir.backend.kernel import KernelDevice, Memory
from ptir.codegen.compile import Compiled, compile_block
from ptir.codegen.control import Host, HostProgram, is_cut
from ptir.codegen.launches import KernelProgram, Step
from ptir.codegen.memory import Pool, Resident
from ptir.codegen.pack import pack
from ptir.codegen.panels import UNPACK
from ptir.codegen.plan import Place
from ptir.codegen.support import refusal
from ptir.codegen.together import rehearsal
from ptir.ir.program import Block, Program
from ptir.ops.profiles import PROFILES
from ptir.types import U8, TensorType, dtype_of

if TYPE_CHECKING:
    import numpy as np


@dataclass(eq=False)
class _Opened:
    """A device in use: its memory and its counters."""

    device: KernelDevice
    pool: Pool
    stats: RunStats


class KernelBackend(Backend):
    """Base of level 2 backends."""

    def __init__(self) -> None:
        self._opened: dict[int, _Opened] = {}
        self._opening = threading.RLock()

    @abstractmethod
    def open(self, device: Device) -> KernelDevice:
        """The kernel device behind a listed one; called once per device."""

    def opened(self, device: Device) -> _Opened:
        """The device in use, opened now if it is not."""
        with self._opening:
            if device.index not in self._opened:
                kernel_device = self.open(device)
                self._opened[device.index] = _Opened(kernel_device, Pool(kernel_device), RunStats())
            return self._opened[device.index]

    def refusal(self, query: OpQuery, device: Device) -> str | None:
        """Why the generator cannot compile an op for ``device``, or None."""
        return refusal(query, self.opened(device).device.traits)

    def claimed(self, device: Device) -> frozenset[str]:
        """Every profile of the op set, f64 where the device computes in it."""
        missing = set() if self.opened(device).device.traits.doubles else {"f64"}
        return frozenset(PROFILES) - {"extension"} - missing

    def rehearsal(self, device: Device) -> AbstractContextManager[None] | None:
        """Builds together what is compiled in it, where the device can."""
        opened = self.opened(device)
        return rehearsal(opened.device) if opened.device.widest else None

    def param_resolver(
        self, program: Program, device: Device
    ) -> tuple[Program, Mapping[str, Derivation]]:
        """Weights of contractions go into panels."""
        return pack(program)

    def compile(self, program: Program, device: Device, options: Options) -> Executable:
        """Fuse, write, build and plan ``program``; raises ``CompileError``."""
        self._check(program.main, device)
        if any(is_cut(i, options.check_indices) for i in program.main.instructions):
            return HostProgram(program, self._host(device, options))
        return self._straight(program, device, options)

    def _straight(self, program: Program, device: Device, options: Options) -> Executable:
        """A program without control flow."""
        opened = self.opened(device)
        with self._opening:
            compiled = compile_block(program.main, opened.device, options)
            return self._bound(program, compiled, opened)

    def _host(self, device: Device, options: Options) -> Host:
        """What control flow needs; the pieces of a program have nothing donated to them."""

        def read(handle: Handle) -> Any:
            self.stats(device).host_syncs += 1
            return self.download(handle, device)

        return Host(
            lambda piece: self._straight(piece, device, Options()),
            read,
            lambda handle: self.copy(handle, device),
            options.check_indices,
        )

    def _check(self, block: Block, device: Device) -> None:
        """Raise ``UnsupportedError`` for the first op that ``refusal`` names."""
        for instruction in block.instructions:
            if instruction.op == "composite" and instruction.name == UNPACK:
                continue  # made by ``param_resolver``
            check_instruction(self, block, instruction, device)
            for region in instruction.regions if instruction.op in CONTROL else ():
                self._check(region, device)

    def _bound(self, program: Program, compiled: Compiled, opened: _Opened) -> Executable:
        """The compiled program with its fixed memories in place."""
        device, plan = opened.device, compiled.plan
        constants = [self._constant(compiled, value, opened) for value in plan.constants]
        arena = opened.pool.allocate(TensorType(U8, (plan.arena,)))
        parts: dict[tuple[int, int], Memory] = {}

        def fixed(place: Place, nbytes: int) -> Memory:
            if place.kind == "constant":
                return constants[place.number].memory
            key = (place.number, nbytes)
            if key not in parts:
                parts[key] = device.part(arena.memory, place.number, nbytes)
            return parts[key]

        steps: list[Step] = []
        for step in compiled.steps(device):
            for position, place in enumerate(step.places()):
                if place.kind in ("constant", "arena"):
                    step.bind(position, fixed(place, compiled.nbytes(step, position)))
            steps.append(step)
        held = (arena, *constants, *parts.values())
        return KernelProgram(program, device, opened.pool, opened.stats, steps, plan.outputs, held)

    def _constant(self, compiled: Compiled, value: int, opened: _Opened) -> Resident:
        made = compiled.fused.graph.instruction(value)
        assert made is not None
        return self._uploaded(made.attributes["value"].numpy(), opened)

    def upload(
        self, array: np.ndarray[Any, Any], device: Device, *, borrow: bool = False
    ) -> Resident:
        """A copy on the device; borrowed, the host's memory itself where the device can read it."""
        import numpy as np

        opened = self.opened(device)
        dense = np.ascontiguousarray(array).reshape(array.shape)
        type = TensorType(dtype_of(dense), dense.shape)
        memory = opened.device.borrow(dense) if borrow and dense.size else None
        if memory is not None:
            return Resident(memory, type, opened.pool, host=dense)
        opened.stats.bytes_uploaded += dense.nbytes
        return self._uploaded(dense, opened)

    def _uploaded(self, array: np.ndarray[Any, Any], opened: _Opened) -> Resident:
        resident = opened.pool.allocate(TensorType(dtype_of(array), array.shape))
        if array.size:
            opened.device.write(resident.memory, array)
        return resident

    def download(self, handle: Handle, device: Device) -> np.ndarray[Any, Any]:
        """The elements, once everything queued before is done."""
        import numpy as np

        opened = self.opened(device)
        array = np.empty(handle.type.shape, handle.type.dtype.numpy)
        if array.size:
            opened.device.read(handle.memory, array)
            opened.pool.settled()
        opened.stats.bytes_downloaded += array.nbytes
        return array

    def copy(self, handle: Handle, device: Device) -> Handle:
        """A copy made on the device."""
        opened = self.opened(device)
        result = opened.pool.allocate(handle.type)
        if handle.type.size:
            opened.device.copy(handle.memory, result.memory, handle.type.nbytes)
        return result

    def synchronize(self, device: Device) -> None:
        """Wait for everything queued."""
        opened = self.opened(device)
        opened.device.finish()
        opened.pool.settled()

    def memory_stats(self, device: Device) -> MemoryStats:
        """Bytes allocated on the device by this process; borrowed host memory does not count."""
        return self.opened(device).pool.stats()

    def stats(self, device: Device) -> RunStats:
        """The counters of the device."""
        return self.opened(device).stats
