"""What the search looks at: the views of inputs, the strategies of each op, their costs.

A *view* is computed from inputs alone by ops that only rename, widen or repeat; of parameters also
by elementwise ops (what lifting left, since it would grow them). It has no placement of its
own: each worker reads of it what it needs, where it needs it, as kernels do.
"""

from __future__ import annotations

from typing import Final

from ptir.ir.program import Block, Instruction, Program
from ptir.ops.record import OPS
from ptir.partition.costs import Costs, bytes_accessed, op_cost
from ptir.sharding.placement import Placement, Split, most_of
from ptir.sharding.strategies import (
    Propagation,
    Strategy,
    Types,
    alone,
    replicated_strategy,
    seed_splits,
    strategy,
)

SPLITS: Final = 6
"""Most splits of one value that are looked at."""

VIEWING: Final = frozenset(("cast", "dequantize", "unpack_vectors", "concat"))
"""What belongs to a view besides creations and the ops with the trait ``view``."""

WORTH: Final = 0.25
"""The part of a barrier that an op must take for its axes to be split on its account."""


class SearchSpace:
    """The strategies of a program's main block and what each costs."""

    def __init__(self, program: Program, workers: int, costs: Costs) -> None:
        self.block: Block = program.main
        self.workers, self.costs = workers, costs
        self.results: list[tuple[int, ...]] = []
        self.maker: dict[int, Instruction] = {}
        self.last: dict[int, int] = {}
        views = set(range(len(self.block.inputs)))
        stored = {n for n, port in enumerate(program.ports) if port.kind == "parameter"}
        for number, (results, instruction) in enumerate(self.block.numbered()):
            self.results.append(results)
            self.maker.update(dict.fromkeys(results, instruction))
            self.last.update(dict.fromkeys((*instruction.operands, *results), number))
            fixed = stored.issuperset(instruction.operands)
            if views.issuperset(instruction.operands) and _is_viewing(instruction, fixed):
                views.update(results)
                stored.update(results if fixed else ())
        self.views = frozenset(views)
        self._read: dict[tuple[int, Placement], float] = {}
        self._spent: dict[tuple[object, ...], float] = {}
        self.propagation = Propagation(self.block, SPLITS)
        self._begin()

    def types(self, instruction: Instruction) -> Types:
        """The types of an instruction's operands."""
        return tuple(self.block.types[v] for v in instruction.operands)

    # --- what is possible ---

    def _begin(self) -> None:
        for results, instruction in self.block.numbered():
            if results and results[0] in self.views:
                continue
            whole = self.seconds(instruction, replicated_strategy(instruction))
            if whole <= WORTH * self.costs.barrier_seconds:
                continue
            types, values = self.types(instruction), (*instruction.operands, *results)
            for at, split in seed_splits(alone(instruction), types, self.workers, self.costs.grain):
                self.propagation.propagate(values[at], split)

    def strategies(self, number: int) -> list[Strategy]:
        """The strategies of an instruction; the replicated one is the first."""
        instruction, results = self.block.instructions[number], self.results[number]
        types, values = self.types(instruction), (*instruction.operands, *results)
        found = {replicated_strategy(instruction): None}
        for at, value in enumerate(values):
            for split in self.propagation.found.get(value, ()):
                way = strategy(instruction, types, at, split)
                if way is not None:
                    found[way] = None
        return list(found)

    def view(self, value: int, placement: Placement) -> Strategy | None:
        """How a view is computed as a worker needs it; None: whole, then cut."""
        instruction = self.maker[value]
        if not isinstance(placement, Split):
            return replicated_strategy(instruction)
        return strategy(instruction, self.types(instruction), len(instruction.operands), placement)

    # --- what it costs ---

    def read(self, value: int, placement: Placement) -> float:
        """Bytes of inputs that the busiest worker reads for a view that it needs so."""
        key = (value, placement)
        if key not in self._read:
            self._read[key] = self._bytes(value, placement)
        return self._read[key]

    def _bytes(self, value: int, placement: Placement) -> float:
        if value < len(self.block.inputs):
            return most_of(placement) * self.block.types[value].nbytes
        instruction = self.maker[value]
        chosen = self.view(value, placement) or replicated_strategy(instruction)
        pairs = zip(instruction.operands, chosen.operands, strict=True)
        return sum(self.read(v, placed) for v, placed in pairs)

    def seconds(self, instruction: Instruction, chosen: Strategy) -> float:
        """Seconds of the busiest worker for an instruction under a strategy."""
        # Alike where the operands are: layers repeat.
        reads = tuple(
            self.read(v, placed) if v in self.views else self._made(v, placed)
            for v, placed in zip(instruction.operands, chosen.operands, strict=True)
        )
        one, types, costs = alone(instruction), self.types(instruction), self.costs
        key = (one, types, chosen, reads)
        if key not in self._spent:
            written = tuple(map(self._kept, (t.nbytes for t in instruction.types)))
            done = op_cost(one, types, chosen)
            self._spent[key] = max(
                bytes_accessed(instruction, chosen, reads, written) / costs.bytes_per_second,
                done.products / costs.products_per_second
                + done.elements / costs.elements_per_second,
            )
        return self._spent[key]

    def _made(self, value: int, placement: Placement) -> float:
        """Bytes of a value that the program made, unless it is small enough to be kept near."""
        return most_of(placement) * self._kept(self.block.types[value].nbytes)

    def _kept(self, nbytes: int) -> int:
        return nbytes if nbytes > self.costs.cache_bytes else 0

    def communication(self, value: int, has: Placement, needs: Placement) -> float:
        """Seconds that a worker spends to read what it needs and others have of a value."""
        nbytes = self.block.types[value].nbytes
        if isinstance(has, Split):
            fraction = 1.0 - 1.0 / self.workers
        else:
            fraction = (self.workers - 1) * most_of(needs)
        return fraction * nbytes / self.costs.communication_bytes_per_second


def _is_viewing(instruction: Instruction, fixed: bool) -> bool:
    """Whether the op makes a view of views; ``fixed`` says that those are of parameters alone."""
    if instruction.op == "composite":
        return False
    traits = OPS[instruction.op].traits
    creation = "creation" in traits and "random" not in traits
    plain = creation or "view" in traits or instruction.op in VIEWING
    return plain or (fixed and "elementwise" in traits)
