"""The partition pass: from a program to its phases, by the decisions of the search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ptir.errors import UsageError
from ptir.ir.graph import Ref, expand, freeze, reachable, rebuild, source
from ptir.ir.location import UNKNOWN, located
from ptir.ir.program import Instruction, Port, Program
from ptir.ops.record import OPS
from ptir.ops.verify import verify
from ptir.partition.costs import Costs
from ptir.partition.phases import (
    InputShard,
    Partition,
    Phase,
    PhaseOutput,
    ProgramOutput,
    Source,
    WorkerProgram,
)
from ptir.partition.search import Decision, search
from ptir.partition.search_space import SearchSpace
from ptir.sharding.local import compute, full_value, redistributed, shard_of
from ptir.sharding.placement import REPLICATED, Partial, Placement, Split
from ptir.sharding.strategies import replicated_strategy

Version = tuple[int, bool]
"""A value as it was made, or (True) made whole for every worker."""

Held = tuple[Version, int]
"""A version as a worker made it."""


def partition(program: Program, workers: int, costs: Costs) -> Partition:
    """``program`` among ``workers``, as is cheapest by ``costs``; raises ``UsageError``.

    ``program`` is what the passes made before the backend says how it wants parameters.
    """
    if workers < 1:
        raise UsageError(f"partition: {workers} workers: there must be at least 1")
    opened = replace(program, main=rebuild(program.main, _opened))
    decisions, space, seconds = search(opened, workers, costs)
    numbers = [decision.number for decision in decisions]
    ops = [opened.main.instructions[number] for number in numbers]
    even = sum(space.seconds(one, replicated_strategy(one)) for one in ops) / workers
    made = _Builder(opened, space, decisions, workers).partition()
    return replace(made, seconds=seconds, even=even)


def _opened(instruction: Instruction, operands: tuple[Ref, ...]) -> Sequence[Ref] | None:
    """A composite that is a contraction with what follows it place by place, as its ops.

    Its addends are then communicated as they are, and what follows is done with their sum.
    """
    if instruction.op != "composite":
        return None
    kinds = [_kind(inner) for inner in instruction.regions[0].instructions]
    if kinds.count("contraction") != 1 or "other" in kinds:
        return None
    return expand(instruction, operands)


def _kind(instruction: Instruction) -> str:
    if instruction.op == "composite":
        return "other"
    traits = OPS[instruction.op].traits
    if "contraction" in traits:
        return "contraction"
    return "plain" if traits & {"elementwise", "view", "creation", "quantization"} else "other"


@dataclass
class _WorkerPhase:
    """A worker's phase under construction: its inputs by what they are, its outputs."""

    values: dict[Version, Ref] = field(default_factory=dict[Version, Ref])
    views: dict[tuple[int, Placement], Ref] = field(
        default_factory=dict[tuple[int, Placement], Ref]
    )
    inputs: dict[InputShard | Held, Ref] = field(default_factory=dict[InputShard | Held, Ref])
    outputs: dict[Version, int] = field(default_factory=dict[Version, int])

    def results(self) -> list[Ref]:
        """The outputs, in order."""
        return [self.values[version] for version in self.outputs]

    def keep_needed(self) -> None:
        """Forget inputs that no output needs."""
        used = {node.serial for node in reachable(self.results())}
        self.inputs = {key: ref for key, ref in self.inputs.items() if ref.node.serial in used}


