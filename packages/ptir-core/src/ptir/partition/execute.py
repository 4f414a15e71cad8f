"""Runs partitioned programs on any backend: every phase, worker after worker, each as a program.

This shows that a partition is right; it is no faster than the whole program. ``PartitionedBackend``
stands for a backend wherever one is taken, and partitions all that it compiles.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any

from ptir.backend.contract import (
    Backend,
    BackendPass,
    Derivation,
    Device,
    Executable,
    Finding,
    Handle,
    MemoryStats,
    OpQuery,
    Options,
    RunStats,
)
from ptir.backend.interpreter import unmarked
from ptir.ir.graph import Ref, Visit, freeze, rebuild, repeat, source
from ptir.ir.program import Block, Instruction, Port, Program
from ptir.ops.implementations import BACKEND
from ptir.partition.build import partition
from ptir.partition.costs import Costs
from ptir.partition.phases import InputShard, Partition, PhaseOutput, ProgramOutput, WorkerProgram
from ptir.passes.context import PassContext
from ptir.passes.cse import cse
from ptir.passes.dce import dce
from ptir.passes.legalize import legalize
from ptir.sharding.local import full_value, shard_of
from ptir.sharding.placement import Placement, Split
from ptir.types import TensorType


class PartitionedBackend(Backend):
    """A backend whose programs are partitioned and run by one worker after the other."""

    def __init__(self, backend: Backend, workers: int, costs: Costs) -> None:
        self.backend, self.workers, self.costs = backend, workers, costs
        self.name = f"{backend.name}*{workers}"
        self.api_version = backend.api_version
        self.lifts_casts = backend.lifts_casts
        self.claims = backend.claims
        self.correctly_rounded = backend.correctly_rounded

    def devices(self) -> Sequence[Device]:
        """The devices of the backend."""
        return self.backend.devices()

    def refusal(self, query: OpQuery, device: Device) -> str | None:
        """Why the backend cannot run an op of the whole program; None: it can."""
        return self.backend.refusal(query, device)

    def compile(self, program: Program, device: Device, options: Options) -> Executable:
        """Partition ``program`` and compile what each worker does in each phase."""
        made = partition(program, self.workers, self.costs)
        return PartitionedProgram(made, self.backend, device, options)

    def upload(self, array: Any, device: Device, *, borrow: bool = False) -> Handle:
        """A handle of the backend with the array's elements."""
        return self.backend.upload(array, device, borrow=borrow)

    def download(self, handle: Handle, device: Device) -> Any:
        """The elements of a handle of the backend."""
        return self.backend.download(handle, device)

    def fetch(self, handle: Handle, device: Device) -> Callable[[], Any] | None:
        """Start a download of the backend."""
        return self.backend.fetch(handle, device)

    def copy(self, handle: Handle, device: Device) -> Handle:
        """A handle with equal elements that shares no memory with ``handle``."""
        return self.backend.copy(handle, device)

    def synchronize(self, device: Device) -> None:
        """Wait until everything that workers submitted is done."""
        self.backend.synchronize(device)

    def incarnation(self, device: Device) -> int:
        """How often the backend opened ``device`` again."""
        return self.backend.incarnation(device)

    def memory_stats(self, device: Device) -> MemoryStats | None:
        """Bytes that all workers hold on ``device`` together."""
        return self.backend.memory_stats(device)

    def stats(self, device: Device) -> RunStats:
        """The counters of ``device``, of all workers together."""
        return self.backend.stats(device)

    def claimed(self, device: Device) -> frozenset[str]:
        """The profiles that the backend claims for ``device``."""
        return self.backend.claimed(device)

    def tuning(self, device: Device) -> AbstractContextManager[Any] | None:
        """The backend's context for measuring what is compiled in it."""
        return self.backend.tuning(device)

    def capabilities(self, device: Device) -> Mapping[str, Any]:
        """What the backend says about ``device``."""
        return self.backend.capabilities(device)

    def findings(self) -> Sequence[Finding]:
        """What the backend depends on and how it is."""
        return self.backend.findings()

    def fix_for(self, problem: str) -> str | None:
        """The backend's fix for a problem, or None."""
        return self.backend.fix_for(problem)

    def passes(self) -> Sequence[BackendPass]:
        """The backend's passes, which see the whole program."""
        return self.backend.passes()

    def adopt(self, value: Any, device: Device) -> tuple[Handle, TensorType] | None:
        """A handle over the memory of a DLPack object on ``device``, and its type."""
        return self.backend.adopt(value, device)

    def export(self, handle: Handle, device: Device) -> Any:
        """An object with ``__dlpack__`` that shares the handle's memory."""
        return self.backend.export(handle, device)


