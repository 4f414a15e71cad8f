"""What a shared program costs: seconds of each worker's work and of what passes between them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from ptir.backend.explanation import SELECTING, UPDATES
from ptir.ir.program import Block, Instruction
from ptir.ops.record import OPS
from ptir.partition.choices import Choice, Types, everywhere, flow
from ptir.partition.placement import Partial, Placement, most_of


@dataclass(frozen=True)
class Costs:
    """The numbers of a device that decide what is worth sharing; all for one worker.

    Work takes as long as the longest of reading its bytes and doing its arithmetic. Values of at
    most ``kept_bytes`` that the program makes are read and written where they were made, for free.
    """

    bytes_per_second: float
    """From memory, with all workers reading."""
    products_per_second: float
    """Multiplications with addition, in contractions."""
    elements_per_second: float
    """Elements of results of anything else."""
    barrier_seconds: float
    """From the last worker that arrives until all go on."""
    crossing_bytes_per_second: float
    """Of what another worker made."""
    kept_bytes: int = 1 << 20
    grain: int = 16
    """Columns and units are split in multiples of this where that leaves enough of them."""


SERVER: Final = Costs(
    bytes_per_second=1.6e10,
    products_per_second=3e10,
    elements_per_second=4e9,
    barrier_seconds=2e-6,
    crossing_bytes_per_second=2e10,
)
"""Of one core of a server whose workers spin at barriers."""


@dataclass(frozen=True)
class Work:
    """What the busiest worker does of an op: contraction products and elements of anything else."""

    products: float = 0.0
    elements: float = 0.0

    def __add__(self, more: Work) -> Work:
        return Work(self.products + more.products, self.elements + more.elements)


@lru_cache(maxsize=1 << 14)
def work(instruction: Instruction, types: Types, chosen: Choice) -> Work:
    """The work of an op (given ``alone``) that is shared so."""
    if instruction.op == "composite":
        return _inside(instruction.regions[0], chosen.operands)
    result = sum(
        most_of(placed) * type.size
        for placed, type in zip(chosen.results, instruction.types, strict=True)
    )
    if instruction.op == "dot_general":
        summed = math.prod(types[0].shape[a] for a in instruction.attributes["lhs_contract"])
        return Work(products=result * summed * _summed_share(chosen))
    if not types:
        return Work()
    taken = max(most_of(p) * t.size for p, t in zip(chosen.operands, types, strict=True))
    reads = 0.0 if instruction.op in SELECTING else taken
    return Work(elements=max(result, reads))


def _summed_share(chosen: Choice) -> float:
    """The share of the sum that the busiest worker has."""
    addends = isinstance(chosen.results[0], Partial)
    return max(map(most_of, chosen.operands)) if addends else 1.0


def _inside(lowering: Block, inputs: tuple[Placement, ...]) -> Work:
    found = flow(lowering, inputs)
    choices = found.choices if found else tuple(map(everywhere, lowering.instructions))
    total = Work()
    for instruction, chosen in zip(lowering.instructions, choices, strict=True):
        types = tuple(lowering.types[v] for v in instruction.operands)
        if instruction.op == "composite" or "view" not in OPS[instruction.op].traits:
            total += work(instruction, types, chosen)
    return total


def moved(
    instruction: Instruction, chosen: Choice, operands: tuple[float, ...], results: tuple[int, ...]
) -> float:
    """Bytes that the busiest worker moves, from what it has of each operand, in bytes.

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
