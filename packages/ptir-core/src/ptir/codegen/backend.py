"""Level 2 of the contract: a backend made of kernel devices, everything else done here.

A backend lists its devices and opens them; programs are fused, written in the device's dialect,
planned and replayed. See ``ptir.backend.kernel`` for what a device and a dialect are.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any, ClassVar

from ptir import events
from ptir.backend.contract import (
    Backend,
    Derivation,
    Device,
    Executable,
    Handle,
    MemoryStats,
    OpQuery,
    Options,
    Prefetch,
    RunStats,
)
from ptir.backend.control import CONTROL
from ptir.backend.cut import CutProgram
from ptir.backend.disk_cache import digest_key
from ptir.backend.explanation import Explanation
from ptir.backend.interpreter import check_instruction
from ptir.backend.kernel import KernelDevice, Memory
from ptir.codegen.artifact import record
from ptir.codegen.artifact.binaries import built
from ptir.codegen.artifact.record import Artifact, BufferBinding
from ptir.codegen.expressions.unpacked import UNPACK
from ptir.codegen.launching.control import Host, HostProgram, is_cut
from ptir.codegen.launching.launches import Apart, KernelProgram
from ptir.codegen.launching.memory import DeviceBuffer, Pool
from ptir.codegen.launching.steps import Launch, step_of
from ptir.codegen.planning.support import refusal
from ptir.codegen.schedules.schedules import schedule_refusal
from ptir.codegen.tuning.recorder import Recorded
from ptir.codegen.weights.pack import pack
from ptir.codegen.weights.panels import LANES, unpacked_range
from ptir.codegen.weights.rounded import settled
from ptir.codegen.weights.split_parameters import HostSlicedProgram, with_host_slices
from ptir.ir.program import Block, Program
from ptir.ops.profiles import PROFILES
from ptir.ops.verify import verify
from ptir.types import U8, TensorType, dtype_of

if TYPE_CHECKING:
    import numpy as np

    from ptir.codegen.artifact.batched_build import BatchedBuild
    from ptir.codegen.artifact.source import SourceFile
    from ptir.passes.ranges import CompositeRange


@dataclass(eq=False, kw_only=True)
class _OpenDevice(Recorded):
    """A device in use: its memory and its counters."""

    pool: Pool
    stats: RunStats
    generation: int = 0


class KernelBackend(Backend):
    """Base of level 2 backends."""

    stages = True
    cut_unit = LANES
    claims = frozenset(PROFILES) - {"extension"}
    """Every profile of the op set; a backend that sets fewer is held to those alone."""
    remedies: ClassVar[Sequence[tuple[str, str]]] = ()
    """What an error holds, and what to do then."""

    def __init__(self) -> None:
        self._opened: dict[int, _OpenDevice] = {}
        self._opening = threading.RLock()

    def fix_for(self, problem: str) -> str | None:
        """The first of ``remedies`` that knows the problem."""
        return next((fix for sign, fix in self.remedies if sign in problem), None)

    @abstractmethod
    def open(self, device: Device) -> KernelDevice:
        """The kernel device behind a listed one; called once per device."""

    def opened(self, device: Device) -> _OpenDevice:
        """The device in use, opened now if it is not, and again if it was lost."""
        with self._opening:
            known = self._opened.get(device.index)
            if known is not None and not known.device.lost:
                return known
            made = self.open(device)
            if known is None:
                found = _OpenDevice(made, pool=Pool(made), stats=RunStats())
            else:
                found = _OpenDevice(
                    made,
                    known.recorder,
                    pool=Pool(made, True),
                    stats=known.stats,
                    generation=known.generation + 1,
                )
            self._opened[device.index] = found
            return found

    def incarnation(self, device: Device) -> int:
        """How often the device was opened again."""
        return self.opened(device).generation

    def refusal(self, query: OpQuery, device: Device) -> str | None:
        """Why the generator cannot compile an op for ``device``, or None."""
        opened = self.opened(device).device
        unfit = schedule_refusal(query, opened)
        return unfit or refusal(query, opened.traits, opened.dialect.dots)

    def claimed(self, device: Device) -> frozenset[str]:
        """``claims``, f64 only where the device computes in it."""
        missing = set() if self.opened(device).device.traits.has_f64 else {"f64"}
        return self.claims - missing

    def tuning(self, device: Device) -> AbstractContextManager[Any] | None:
        """Measures the products of what is compiled in it, and keeps the tiles that are best."""
        from ptir.codegen.tuning.tune import tuning

        return tuning(self.opened(device))

    def prepack(self, program: Program, device: Device) -> tuple[Program, Mapping[str, Derivation]]:
        """Weights of contractions go into panels, and what is too large into parts."""
        packed, derived = pack(program, self.opened(device).device.traits.aligned_allocation_bytes)
        return settled(packed), derived

    def composite_ranges(self) -> Mapping[str, CompositeRange]:
        """Rows of a packed weight are some of its panels."""
        return {UNPACK: unpacked_range}

    def cache_identity(self, device: Device) -> str | None:
        """What compiling looks at besides the program."""
        found = record.device_state(self.opened(device).device)
        return None if found is None else digest_key(*found)

    def compile(self, program: Program, device: Device, options: Options) -> Executable:
        """Fuse, write, build and plan ``program``; raises ``VerifyError`` or ``CompileError``."""
        return self._compile(program, device, options, None)

    def _compile(
        self, program: Program, device: Device, options: Options, batch: BatchedBuild | None
    ) -> Executable:
        """A program, alone or in a batch."""
        verify(program)
        divided = with_host_slices(
            program, self.opened(device).device.traits.aligned_allocation_bytes
        )
        if divided is not None and options == Options():
            inner, whats = divided
            made = self._compile(inner, device, options, batch)
            return HostSlicedProgram(
                program, made, whats, lambda a: self.upload(a, device, borrow=True)
            )
        if any(is_cut(i, options.check_indices) for i in program.main.instructions):
            self._check(program.main, device)
            if options.staged:
                whole = replace(options, staged=False)
                copied = partial(self.copy, device=device)
                return CutProgram(program, whole, partial(self._piece, device, batch), copied)
            return HostProgram(program, self._host(device, options, batch))
        check = partial(self._check, program.main, device)
        return self._straight(program, device, options, batch, check)

    def _piece(
        self, device: Device, batch: BatchedBuild | None, program: Program, options: Options
    ) -> Executable:
        """A piece of a program that is cut."""
        return self._compile(program, device, options, batch)

    def compile_all(
        self, programs: Sequence[tuple[Program, Options]], device: Device
    ) -> list[Executable]:
        """Compile programs into one source file; see ``ptir.codegen.artifact.batched_build``."""
        from ptir.codegen.artifact.batched_build import BatchedBuild

        with self._opening:
            opened = self.opened(device)
            batch = BatchedBuild(opened.device, programs, on_disk=opened.recorder is None)
            for program, options in programs:
                self._compile(program, device, options, batch)
            batch.close()
            return [self._compile(program, device, options, batch) for program, options in programs]

    def _straight(
        self,
        given: Program,
        device: Device,
        options: Options,
        batch: BatchedBuild | None,
        check: Callable[[], None] | None = None,
    ) -> Executable:
        """A program without control flow; one that was compiled before need not be checked."""
        program = settled(given)
        opened = self.opened(device)
        with self._opening:
            artifact = self._artifact(program, device, options, batch, check)
            if batch is not None and batch.writing:
                return batch.unbound

            @cache
            def apart() -> tuple[KernelProgram, Explanation]:
                """The program with every kernel launched by itself, and what is in it."""
                from ptir.codegen.compile import compile_block
                from ptir.codegen.context import Context
                from ptir.codegen.explain import explain

                with self._opening:
                    context = Context.of(opened.device, recorder=opened.recorder, apart=True)
                    found = compile_block(program.main, context, options)
                    return self._bound(program, found.artifact(), opened), explain(found)

            if events.listening():
                launches = [(c.kernel, c.workgroups, c.workgroup_size) for c in artifact.commands]
                named = opened.device.dialect.name, artifact.source, tuple(launches)
                events.emit(events.KernelsWritten(given, *named))
            return self._bound(program, artifact, opened, apart, options.staged)

    def _host(self, device: Device, options: Options, batch: BatchedBuild | None) -> Host:
        """What control flow needs; the pieces of a program have nothing donated to them."""

        def read(handle: Handle) -> Any:
            self.stats(device).host_syncs += 1
            return self.download(handle, device)

        return Host(
            lambda piece: self._straight(piece, device, Options(), batch),
            read,
            lambda handle: self.copy(handle, device),
            options.check_indices,
        )

    def _check(self, block: Block, device: Device) -> None:
        """Raise ``UnsupportedError`` for the first op that ``refusal`` names."""
        for instruction in block.instructions:
            if instruction.op == "composite" and instruction.name == UNPACK:
                continue  # made by ``prepack``
            check_instruction(self, block, instruction, device)
            for region in instruction.regions if instruction.op in CONTROL else ():
                self._check(region, device)

    def _bound(
        self,
        program: Program,
        artifact: Artifact,
        opened: _OpenDevice,
        apart: Apart | None = None,
        staged: bool = False,
    ) -> KernelProgram:
        """The compiled program with its fixed memories in place; raises ``CompileError``."""
        import numpy as np

        device = opened.device
        constants = [self._uploaded(value.numpy(), opened) for value in artifact.constants]
        arenas = [
            opened.pool.allocate(TensorType(U8, (n,))) for n in self._arenas(artifact, device)
        ]
        parts: dict[tuple[int, int], Memory] = {}

        def fixed(part: BufferBinding) -> Memory:
            number = part.slot.number
            if part.slot.kind == "constant":
                return constants[number].memory
            key = (number, part.nbytes)
            if key not in parts:
                which, offset = divmod(number, device.traits.aligned_allocation_bytes)
                parts[key] = device.subspan(arenas[which].memory, offset, part.nbytes)
            return parts[key]

        named = any(call.kernel for call in artifact.commands)
        binary = built(device, artifact.source) if named else None
        steps: list[Launch] = []
        counters: list[DeviceBuffer] = []
        for call in artifact.commands:
            step = step_of(device, binary, call)
            for position, part in enumerate(call.bindings):
                if part.slot.kind in ("constant", "arena"):
                    step.bind(position, fixed(part))
                elif part.slot.kind == "counters":
                    counters.append(self._uploaded(np.zeros(part.nbytes, np.uint8), opened))
                    step.bind(position, counters[-1].memory)
            steps.append(step)
        held = (*arenas, *constants, *counters, *parts.values())
        made = program, device, opened.pool, opened.stats
        return KernelProgram(*made, artifact, steps, held, apart, staged)

    def _artifact(
        self,
        program: Program,
        device: Device,
        options: Options,
        batch: BatchedBuild | None,
        check: Callable[[], None] | None,
    ) -> Artifact:
        """What ``program`` comes down to: stored by an earlier process, or made now."""
        recorder, opened = self.opened(device).recorder, self.opened(device).device

        def make(source: SourceFile | None = None) -> Artifact:
            # A process that finds all never needs these.
            from ptir.codegen.compile import compile_block
            from ptir.codegen.context import Context
            from ptir.codegen.partitioned.rule import partitioned

            if check is not None:
                check()
            if options.staged:
                context = Context.of(opened, source, recorder, apart=True)
                return compile_block(program.main, context, options).artifact()
            found = partitioned(program, self, device, opened, options, recorder)
            if isinstance(found, str):
                context = Context.of(opened, source, recorder)
                made = compile_block(program.main, context, options).artifact()
                return replace(made, partitioning=found)
            return found.artifact

        if batch is not None:
            return batch.artifact(program, options, make)
        key = None if recorder is not None else record.cache_key(program, opened, options)
        artifact = record.load(key) if key else None
        if artifact is None:
            artifact = make()
            if key:
                record.store(key, artifact)
        return artifact

    @staticmethod
    def _arenas(artifact: Artifact, device: KernelDevice) -> Iterator[int]:
        """The bytes of each allocation that the arena is made of."""
        most = device.traits.aligned_allocation_bytes
        yield from (min(most, artifact.arena - n) for n in range(0, artifact.arena, most))

    def upload(
        self, array: np.ndarray[Any, Any], device: Device, *, borrow: bool = False
    ) -> DeviceBuffer:
        """A copy on the device; borrowed, the host's memory itself where the device can read it.

        A borrowed array above the largest allocation stays on the host, to be read in pieces.
        """
        import numpy as np

        opened = self.opened(device)
        dense = np.ascontiguousarray(array).reshape(array.shape)
        type = TensorType(dtype_of(dense), dense.shape)
        if borrow and dense.nbytes > opened.device.traits.aligned_allocation_bytes:
            return DeviceBuffer(None, type, opened.pool, host=dense)
        memory = opened.device.borrow(dense) if borrow and dense.size else None
        if memory is not None:
            return DeviceBuffer(memory, type, opened.pool, host=dense)
        opened.stats.bytes_uploaded += dense.nbytes
        return self._uploaded(dense, opened, borrow)

    def is_borrowed(self, handle: Handle) -> bool:
        """Whether there is no copy of its own."""
        return handle.host is not None

    def prefetch(self, array: np.ndarray[Any, Any], device: Device) -> Prefetch:
        """The host's memory itself where the device reads it, else a copy beside the queue."""
        import numpy as np

        opened = self.opened(device)
        dense = np.ascontiguousarray(array).reshape(array.shape)
        type = TensorType(dtype_of(dense), dense.shape)
        memory = opened.device.borrow(dense) if dense.size else None
        if memory is not None:
            shared = dense.ctypes.data == array.ctypes.data
            return Prefetch(DeviceBuffer(memory, type, opened.pool, host=dense), shared)
        resident = opened.pool.allocate(type)
        if not dense.size:
            return Prefetch(resident)
        opened.stats.bytes_uploaded += dense.nbytes
        begin, join = opened.device.send_beside(resident.memory, dense)
        return Prefetch(resident, begin=begin, join=join)

    def _uploaded(
        self, array: np.ndarray[Any, Any], opened: _OpenDevice, borrowed: bool = False
    ) -> DeviceBuffer:
        """A copy; of a borrowed array, which stays as it is, it is queued and need not be done."""
        resident = opened.pool.allocate(TensorType(dtype_of(array), array.shape))
        if array.size and borrowed:
            sent = opened.device.send(resident.memory, array)
            opened.pool.defer_free((array, sent), array.nbytes)
        elif array.size:
            opened.device.write(resident.memory, array)
        return resident

    def download(self, handle: Handle, device: Device) -> np.ndarray[Any, Any]:
        """The elements, once everything queued before is done."""
        import numpy as np

        opened = self.opened(device)
        if handle.memory is None:
            return np.array(handle.host)
        opened.pool.check([handle])
        array = np.empty(handle.type.shape, handle.type.dtype.numpy)
        if array.size:
            opened.device.read(handle.memory, array)
            opened.pool.flush_deferred()
        opened.stats.bytes_downloaded += array.nbytes
        return array

    def fetch(self, handle: Handle, device: Device) -> Callable[[], np.ndarray[Any, Any]] | None:
        """The elements once what was queued before is done, where the device reads that way."""
        import numpy as np

        opened = self.opened(device)
        if handle.memory is None or not handle.type.size:
            return None
        opened.pool.check([handle])
        array = np.empty(handle.type.shape, handle.type.dtype.numpy)
        wait = opened.device.fetch(handle.memory, array)
        if wait is None:
            return None
        opened.stats.bytes_downloaded += array.nbytes

        def fetched() -> np.ndarray[Any, Any]:
            wait()
            return array

        return fetched

    def runs_per_call(self, device: Device) -> int:
        """As many as the device takes in one call."""
        return self.opened(device).device.runs_per_call

    def budget(self, device: Device) -> int:
        """As many as the device takes."""
        return self.opened(device).device.budget

    def copy(self, handle: Handle, device: Device) -> Handle:
        """A copy made on the device."""
        opened = self.opened(device)
        opened.pool.check([handle])
        result = opened.pool.allocate(handle.type)
        if handle.type.size:
            opened.device.copy(handle.memory, result.memory, handle.type.nbytes)
        return result

    def synchronize(self, device: Device) -> None:
        """Wait for everything queued."""
        opened = self.opened(device)
        opened.device.finish()
        opened.pool.flush_deferred()

    def limit_memory(self, device: Device, nbytes: int) -> None:
        """Keep less for reuse where it would become more than ``nbytes``."""
        self.opened(device).pool.limit(nbytes)

    def memory_stats(self, device: Device) -> MemoryStats:
        """Bytes allocated on the device by this process; borrowed host memory does not count."""
        return self.opened(device).pool.stats()

    def stats(self, device: Device) -> RunStats:
        """The counters of the device."""
        return self.opened(device).stats