@dataclass
class _Bound:
    """What was computed from the handles of parameters, while those stay the same."""

    handles: tuple[Handle, ...] = ()
    values: dict[Any, Handle] = field(default_factory=dict[Any, Handle])

    def are(self, handles: Sequence[Handle]) -> bool:
        """Whether these are the handles that it was computed from."""
        pairs = zip(self.handles, handles, strict=False)
        return len(self.handles) == len(handles) and all(a is b for a, b in pairs)


class PartitionedProgram(Executable):
    """A partition on a backend. Shards of parameters are kept, those of inputs cut in each run."""

    def __init__(
        self, partition: Partition, backend: Backend, device: Device, options: Options
    ) -> None:
        self.program, self.partition = partition.program, partition
        self._backend, self._device = backend, device
        self._blocks: dict[Block, Executable] = {}
        self._bound = _Bound()
        ports = partition.program.ports
        self._parameters = [n for n, port in enumerate(ports) if port.kind == "parameter"]
        built: Built = {}
        self._steps = [
            [
                _Step(local, backend, device, options, partition.expiring(number, worker), built)
                for worker, local in enumerate(phase.workers)
            ]
            for number, phase in enumerate(partition.phases)
        ]

    def run(self, inputs: Sequence[Handle]) -> tuple[Handle, ...]:
        """Run every phase, worker after worker."""
        parameters = tuple(inputs[n] for n in self._parameters)
        kept = self._bound  # by this run, whatever another thread runs with
        if not kept.are(parameters):
            self._bound = kept = _Bound(parameters)
        made: dict[PhaseOutput, Handle] = {}
        open_readers = Counter(self.partition.reads)
        input_shards: dict[InputShard, Handle] = {}
        for number, steps in enumerate(self._steps):
            for worker, step in enumerate(steps):
                taken = step.local.sources
                given = [
                    made[one]
                    if isinstance(one, PhaseOutput)
                    else self._shard(one, inputs, kept, input_shards)
                    for one in taken
                ]
                results = step.run(given, kept.values, self._computed)
                for output, handle in enumerate(results):
                    made[PhaseOutput(number, worker, output, -1)] = handle
                for one in taken:
                    if isinstance(one, PhaseOutput):
                        open_readers[one] -= 1
                        if not open_readers[one]:
                            del made[one]
        return tuple(
            self._output(output, value, made)
            for output, value in zip(
                self.partition.outputs, self.partition.program.main.outputs, strict=True
            )
        )

    def _shard(
        self,
        shard: InputShard,
        inputs: Sequence[Handle],
        bound: _Bound,
        known: dict[InputShard, Handle],
    ) -> Handle:
        """A worker's part of an input; parameters are cut once."""
        if not isinstance(shard.placement, Split):
            return inputs[shard.port]
        kept = bound.values if shard.port in self._parameters else known
        if shard not in kept:
            type = self.partition.program.inputs[shard.port]
            block = _shard_block(type, shard.placement, shard.worker)
            kept[shard] = self._computed(block, [inputs[shard.port]])
        return kept[shard]

    def _output(
        self, output: ProgramOutput, value: int, made: Mapping[PhaseOutput, Handle]
    ) -> Handle:
        parts = [made[part] for part in output.parts]
        if len(parts) == 1:
            # Whoever else has it as an output must not share its memory.
            return self._backend.copy(parts[0], self._device) if self._twice(output) else parts[0]
        type = self.partition.program.main.types[value]
        return self._computed(_joined_block(type, output.placement, len(parts)), parts)

    def _twice(self, output: ProgramOutput) -> bool:
        return self.partition.reads[output.parts[0]] > 1

    def _computed(self, block: Block, operands: Sequence[Handle]) -> Handle:
        if block not in self._blocks:
            ports = tuple(Port(f"operand{n}") for n in range(len(operands)))
            program = Program(block, ports)
            self._blocks[block] = self._backend.compile(program, self._device, Options())
        return self._blocks[block].run(operands)[0]


