"""How a model's step is partitioned among workers: phases by layer, and what each worker reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from ptir.backend.explanation import SELECTING, functional_of
from ptir.capture.jit import record
from ptir.errors import UsageError
from ptir.nn.state import by_layer, tensor_names
from ptir.ops.overriding import active_overrides
from ptir.ops.record import OPS
from ptir.partition.build import partition
from ptir.partition.costs import Costs
from ptir.partition.phases import Partition, WorkerProgram
from ptir.partition.search_space import VIEWING
from ptir.passes.context import PassContext
from ptir.passes.pipeline import PIPELINE, optimize
from ptir.runtime.session import capacity_for
from ptir.runtime.steps import CHUNKS, choose
from ptir.types import spec

if TYPE_CHECKING:
    from ptir.capture.tensor import Tensor
    from ptir.ir.program import Block, Program
    from ptir.runtime.handle import Model

_UNNAMED: Final = frozenset(("constant", "iota", "broadcast_to", "slice", "reshape", "transpose"))


@dataclass(frozen=True)
class PartitionedPhase:
    """What happens between two barriers."""

    computes: tuple[str, ...]
    """The functionals and ops, in order."""
    weights: tuple[int, ...]
    """Bytes of parameters that each worker reads."""
    received: tuple[int, ...]
    """Bytes that each worker reads of what others made."""


@dataclass(frozen=True)
class PartitionedSection:
    """The phases of equal layers in a row (``layers`` may be empty)."""

    layers: tuple[str, ...]
    phases: tuple[PartitionedPhase, ...]
    """Of one layer."""

    @property
    def count(self) -> int:
        """How often the phases come."""
        return max(1, len(self.layers))


@dataclass(frozen=True)
class PartitionedStep:
    """One step of a model partitioned among workers."""

    step: str
    tokens: int
    capacity: int
    workers: int
    barriers: int
    sections: tuple[PartitionedSection, ...]

    @property
    def barriers_per_layer(self) -> int:
        """Phases of the layer that most others are like."""
        layered = [section for section in self.sections if section.layers]
        most = max(layered, key=lambda section: section.count, default=None)
        return len(most.phases) if most else 0

    @property
    def weights(self) -> tuple[int, ...]:
        """Bytes of parameters that each worker reads in all."""
        columns = [
            [sum(phase.weights[worker] for phase in s.phases) * s.count for s in self.sections]
            for worker in range(self.workers)
        ]
        return tuple(map(sum, columns))


def partition_step(
    model: Model, workers: int, costs: Costs, prefill: int | None, position: int
) -> PartitionedStep:
    """A decode step at ``position``, or the first chunk of a prompt, shared; nothing is run.

    Raises ``UsageError`` where that many tokens do not fit.
    """
    needed = position + 1 if prefill is None else prefill
    if needed > model.context:
        raise UsageError(f"{needed} tokens do not fit the context of {model.context}; use fewer")
    capacity = capacity_for(needed, model.context)
    tokens = 1 if prefill is None else next((c for c in CHUNKS if c >= prefill), CHUNKS[-1])
    context = PassContext(model.target.backend, model.target.device)
    with model.policies():
        context.overrides = active_overrides()
        program = (
            decode_program(model, capacity)
            if prefill is None
            else _step(model, tokens, capacity, lambda logits: logits)
        )
        # The last stage is how the backend wants parameters: each worker's, when there are parts.
        optimized = optimize(program, context, PIPELINE[:-1])
    partitioned = partition(optimized, workers, costs)
    name = "decode" if prefill is None else "prefill"
    sections = tuple(_sections(partitioned))
    return PartitionedStep(name, tokens, capacity, workers, partitioned.barriers, sections)


def decode_program(model: Model, capacity: int) -> Program:
    """The step of one row from a token to the most likely next one, as captured."""
    return _step(model, 1, capacity, lambda logits: choose(logits, {}))


def _step(model: Model, tokens: int, capacity: int, last: Callable[[Tensor], Tensor]) -> Program:
    """The step of one row to what ``last`` makes of its logits."""
    states = model.states()

    def step(ids: Any, start: Any, count: Any, *flat: Any) -> Any:
        logits, state = model.module(ids, by_layer(states, flat), start, count)
        return last(logits), state, start + count

    row = spec("i32", 1)
    carried = (type for state in states for type in state.types(1, capacity))
    types = (spec("i32", 1, tokens), row, row, *carried)
    names = ["tokens", "start", "count", *tensor_names(states)]
    return record(step, types, names)[0].program


# --- phases by layer ---


def _sections(partitioned: Partition) -> Iterable[PartitionedSection]:
    phases: list[tuple[str | None, PartitionedPhase]] = []
    layer: str | None = None
    for number in range(len(partitioned.phases)):
        phase = _phase(partitioned, number)
        if any(phase.weights):  # a phase without parameters goes with the one before
            layer = _layer(partitioned.phases[number].workers[0])
        phases.append((layer, phase))
    runs: list[tuple[str | None, tuple[PartitionedPhase, ...]]] = [
        (layer, tuple(phase for _, phase in members))
        for layer, members in groupby(phases, key=lambda one: one[0])
    ]
    for _, alike in groupby(runs, key=lambda run: (run[0] is not None, run[1])):
        members = list(alike)
        yield PartitionedSection(tuple(layer for layer, _ in members if layer), members[0][1])


def _phase(partitioned: Partition, number: int) -> PartitionedPhase:
    phase = partitioned.phases[number]
    instructions = (partitioned.program.main.instructions[n] for n in phase.numbers)
    names = (functional_of(i) for i in instructions if i.name not in _UNNAMED)
    return PartitionedPhase(
        tuple(name for name, _ in groupby(names)),
        tuple(sum(_read(local).values()) for local in phase.workers),
        tuple(
            sum(local.program.inputs[n].nbytes for n in local.remote_inputs(worker))
            for worker, local in enumerate(phase.workers)
        ),
    )


def _read(local: WorkerProgram) -> dict[str, int]:
    """Bytes that a worker reads of each parameter."""
    fractions = _fractions_read(local.program.main)
    typed = enumerate(zip(local.program.ports, local.program.inputs, strict=True))
    return {
        port.name: round(fractions.get(number, 0.0) * type.nbytes)
        for number, (port, type) in typed
        if port.kind == "parameter"
    }


def _fractions_read(block: Block) -> dict[int, float]:
    """The fraction of each value that is read: of what rows are selected from, the rows alone."""
    found: dict[int, float] = {}
    for results, instruction in reversed(list(block.numbered())):
        for at, value in enumerate(instruction.operands):
            size, fraction = max(1, block.types[value].size), 1.0
            if at == 0 and instruction.name in SELECTING:
                fraction = min(1.0, instruction.types[0].size / size)
            elif _is_view(instruction.op):
                fraction = found.get(results[0], 0.0)
            found[value] = max(found.get(value, 0.0), fraction)
    return found


def _is_view(op: str) -> bool:
    return op != "composite" and (op in VIEWING or "view" in OPS[op].traits)


def _layer(local: WorkerProgram) -> str | None:
    """The layer in which a worker reads most bytes of parameters."""
    layers: dict[int, str] = {}
    for instruction in local.program.main.instructions:
        for value in instruction.operands:
            layers.setdefault(value, instruction.location.layer)
    sizes, read = Counter[str](), _read(local)
    for number, port in enumerate(local.program.ports):
        if port.kind == "parameter":
            sizes[layers.get(number, "")] += read[port.name]
    return sizes.most_common(1)[0][0] or None if sizes else None
