"""From a partition to one artifact: all workers' kernels in one source, all memory in its place.

Each distinct program of a phase is compiled once, for one unit. Then everything that workers leave
for each other gets a place: parts of a split value one behind the other, which makes the value
whole without copying; addends beside each other; what is an output of the program, there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

from ptir.backend.contract import Options
from ptir.backend.kernel import KernelDevice
from ptir.codegen.artifact.record import Artifact, BufferBinding, Command
from ptir.codegen.artifact.source import SourceFile
from ptir.codegen.compile import compile_block
from ptir.codegen.context import Context
from ptir.codegen.families import FAMILIES
from ptir.codegen.partitioned.program import BoundProgram, ContiguousParts, FromInput, InputBinding
from ptir.codegen.partitioned.shard_views import NotPartitioned, is_unpacking
from ptir.codegen.planning.buffer_slot import BufferSlot
from ptir.codegen.planning.fuse import FusionPlan
from ptir.codegen.planning.plan import lowest_offset, up
from ptir.codegen.tuning.recorder import Recorder
from ptir.ir.attributes import Literal
from ptir.ir.program import Block
from ptir.partition.phases import Partition, PhaseOutput, ProgramOutput

LINE = 64
"""Bytes that workers do not share, so that none waits for what another writes."""


@dataclass(frozen=True)
class Location:
    """Bytes from a place on."""

    place: BufferSlot
    offset: int = 0

    def at(self, offset: int) -> Location:
        """A location further on; the arena's places are offsets themselves."""
        if self.place.kind == "arena":
            return Location(BufferSlot("arena", self.place.number + offset))
        return replace(self, offset=self.offset + offset)


@dataclass(frozen=True)
class CompiledWorkerPhase:
    """What a worker does in a phase: its program, and what that comes down to."""

    program: BoundProgram
    artifact: Artifact