Compute = Callable[[Block, Sequence[Handle]], Handle]
Built = dict[tuple[Block, Options], Executable]


class _Step:
    """A worker's program of one phase, compiled, with parameters as the backend wants them."""

    def __init__(
        self,
        local: WorkerProgram,
        backend: Backend,
        device: Device,
        options: Options,
        expiring: frozenset[int],
        built: Built,
    ) -> None:
        self.local = local
        context = PassContext(backend, device, check_indices=options.check_indices)
        taken = replace(local.program, main=rebuild(local.program.main, self._asked(context)))
        program = dce(cse(legalize(taken, context), context), context)
        resolved, self.derived = backend.prepack(program, device)
        self.names = [port.name for port in resolved.ports]
        self.given = {port.name: n for n, port in enumerate(local.program.ports)}
        donated = frozenset(
            at for at, name in enumerate(self.names) if self.given.get(name, -1) in expiring
        )
        own = Options(donated, check_indices=options.check_indices)
        key = (
            resolved.main,
            own,
        )  # workers with shards of one shape, and equal layers, run the same
        if key not in built:
            built[key] = backend.compile(resolved, device, own)
        self.executable = built[key]

    def _asked(self, context: PassContext) -> Visit:
        """Composites that the backend takes whole, but not at a worker's sizes, lose their mark."""

        def visit(instruction: Instruction, operands: tuple[Ref, ...]) -> Sequence[Ref] | None:
            if instruction.attributes.get("implementation") != BACKEND:
                return None
            plain, types = unmarked(instruction), tuple(ref.type for ref in operands)
            query = OpQuery(plain.op, plain.attributes, types, plain.types)
            refused = context.backend.refusal(query, context.device) is not None
            return repeat(plain, operands) if refused else None

        return visit

    def run(
        self, given: Sequence[Handle], kept: dict[Any, Handle], compute: Compute
    ) -> tuple[Handle, ...]:
        """The outputs; derived parameters are computed once for each set of handles."""
        return self.executable.run(
            [self._handle(name, given, kept, compute) for name in self.names]
        )

    def _handle(
        self, name: str, given: Sequence[Handle], kept: dict[Any, Handle], compute: Compute
    ) -> Handle:
        derivation: Derivation | None = self.derived.get(name)
        if derivation is None:
            return given[self.given[name]]
        if name not in kept:
            operands = [self._handle(p.name, given, kept, compute) for p in derivation.ports]
            kept[name] = compute(derivation.block, operands)
        return kept[name]


def _shard_block(type: TensorType, placement: Placement, worker: int) -> Block:
    """What cuts a worker's part out of a whole value."""
    whole = source(type)
    return freeze([shard_of(whole, placement, worker)], [whole])


def _joined_block(type: TensorType, placement: Placement, workers: int) -> Block:
    """What puts a value together of the workers' parts."""
    parts = [source(placement.local(type, worker)) for worker in range(workers)]
    return freeze([full_value(parts, placement, type)], parts)
