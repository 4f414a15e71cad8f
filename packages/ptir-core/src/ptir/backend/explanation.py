"""How an executable describes one run: its parts, what each computes and the bytes it moves.

A part is whatever the backend queues or calls as one thing: a fused kernel, a copy, a single op.
``ptir explain`` prints it. Values and instructions are those of the executable's own program.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from ptir.ir.location import UNKNOWN, Location
from ptir.ir.program import Block, Instruction
from ptir.ops.implementations import BACKEND, OWN, PORTABLE
from ptir.types import TensorType

Kind = Literal["kernel", "copy", "op"]

SELECTING: Final = frozenset(("take", "slice", "dynamic_slice", "embedding"))
"""What reads no more elements of its first operand than its result has."""
EXPERTS: Final = "experts"
"""The attribute of products with weights of so many experts, whose last operand chooses some."""
UPDATES: Final = {"cache_update": 1, "scatter_reduce": 2, "dynamic_update_slice": 1}
"""What writes in place no more than one of its operands has, by that operand's number."""


@dataclass(frozen=True)
class Access:
    """Bytes read or written of one value. What is written in place goes by the operand's number."""

    value: int
    nbytes: int


@dataclass(frozen=True)
class Part:
    """One part of a run. ``members`` are the positions of the instructions that it computes."""

    kind: Kind
    name: str
    """The kernel's family, or the op's name."""
    members: tuple[int, ...]
    reads: tuple[Access, ...]
    writes: tuple[Access, ...]
    items: int = 1
    """Workgroups of a kernel; of one thread where its schedule is serial."""
    workgroup_size: int = 1
    """Threads of a workgroup; one where the kernel's schedule is serial."""

    @property
    def schedule(self) -> str:
        """``coop`` where workgroups run a kernel together, else ``serial``; copies have none."""
        if self.kind != "kernel":
            return ""
        return "coop" if self.workgroup_size > 1 else "serial"


@dataclass(frozen=True)
class Explanation:
    """Everything that one run does, in order, and the memory that intermediates share."""

    parts: tuple[Part, ...]
    arena_bytes: int | None = None
    """None where intermediates are allocated one by one."""
    sharing: str = ""
    """How the run is partitioned among workers, or why not; nothing where there are no workers."""
    workers: int = 1
    """Units of the device among which a run can be partitioned, as workers."""
    stored: Mapping[int, str] = field(default_factory=dict[int, str])
    """Why values between parts lie in memory, as far as the backend can tell."""


def read_sizes(
    instruction: Instruction, operands: Sequence[TensorType], needed: int
) -> tuple[int, ...]:
    """How many elements of each operand are read to compute ``needed`` elements of the result.

    Of stacked weights of experts those of as many as are chosen, the last operand's, at most all.
    """
    whole = max(1, instruction.types[0].size)
    sizes = [-(-type.size * needed // whole) for type in operands]
    if instruction.name in SELECTING and sizes:
        sizes[0] = needed
    experts = instruction.attributes.get(EXPERTS)
    if isinstance(experts, int):
        count = min(experts, operands[-1].size)
        sizes[1:-1] = [-(-size * count // experts) for size in sizes[1:-1]]
    return tuple(min(size, type.size) for size, type in zip(sizes, operands, strict=True))


def written_bytes(block: Block, instruction: Instruction, result: TensorType) -> int:
    """The bytes that an in-place ``instruction`` writes of its result."""
    updates = UPDATES.get(instruction.name)
    if updates is None:
        return result.nbytes
    return min(result.nbytes, block.types[instruction.operands[updates]].nbytes)


def functional_of(instruction: Instruction) -> str:
    """What the model called it: the functional that it was inlined from, else its own name.

    A composite that stands inside keeps its name, unless it is part of a chosen implementation.
    """
    place = instruction.location
    chosen = place.implementation not in ("", PORTABLE, OWN, BACKEND)
    if not place.functional or (instruction.op == "composite" and not chosen):
        return instruction.name
    return f"{place.functional}={place.implementation}" if chosen else place.functional


def locations_of(part: Part, block: Block) -> tuple[Location, ...]:
    """Where the instructions that a part computes come from, in their order, each place once."""
    found = (block.instructions[position].location for position in part.members)
    return tuple(dict.fromkeys(location for location in found if location != UNKNOWN))
