"""A worker's program of one phase, ready to be fused, and what each of its inputs is bound to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ptir.backend.contract import Backend, Device, OpQuery
from ptir.backend.interpreter import unmarked
from ptir.codegen.partitioned.shard_views import shard_view
from ptir.codegen.weights.panels import Panels
from ptir.ir.graph import Ref, Visit, freeze, inline, reachable, rebuild, repeat, source
from ptir.ir.program import Block, Instruction
from ptir.ops.implementations import BACKEND
from ptir.partition.phases import Partition, PhaseOutput, WorkerProgram
from ptir.passes.context import PassContext
from ptir.passes.legalize import legalize
from ptir.rewrite.cse import cse_block


@dataclass(frozen=True)
class FromInput:
    """An input of the whole program, from an offset in bytes on."""

    port: int
    offset: int


ContiguousParts = tuple[PhaseOutput, ...]
"""The parts of a split value, one from each worker, that lie one behind the other in memory."""

InputBinding = FromInput | ContiguousParts
"""What a worker's input is: of one part, something left."""


@dataclass(frozen=True)
class BoundProgram:
    """What a worker does in a phase: a block, and what its inputs are bound to."""

    block: Block
    bound: tuple[InputBinding, ...]
    donated: frozenset[int]
    """Inputs that may be written over."""


class ProgramBinder:
    """Makes the programs of all workers of a partition."""

    def __init__(
        self,
        shared: Partition,
        packed: Mapping[int, Panels],
        backend: Backend,
        device: Device,
        donated: frozenset[int],
    ) -> None:
        self.shared, self.packed, self.donated = shared, packed, donated
        self.context = PassContext(backend, device)

    def program(self, phase: int, worker: int) -> BoundProgram:
        """The program of a worker in a phase; raises ``NotPartitioned``."""
        local = self.shared.phases[phase].workers[worker]
        legal = legalize(
            replace(local.program, main=rebuild(local.program.main, self._asked)), self.context
        )
        expiring = self.shared.expiring(phase, worker)
        inputs: list[tuple[Ref, InputBinding, bool]] = []
        values: list[Ref] = []
        for number, one in enumerate(local.sources):
            if isinstance(one, PhaseOutput):
                given = source(legal.inputs[number])
                inputs.append((given, (one,), False))
                values.append(given)
                continue
            taken = shard_view(one, self.shared.program.inputs[one.port], self.packed.get(one.port))
            bound = FromInput(one.port, taken.offset)
            own = number in expiring and one.port in self.donated and taken.contiguous
            inputs.append((taken.given, bound, own))
            values.append(taken.value)
        outputs = inline(legal.main, values, self._joining(local, values, inputs))
        used = {node.serial for node in reachable(outputs)}
        kept = [one for one in inputs if one[0].node.serial in used]
        block = cse_block(freeze(outputs, [ref for ref, _, _ in kept]))
        donated = frozenset(n for n, (_, _, own) in enumerate(kept) if own)
        return BoundProgram(block, tuple(bound for _, bound, _ in kept), donated)

    def _joining(
        self,
        local: WorkerProgram,
        values: Sequence[Ref],
        inputs: list[tuple[Ref, InputBinding, bool]],
    ) -> Visit:
        """Brings no parts together that lie one behind the other: they are the whole."""
        lefts = {
            value.node.serial: one
            for value, one in zip(values, local.sources, strict=True)
            if isinstance(one, PhaseOutput)
        }
        known: dict[ContiguousParts, Ref] = {}

        def visit(instruction: Instruction, operands: tuple[Ref, ...]) -> Sequence[Ref]:
            parts = [lefts.get(operand.node.serial) for operand in operands]
            found = tuple(part for part in parts if part is not None)
            if instruction.op != "concat" or len(found) != len(parts):
                return repeat(instruction, operands)
            if not self.is_joined(
                found, instruction.attributes["axis"], instruction.types[0].shape
            ):
                return repeat(instruction, operands)
            if found not in known:
                known[found] = source(instruction.types[0])
                inputs.append((known[found], found, False))
            return [known[found]]

        return visit

    def is_joined(self, parts: ContiguousParts, axis: int, shape: Sequence[int]) -> bool:
        """Whether these are all parts of a value along an axis, in order, which is the slowest."""
        first = parts[0]
        same = all((p.phase, p.value) == (first.phase, first.value) for p in parts)
        ordered = [p.worker for p in parts] == list(range(self.shared.workers))
        return same and ordered and all(size == 1 for size in shape[:axis])

    def _asked(self, instruction: Instruction, operands: tuple[Ref, ...]) -> Sequence[Ref] | None:
        """Composites that the backend takes whole, but not at a worker's sizes, lose their mark."""
        if instruction.attributes.get("implementation") != BACKEND:
            return None
        backend, device = self.context.backend, self.context.device
        plain, types = unmarked(instruction), tuple(ref.type for ref in operands)
        query = OpQuery(plain.op, plain.attributes, types, plain.types)
        refused = backend.refusal(query, device) is not None
        return repeat(plain, operands) if refused else None
