"""A partitioned program: phases with a barrier behind each, in each a program per worker.

A worker's program is an ordinary one. Its inputs are shards of the whole program's inputs and what
workers, itself included, left behind in earlier phases; nothing else passes between workers.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property

from ptir.ir.program import Program
from ptir.sharding.placement import Placement, Split


@dataclass(frozen=True)
class InputShard:
    """A worker's shard of an input of the whole program, by the input's number."""

    port: int
    placement: Placement
    worker: int


@dataclass(frozen=True)
class PhaseOutput:
    """An output of a worker in an earlier phase, and the value of the whole program it is of."""

    phase: int
    worker: int
    output: int
    value: int = field(compare=False)


Source = InputShard | PhaseOutput


@dataclass(frozen=True)
class WorkerProgram:
    """What one worker computes in one phase, and where its inputs come from, one each."""

    program: Program
    sources: tuple[Source, ...]

    def remote_inputs(self, worker: int) -> tuple[int, ...]:
        """The numbers of the inputs that other workers made."""
        return tuple(
            number
            for number, one in enumerate(self.sources)
            if isinstance(one, PhaseOutput) and one.worker != worker
        )


@dataclass(frozen=True)
class Phase:
    """What happens between two barriers; ``numbers`` are the instructions, in order.

    A view is in each phase that reads it.
    """

    workers: tuple[WorkerProgram, ...]
    numbers: tuple[int, ...]


@dataclass(frozen=True)
class ProgramOutput:
    """Where an output of the whole program is: with its first worker, or a part with each."""

    placement: Placement
    parts: tuple[PhaseOutput, ...]


@dataclass(frozen=True)
class Partition:
    """A program, its phases, and where its outputs are when all are done."""

    program: Program
    phases: tuple[Phase, ...]
    outputs: tuple[ProgramOutput, ...]
    workers: int
    seconds: float = 0.0
    """What a run costs, by the costs that it was made with."""
    even: float = 0.0
    """What the ops alone would cost, were each split evenly and nothing communicated."""

    @property
    def barriers(self) -> int:
        """Barriers between phases; the end of the run, for which all wait too, is not one."""
        return len(self.phases) - 1

    @cached_property
    def reads(self) -> Counter[Source]:
        """How often each shard and each phase's output is an input, or (part of) an output."""
        found = Counter[Source]()
        for phase in self.phases:
            for local in phase.workers:
                found.update(local.sources)
        for output in self.outputs:
            found.update(output.parts)
        return found

    def expiring(self, phase: int, worker: int) -> frozenset[int]:
        """The numbers of a worker's inputs that are its alone and that nobody reads afterwards.

        They may be overwritten: parts of inputs (where the whole input is donated), and what the
        worker left itself.
        """
        local = self.phases[phase].workers[worker]
        ports = self.program.ports
        found: set[int] = set()
        for number, one in enumerate(local.sources):
            own = one.worker == worker and self.reads[one] == 1
            if isinstance(one, InputShard):
                stored = ports[one.port].kind == "parameter"
                own = own and isinstance(one.placement, Split) and not stored
                own = own and self._are_disjoint(one.port)
            if own:
                found.add(number)
        return frozenset(found)

    def _are_disjoint(self, port: int) -> bool:
        """Whether all shards of an input are parts of one split: none overlap."""
        placed = {
            one.placement for one in self.reads if isinstance(one, InputShard) and one.port == port
        }
        return len(placed) == 1

    def input_shards(self, worker: int) -> tuple[InputShard, ...]:
        """The distinct shards that a worker reads, in the order in which it first does."""
        found = (
            one
            for phase in self.phases
            for one in phase.workers[worker].sources
            if isinstance(one, InputShard)
        )
        return tuple(dict.fromkeys(found))