class _Builder:
    """Builds all phases at once; what later ones need of earlier ones becomes their outputs."""

    def __init__(
        self, program: Program, space: SearchSpace, decisions: Sequence[Decision], workers: int
    ) -> None:
        self.program, self.space, self.block = program, space, program.main
        self.decisions, self.workers = decisions, range(workers)
        self.made: dict[Version, tuple[int, Placement]] = {}
        """The phase and placement of each version of a value."""
        for one in decisions:
            for value, placed in zip(space.results[one.number], one.strategy.results, strict=True):
                self.made[value, False] = (one.phase, placed)
            for value, phase in one.whole:
                self.made[value, True] = (phase, REPLICATED)
        self.last = max((phase for phase, _ in self.made.values()), default=0)
        self._end_with_sums()
        self.built = [[_WorkerPhase() for _ in self.workers] for _ in range(self.last + 1)]

    def _end_with_sums(self) -> None:
        """Outputs of which there are addends are reduced, in a phase of their own at most."""
        for value in self.block.outputs:
            phase, placed = self.made.get((value, False), (0, REPLICATED))
            if isinstance(placed, Partial) and (value, True) not in self.made:
                self.made[value, True] = (phase + 1, REPLICATED)
                self.last = max(self.last, phase + 1)

    def partition(self) -> Partition:
        """The partition of the program: every phase with a verified program for each worker."""
        for worker in self.workers:
            for decision in self.decisions:
                with located(self.block.instructions[decision.number].location):
                    self._decided(decision, worker)
        placed: list[ProgramOutput] = []
        for value in self.block.outputs:
            made = self.space.maker.get(value)
            with located(UNKNOWN if made is None else made.location):
                placed.append(self._output(value))
        # From the last: what a phase needs of earlier ones is known when it is done.
        phases = [self._phase(number) for number in reversed(range(self.last + 1))]
        return Partition(self.program, tuple(reversed(phases)), tuple(placed), len(self.workers))

    # --- instructions ---

    def _decided(self, decision: Decision, worker: int) -> None:
        here = self.built[decision.phase][worker]
        instruction = self.block.instructions[decision.number]
        operands = [
            self._operand(value, needs, decision, worker)
            for value, needs in zip(instruction.operands, decision.strategy.operands, strict=True)
        ]
        found = compute(instruction, decision.strategy, worker, operands)
        for value, ref in zip(self.space.results[decision.number], found, strict=True):
            here.values[value, False] = ref

    def _operand(self, value: int, needs: Placement, decision: Decision, worker: int) -> Ref:
        phase = decision.phase
        if value in self.space.views:
            return self._view(value, needs, phase, worker)
        _, placed = self.made[value, False]
        if placed in (needs, REPLICATED):
            return redistributed(self._get((value, False), phase, worker), placed, needs, worker)
        if value in decision.parts:
            return self._collect(value, phase, worker, needs)
        return redistributed(self._whole(value, phase, worker), REPLICATED, needs, worker)

    def _get(self, version: Version, phase: int, worker: int, maker: int | None = None) -> Ref:
        """A version as a worker made it, in this phase or, then as an input, an earlier one."""
        maker = worker if maker is None else maker
        here, (made, placed) = self.built[phase][worker], self.made[version]
        if made == phase and maker == worker:
            return here.values[version]
        key = (version, maker)
        if key not in here.inputs:
            type = placed.local(self.block.types[version[0]], maker)
            here.inputs[key] = source(type)
        return here.inputs[key]

    def _whole(self, value: int, phase: int, worker: int) -> Ref:
        """A value made whole: where that is first possible, and kept for later phases."""
        version = (value, True)
        made, _ = self.made[version]
        here = self.built[made][worker]
        if version not in here.values:
            here.values[version] = self._collect(value, made, worker, REPLICATED)
        return self._get(version, phase, worker)

    def _collect(self, value: int, phase: int, worker: int, needs: Placement) -> Ref:
        """What a worker needs of a value, from what all workers have of it."""
        _, placed = self.made[value, False]
        parts = [self._get((value, False), phase, worker, maker) for maker in self.workers]
        type = self.block.types[value]
        if isinstance(placed, Split):
            return shard_of(full_value(parts, placed, type), needs, worker)
        return full_value([shard_of(part, needs, worker) for part in parts], placed, type)

    def _view(self, value: int, needs: Placement, phase: int, worker: int) -> Ref:
        here = self.built[phase][worker]
        key = (value, needs)
        if key not in here.views:
            here.views[key] = self._viewed(value, needs, phase, worker)
        return here.views[key]

    def _viewed(self, value: int, needs: Placement, phase: int, worker: int) -> Ref:
        if value < len(self.block.inputs):
            shard = InputShard(value, needs, worker)
            ref = source(needs.local(self.block.types[value], worker))
            return self.built[phase][worker].inputs.setdefault(shard, ref)
        chosen = self.space.view(value, needs)
        if chosen is None:
            return shard_of(self._view(value, REPLICATED, phase, worker), needs, worker)
        instruction = self.space.maker[value]
        operands = [
            self._view(v, placed, phase, worker)
            for v, placed in zip(instruction.operands, chosen.operands, strict=True)
        ]
        return compute(instruction, chosen, worker, operands)[0]

    # --- outputs ---

    def _output(self, value: int) -> ProgramOutput:
        version, placed = (value, False), self.made.get((value, False), (0, REPLICATED))[1]
        if value in self.space.views:
            self.made.setdefault(version, (0, REPLICATED))
            self.built[0][0].values[version] = self._view(value, REPLICATED, 0, 0)
        elif isinstance(placed, Partial):
            version, placed = (value, True), REPLICATED
            self._whole(value, self.made[version][0], 0)
        phase = self.made[version][0]
        makers = self.workers if isinstance(placed, Split) else self.workers[:1]
        return ProgramOutput(
            placed, tuple(self._phase_output(version, phase, maker) for maker in makers)
        )

    def _phase_output(self, version: Version, phase: int, maker: int) -> PhaseOutput:
        outputs = self.built[phase][maker].outputs
        return PhaseOutput(phase, maker, outputs.setdefault(version, len(outputs)), version[0])

    # --- programs ---

    def _phase(self, number: int) -> Phase:
        numbers = tuple(one.number for one in self.decisions if one.phase == number)
        in_phase = self.built[number]
        for here in in_phase:
            here.keep_needed()
        left = {key for here in in_phase for key in here.inputs if not isinstance(key, InputShard)}
        for version, maker in sorted(left):  # one order for all, so that equal work is equal
            self._phase_output(version, self.made[version][0], maker)
        return Phase(tuple(map(self._worker_program, in_phase)), numbers)

    def _worker_program(self, here: _WorkerPhase) -> WorkerProgram:
        inputs = here.inputs
        block = freeze(here.results(), list(inputs.values()))
        sources = tuple(self._source(key) for key in inputs)
        program = Program(block, tuple(map(self._port, sources)), self.program.version)
        verify(program)
        return WorkerProgram(program, sources)

    def _source(self, key: InputShard | Held) -> Source:
        if isinstance(key, InputShard):
            return key
        version, maker = key
        return self._phase_output(version, self.made[version][0], maker)

    def _port(self, one: Source) -> Port:
        if isinstance(one, PhaseOutput):
            return Port(f"phase{one.phase}.worker{one.worker}.{one.output}")
        port = self.program.ports[one.port]
        if not isinstance(one.placement, Split):
            return port
        part = "+".join(f"{a}:{b}" for a, b in one.placement.parts[one.worker])
        return Port(f"{port.name}[axis {one.placement.axis}: {part}]", port.kind)
