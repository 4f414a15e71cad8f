"""What a partitioned program costs: seconds of each worker's work and of communication."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from ptir.backend.explanation import SELECTING, UPDATES
from ptir.ir.program import Block, Instruction
from ptir.ops.record import OPS
from ptir.sharding.placement import Partial, Placement, most_of
from ptir.sharding.strategies import Strategy, Types, block_strategy, replicated_strategy


@dataclass(frozen=True)
class Costs:
    """The numbers of a device that decide what is worth partitioning; all for one worker.

    Work takes as long as the longest of reading its bytes and doing its arithmetic. Values of at
    most ``cache_bytes`` that the program makes are read and written where they were made, for free.
    """

    bytes_per_second: float
    """From memory, with all workers reading."""
    products_per_second: float
    """Multiplications with addition, in contractions."""
    elements_per_second: float
    """Elements of results of anything else."""
    barrier_seconds: float
    """From the last worker that arrives until all go on."""
    communication_bytes_per_second: float
    """Of what another worker made."""
    cache_bytes: int = 1 << 20
    grain: int = 16
    """Columns and units are split in multiples of this where that leaves enough of them."""


SERVER: Final = Costs(
    bytes_per_second=1.6e10,
    products_per_second=3e10,
    elements_per_second=4e9,
    barrier_seconds=2e-6,
    communication_bytes_per_second=2e10,
)
"""Of one core of a server whose workers spin at barriers."""


@dataclass(frozen=True)
class OpCost:
    """What the busiest worker computes: multiply-adds of contractions, elements of the rest."""

    products: float = 0.0
    elements: float = 0.0

    def __add__(self, more: OpCost) -> OpCost:
        return OpCost(self.products + more.products, self.elements + more.elements)


@lru_cache(maxsize=1 << 14)
def op_cost(instruction: Instruction, types: Types, chosen: Strategy) -> OpCost:
    """The cost of an op (given ``alone``) under a strategy."""
    if instruction.op == "composite":
        return _inside(instruction.regions[0], chosen.operands)
    result = sum(
        most_of(placed) * type.size
        for placed, type in zip(chosen.results, instruction.types, strict=True)
    )
    if instruction.op == "dot_general":
        summed = math.prod(types[0].shape[a] for a in instruction.attributes["lhs_contract"])
        return OpCost(products=result * summed * _summed_fraction(chosen))
    if not types:
        return OpCost()
    taken = max(most_of(p) * t.size for p, t in zip(chosen.operands, types, strict=True))
    reads = 0.0 if instruction.op in SELECTING else taken
    return OpCost(elements=max(result, reads))


def _summed_fraction(chosen: Strategy) -> float:
    """The fraction of the sum that the busiest worker has."""
    addends = isinstance(chosen.results[0], Partial)
    return max(map(most_of, chosen.operands)) if addends else 1.0


def _inside(lowering: Block, inputs: tuple[Placement, ...]) -> OpCost:
    found = block_strategy(lowering, inputs)
    strategies = (
        found.strategies if found else tuple(map(replicated_strategy, lowering.instructions))
    )
    total = OpCost()
    for instruction, chosen in zip(lowering.instructions, strategies, strict=True):
        types = tuple(lowering.types[v] for v in instruction.operands)
        if instruction.op == "composite" or "view" not in OPS[instruction.op].traits:
            total += op_cost(instruction, types, chosen)
    return total


def bytes_accessed(
    instruction: Instruction,
    chosen: Strategy,
    operands: tuple[float, ...],
    results: tuple[int, ...],
) -> float:
    """Bytes that the busiest worker reads and writes, from what it has of each operand, in bytes.

    What is written in place moves no more than its update; what selects rows, no more than them.
    """
    written = sum(
        most_of(placed) * nbytes for placed, nbytes in zip(chosen.results, results, strict=True)
    )
    read = list(operands)
    if instruction.name in UPDATES:
        read[0], written = 0.0, read[UPDATES[instruction.name]]
    if instruction.name in SELECTING:
        read[0] = min(read[0], written)
    return sum(read) + written
