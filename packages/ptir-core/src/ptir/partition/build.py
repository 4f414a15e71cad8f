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
from ptir.partition.choices import everywhere
from ptir.partition.costs import Costs
from ptir.partition.facts import Facts
from ptir.partition.local import collected, compute, fitted, part_of
from ptir.partition.phases import Left, Local, Output, Partition, Phase, Source, Window
from ptir.partition.placement import WHOLE, Partial, Placement, Split
from ptir.partition.search import Decision, search

Version = tuple[int, bool]
"""A value as it was made, or (True) collected."""

Held = tuple[Version, int]
"""A version as a worker made it."""


def partition(program: Program, workers: int, costs: Costs) -> Partition:
    """``program`` shared by ``workers`` as is cheapest by ``costs``; raises ``UsageError``.

    ``program`` is what the passes made before the backend says how it wants parameters.
    """
    if workers < 1:
        raise UsageError(f"partition: {workers} workers: there must be at least 1")
    opened = replace(program, main=rebuild(program.main, _opened))
    decisions, facts, seconds = search(opened, workers, costs)
    numbers = [decision.number for decision in decisions]
    ops = [opened.main.instructions[number] for number in numbers]
    even = sum(facts.seconds(one, everywhere(one)) for one in ops) / workers
    made = _Builder(opened, facts, decisions, workers).partition()
    return replace(made, seconds=seconds, even=even)