@dataclass
class Linker:
    """Compiles and places the programs of all workers, by phase."""

    shared: Partition
    device: KernelDevice
    programs: Sequence[Sequence[BoundProgram]]
    outputs: Sequence[ProgramOutput]
    recorder: Recorder | None = None
    source: SourceFile = field(init=False)
    worked: list[list[CompiledWorkerPhase]] = field(init=False)
    places: dict[tuple[int, int, int], Location] = field(init=False)
    arena: int = 0

    def __post_init__(self) -> None:
        self.source = SourceFile(self.device)
        context = Context.of(self.device, self.source, self.recorder)
        context = replace(
            context, traits=replace(context.traits, compute_units=1, max_persistent_buffers=0)
        )
        known: dict[tuple[Block, frozenset[int]], Artifact] = {}
        self.worked = []
        self.places = {}
        for phase in self.programs:
            self.worked.append([])
            for program in phase:
                key = (program.block, program.donated)
                if key not in known:
                    options = Options(program.donated)
                    made = compile_block(program.block, context, options)
                    _check(made.fused)
                    known[key] = made.artifact()
                self.worked[-1].append(CompiledWorkerPhase(program, known[key]))

    def artifact(self, sharing: str) -> Artifact:
        """The artifact; raises ``NotPartitioned``."""
        self._in_place()
        outputs = tuple(self._output(n, output) for n, output in enumerate(self.outputs))
        self._place_phase_outputs()
        own = self._own_arenas()
        constants: list[Literal] = []
        commands: list[Command] = []
        counts: list[tuple[int, ...]] = []
        for number, phase in enumerate(self.worked):
            counts.append(tuple(len(one.artifact.commands) for one in phase))
            for worker, one in enumerate(phase):
                base = len(constants)
                constants += one.artifact.constants
                for command in one.artifact.commands:
                    parts = (
                        self._part(part, number, worker, own[worker], base)
                        for part in command.bindings
                    )
                    commands.append(replace(command, bindings=tuple(parts)))
        return Artifact(
            self.source.text,
            tuple(commands),
            outputs,
            self.arena,
            tuple(constants),
            tuple(counts),
            sharing,
        )

    # --- where things are ---

    def _in_place(self) -> None:
        """What a worker writes over its part of a donated input is where that is."""
        for number, phase in enumerate(self.worked):
            for worker, one in enumerate(phase):
                for output, place in enumerate(one.artifact.outputs):
                    if place.kind == "input":
                        bound = one.program.bound[place.number]
                        assert isinstance(bound, FromInput)
                        found = Location(BufferSlot("input", bound.port), bound.offset)
                        self.places[number, worker, output] = found

    def _output(self, number: int, output: ProgramOutput) -> BufferSlot:
        """Where an output of the program is, and its parts with it."""
        sizes = [self._nbytes(_key(part)) for part in output.parts]
        offsets = [0, *accumulate(sizes[:-1])]
        known = [self.places.get(_key(part)) for part in output.parts]
        first = known[0]
        if first is not None and first.place.kind == "input":
            wanted = [Location(first.place, offset) for offset in offsets]
            if known != wanted:
                raise NotPartitioned("an output is not where the input is that it is written over")
            return first.place
        if any(place is not None for place in known):
            raise NotPartitioned("an output is partly where an input is")
        place = BufferSlot("output", number)
        for part, offset in zip(output.parts, offsets, strict=True):
            self.places[_key(part)] = Location(place, offset)
        return place

    def _place_phase_outputs(self) -> None:
        """Places in the arena for what else workers leave, as long as it is needed."""
        last: dict[tuple[int, int, int], int] = {}
        whole: dict[tuple[int, int, int], ContiguousParts] = {}
        for number, phase in enumerate(self.programs):
            for bound in (b for program in phase for b in program.bound):
                if isinstance(bound, FromInput):
                    continue
                for left in bound:
                    last[_key(left)] = number
                    if len(bound) > 1:
                        whole[_key(left)] = bound
        waiting = dict.fromkeys(key for key in last if key not in self.places)
        used: list[tuple[int, int, int, int]] = []
        for key in waiting:
            if key in self.places:
                continue
            parts = whole.get(key)
            keys = [_key(part) for part in parts] if parts else [key]
            sizes = [self._nbytes(one) for one in keys]
            end = max(last.get(one, one[0]) for one in keys)
            offset = lowest_offset(_busy(used, key[0], end), sum(sizes), LINE)
            used.append((offset, sum(sizes), key[0], end))
            self.arena = max(self.arena, offset + up(sum(sizes), LINE))
            for one, size in zip(keys, sizes, strict=True):
                self.places[one] = Location(BufferSlot("arena", offset))
                offset += size
        self._forgotten()

    def _forgotten(self) -> None:
        """What nobody reads, at the end of the arena: kernels write it all the same."""
        for number, phase in enumerate(self.worked):
            for worker, one in enumerate(phase):
                for output in range(len(one.artifact.outputs)):
                    key = (number, worker, output)
                    if key not in self.places:
                        self.places[key] = Location(BufferSlot("arena", self.arena))
                        self.arena += up(self._nbytes(key), LINE)

    def _nbytes(self, key: tuple[int, int, int]) -> int:
        phase, worker, output = key
        program = self.programs[phase][worker].block
        return max(1, program.types[program.outputs[output]].nbytes)

    def _own_arenas(self) -> list[int]:
        """Where each worker's own memory begins, the same in all phases."""
        found: list[int] = []
        for worker in range(self.shared.workers):
            found.append(self.arena)
            self.arena += up(max(phase[worker].artifact.arena for phase in self.worked), LINE)
        return found

    def _part(
        self, part: BufferBinding, phase: int, worker: int, own: int, constants: int
    ) -> BufferBinding:
        """A worker's memory as one of the whole."""
        place = part.slot
        if place.kind == "arena":
            return replace(part, slot=BufferSlot("arena", own + place.number))
        if place.kind == "constant":
            return replace(part, slot=BufferSlot("constant", constants + place.number))
        if place.kind == "output":
            found = self.places[phase, worker, place.number]
        else:
            found = self._bound(self.worked[phase][worker].program.bound[place.number])
        return BufferBinding(found.place, part.nbytes, found.offset)

    def _bound(self, bound: InputBinding) -> Location:
        if isinstance(bound, FromInput):
            return Location(BufferSlot("input", bound.port), bound.offset)
        return self.places[_key(bound[0])]


def _key(left: PhaseOutput) -> tuple[int, int, int]:
    return left.phase, left.worker, left.output


def _busy(
    used: Sequence[tuple[int, int, int, int]], first: int, last: int
) -> list[tuple[int, int]]:
    """Offsets and sizes of what is needed in a phase from ``first`` to ``last``.

    ``used`` has offsets, sizes, and the first and last phase in which each is needed.
    """
    return [(at, size) for at, size, begin, end in used if begin <= last and first <= end]


def _check(plan: FusionPlan) -> None:
    """Raise ``NotPartitioned`` where a product reads a part of panels in another way."""
    whole = (each for each in plan.fusions if FAMILIES[each.family].panels)
    packed = {position for each in whole for position in each.instructions}
    for position, made in enumerate(plan.graph.block.instructions):
        alone = made.op == "dot_general" and position not in packed
        if alone and any(_is_unpacked(plan, value) for value in made.operands):
            raise NotPartitioned("a product does not read its weight as panels")


def _is_unpacked(plan: FusionPlan, value: int) -> bool:
    """Whether a kernel reads a packed weight element by element."""
    graph = plan.graph
    made = map(graph.instruction, graph.walk(value, enters=graph.is_map))
    return any(one is not None and is_unpacking(one) for one in made)