def _opened(instruction: Instruction, operands: tuple[Ref, ...]) -> Sequence[Ref] | None:
    """A composite that is a contraction with what follows it place by place, as its ops.

    Its addends then cross as they are, and what follows is done with their sum.
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
class _Half:
    """A worker's phase under construction: its inputs by what they are, its outputs."""

    values: dict[Version, Ref] = field(default_factory=dict[Version, Ref])
    views: dict[tuple[int, Placement], Ref] = field(
        default_factory=dict[tuple[int, Placement], Ref]
    )
    inputs: dict[Window | Held, Ref] = field(default_factory=dict[Window | Held, Ref])
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
        self, program: Program, facts: Facts, decisions: Sequence[Decision], workers: int
    ) -> None:
        self.program, self.facts, self.block = program, facts, program.main
        self.decisions, self.workers = decisions, range(workers)
        self.made: dict[Version, tuple[int, Placement]] = {}
        """The phase and placement of each version of a value."""
        for one in decisions:
            for value, placed in zip(facts.results[one.number], one.choice.results, strict=True):
                self.made[value, False] = (one.phase, placed)
            for value, phase in one.whole:
                self.made[value, True] = (phase, WHOLE)
        self.last = max((phase for phase, _ in self.made.values()), default=0)
        self._end_with_sums()
        self.halves = [[_Half() for _ in self.workers] for _ in range(self.last + 1)]

    def _end_with_sums(self) -> None:
        """Outputs of which there are addends are collected, in a phase of their own at most."""
        for value in self.block.outputs:
            phase, placed = self.made.get((value, False), (0, WHOLE))
            if isinstance(placed, Partial) and (value, True) not in self.made:
                self.made[value, True] = (phase + 1, WHOLE)
                self.last = max(self.last, phase + 1)

    def partition(self) -> Partition:
        """All phases, verified."""
        for worker in self.workers:
            for decision in self.decisions:
                with located(self.block.instructions[decision.number].location):
                    self._decided(decision, worker)
        placed: list[Output] = []
        for value in self.block.outputs:
            made = self.facts.maker.get(value)
            with located(UNKNOWN if made is None else made.location):
                placed.append(self._output(value))
        # From the last: what a phase needs of earlier ones is known when it is done.
        phases = [self._phase(number) for number in reversed(range(self.last + 1))]
        return Partition(self.program, tuple(reversed(phases)), tuple(placed), len(self.workers))

    # --- instructions ---

    def _decided(self, decision: Decision, worker: int) -> None:
        half = self.halves[decision.phase][worker]
        instruction = self.block.instructions[decision.number]
        operands = [
            self._operand(value, needs, decision, worker)
            for value, needs in zip(instruction.operands, decision.choice.operands, strict=True)
        ]
        found = compute(instruction, decision.choice, worker, operands)
        for value, ref in zip(self.facts.results[decision.number], found, strict=True):
            half.values[value, False] = ref

    def _operand(self, value: int, needs: Placement, decision: Decision, worker: int) -> Ref:
        phase = decision.phase
        if value in self.facts.views:
            return self._view(value, needs, phase, worker)
        _, placed = self.made[value, False]
        if placed in (needs, WHOLE):
            return fitted(self._get((value, False), phase, worker), placed, needs, worker)
        if value in decision.parts:
            return self._collect(value, phase, worker, needs)
        return fitted(self._whole(value, phase, worker), WHOLE, needs, worker)

    def _get(self, version: Version, phase: int, worker: int, maker: int | None = None) -> Ref:
        """A version as a worker made it, in this phase or, then as an input, an earlier one."""
        maker = worker if maker is None else maker
        half, (made, placed) = self.halves[phase][worker], self.made[version]
        if made == phase and maker == worker:
            return half.values[version]
        key = (version, maker)
        if key not in half.inputs:
            type = placed.local(self.block.types[version[0]], maker)
            half.inputs[key] = source(type)
        return half.inputs[key]

    def _whole(self, value: int, phase: int, worker: int) -> Ref:
        """A collected value: brought together where it first is, kept for later phases."""
        version = (value, True)
        made, _ = self.made[version]
        half = self.halves[made][worker]
        if version not in half.values:
            half.values[version] = self._collect(value, made, worker, WHOLE)
        return self._get(version, phase, worker)

    def _collect(self, value: int, phase: int, worker: int, needs: Placement) -> Ref:
        """What a worker needs of a value, from what all workers have of it."""
        _, placed = self.made[value, False]
        parts = [self._get((value, False), phase, worker, maker) for maker in self.workers]
        type = self.block.types[value]
        if isinstance(placed, Split):
            return part_of(collected(parts, placed, type), needs, worker)
        return collected([part_of(part, needs, worker) for part in parts], placed, type)

    def _view(self, value: int, needs: Placement, phase: int, worker: int) -> Ref:
        half = self.halves[phase][worker]
        key = (value, needs)
        if key not in half.views:
            half.views[key] = self._viewed(value, needs, phase, worker)
        return half.views[key]

    def _viewed(self, value: int, needs: Placement, phase: int, worker: int) -> Ref:
        if value < len(self.block.inputs):
            window = Window(value, needs, worker)
            ref = source(needs.local(self.block.types[value], worker))
            return self.halves[phase][worker].inputs.setdefault(window, ref)
        chosen = self.facts.view(value, needs)
        if chosen is None:
            return part_of(self._view(value, WHOLE, phase, worker), needs, worker)
        instruction = self.facts.maker[value]
        operands = [
            self._view(v, placed, phase, worker)
            for v, placed in zip(instruction.operands, chosen.operands, strict=True)
        ]
        return compute(instruction, chosen, worker, operands)[0]

    # --- outputs ---

    def _output(self, value: int) -> Output:
        version, placed = (value, False), self.made.get((value, False), (0, WHOLE))[1]
        if value in self.facts.views:
            self.made.setdefault(version, (0, WHOLE))
            self.halves[0][0].values[version] = self._view(value, WHOLE, 0, 0)
        elif isinstance(placed, Partial):
            version, placed = (value, True), WHOLE
            self._whole(value, self.made[version][0], 0)
        phase = self.made[version][0]
        makers = self.workers if isinstance(placed, Split) else self.workers[:1]
        return Output(placed, tuple(self._left(version, phase, maker) for maker in makers))

    def _left(self, version: Version, phase: int, maker: int) -> Left:
        outputs = self.halves[phase][maker].outputs
        return Left(phase, maker, outputs.setdefault(version, len(outputs)), version[0])

    # --- programs ---

    def _phase(self, number: int) -> Phase:
        numbers = tuple(one.number for one in self.decisions if one.phase == number)
        halves = self.halves[number]
        for half in halves:
            half.keep_needed()
        left = {key for half in halves for key in half.inputs if not isinstance(key, Window)}
        for version, maker in sorted(left):  # one order for all, so that equal work is equal
            self._left(version, self.made[version][0], maker)
        return Phase(tuple(map(self._local, halves)), numbers)

    def _local(self, half: _Half) -> Local:
        inputs = half.inputs
        block = freeze(half.results(), list(inputs.values()))
        sources = tuple(self._source(key) for key in inputs)
        program = Program(block, tuple(map(self._port, sources)), self.program.version)
        verify(program)
        return Local(program, sources)

    def _source(self, key: Window | Held) -> Source:
        if isinstance(key, Window):
            return key
        version, maker = key
        return self._left(version, self.made[version][0], maker)

    def _port(self, one: Source) -> Port:
        if isinstance(one, Left):
            return Port(f"phase{one.phase}.worker{one.worker}.{one.output}")
        port = self.program.ports[one.port]
        if not isinstance(one.placement, Split):
            return port
        part = "+".join(f"{a}:{b}" for a, b in one.placement.parts[one.worker])
        return Port(f"{port.name}[axis {one.placement.axis}: {part}]", port.kind)
