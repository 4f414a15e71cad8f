"""The memory plan: where every stored value lies while a program runs.

Intermediates share one arena, packed by how long they live. An output that is written into an
operand's memory (a cache) takes that memory over where nobody reads the operand later, and is
copied first where somebody does or where it is not ours to overwrite. The output of a map takes
over the memory of an operand that it reads element by element and that nobody reads later.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ptir.backend.contract import Options
from ptir.backend.kernel import Traits
from ptir.codegen.fusion.graph import Graph
from ptir.codegen.planning.buffer_slot import BufferSlot
from ptir.codegen.planning.fuse import FusionPlan
from ptir.codegen.schedules.kernel import Fusion, scratch_value
from ptir.types import TensorType


@dataclass(frozen=True)
class Copy:
    """A copy between places that runs before the step it stands in front of."""

    source: BufferSlot
    target: BufferSlot
    nbytes: int


@dataclass(frozen=True)
class MemoryPlan:
    """Places of the stored values, copies by step, and what each output is.

    ``copies[n]`` run before step n, those of the last entry after all steps.
    """

    slots: dict[int, BufferSlot]
    copies: tuple[tuple[Copy, ...], ...]
    outputs: tuple[BufferSlot, ...]
    arena: int
    constants: tuple[int, ...]


@dataclass
class _LiveRange:
    """A memory under planning: its values, when it is first written and last needed."""

    values: list[int]
    nbytes: int
    first: int
    last: int
    place: BufferSlot | None = None


@dataclass
class _Planner:
    fused: FusionPlan
    options: Options
    traits: Traits
    reads: list[tuple[int, ...]]
    """The stored values that each step reads."""
    scratch: list[tuple[TensorType, ...]]
    """The memories that each step needs while it runs."""
    over: list[frozenset[int]]
    """The operands that each step may write its output over."""
    lives: dict[int, _LiveRange] = field(default_factory=dict[int, _LiveRange])
    copies: list[list[Copy]] = field(default_factory=list[list[Copy]])
    pending: list[tuple[int, int, int]] = field(default_factory=list[tuple[int, int, int]])

    @property
    def graph(self) -> Graph:
        return self.fused.graph

    def plan(self) -> MemoryPlan:
        """Inputs and constants, then the steps in order, then outputs and the arena."""
        steps = self.fused.fusions
        self.copies = [[] for _ in range(len(steps) + 1)]
        for value in range(len(self.graph.block.inputs)):
            self.lives[value] = _LiveRange([value], 0, -1, len(steps), BufferSlot("input", value))
        constants = tuple(v for v in sorted(self.fused.materialized) if self.graph.is_constant(v))
        for number, value in enumerate(constants):
            self.lives[value] = _LiveRange(
                [value], 0, -1, len(steps), BufferSlot("constant", number)
            )
        last = self._last_reads()
        for step, fusion in enumerate(steps):
            self._step(step, fusion, last)
        outputs = self._outputs(len(steps))
        arena = self._pack()
        for step, source, target in self.pending:
            nbytes = self.graph.type(target).nbytes
            self.copies[step].append(Copy(self._place(source), self._place(target), nbytes))
        places = {value: self._place(value) for value in self.lives}
        copies = tuple(map(tuple, self.copies))
        return MemoryPlan(places, copies, outputs, arena, constants)

    def _place(self, value: int) -> BufferSlot:
        place = self.lives[value].place
        assert place is not None
        return place

    def _last_reads(self) -> dict[int, int]:
        found: dict[int, int] = {}
        for step, values in enumerate(self.reads):
            found.update(dict.fromkeys(values, step))
        found.update(dict.fromkeys(self.graph.outputs, len(self.reads)))
        return found

    def _step(self, step: int, fusion: Fusion, last: dict[int, int]) -> None:
        for value in self.reads[step]:
            self.lives[value].last = max(self.lives[value].last, step)
        for number, type in enumerate(self.scratch[step]):
            value = scratch_value(fusion, number)
            self.lives[value] = _LiveRange([value], max(1, type.nbytes), step, step)
        for value in fusion.outputs:
            shared = fusion.output_aliases.get(value)
            end = max(step, last.get(value, step))
            operands = sorted(self.over[step]) if shared is None else [shared]
            for operand in operands:
                if self._may_alias(operand, value, step, last, fusion):
                    life = self.lives[operand]
                    life.values.append(value)
                    life.last = max(life.last, end)
                    self.lives[value] = life
                    break
            else:
                nbytes = max(1, self.graph.type(value).nbytes)
                self.lives[value] = _LiveRange([value], nbytes, step, end)
                if shared is not None:
                    self.pending.append((step, shared, value))

    def _may_alias(
        self, operand: int, output: int, step: int, last: dict[int, int], fusion: Fusion
    ) -> bool:
        """Whether nobody needs the operand's memory as it is after ``step``, or during it."""
        life = self.lives[operand]
        if any(value in fusion.outputs for value in life.values):
            return False
        loaded = [value for value in self.reads[step] if value not in self.over[step]]
        if loaded:  # nothing is read to store nothing
            for target in fusion.output_aliases.values():
                loaded.remove(target)
        if any(value in loaded for value in life.values):  # the kernel itself reads it as it was
            return False
        if any(last.get(value, -1) > step for value in life.values):
            return False
        if life.place is None:
            return True
        same = self.graph.type(operand) == self.graph.type(output)  # it may become an output
        return same and self._is_given(life)

    def _outputs(self, end: int) -> tuple[BufferSlot, ...]:
        """The place of each output; what is not a memory of its own is copied at the end."""
        places: list[BufferSlot] = []
        used: set[int] = set()
        for number, value in enumerate(self.graph.block.outputs):
            life = self.lives[value]
            own = BufferSlot("output", number)
            if id(life) not in used and (life.place is None or self._is_given(life)):
                life.place = life.place or own
            else:
                assert life.place is not None
                nbytes = self.graph.type(value).nbytes
                self.copies[end].append(Copy(life.place, own, nbytes))
            used.add(id(life))
            places.append(
                life.place if life.place.kind == "input" and self._is_given(life) else own
            )
        return tuple(places)

    def _is_given(self, life: _LiveRange) -> bool:
        """Whether a memory is a donated input that nothing else holds."""
        place = life.place
        if place is None or place.kind != "input" or place.number not in self.options.donated:
            return False
        return not any(place.number in group for group in self.options.aliases)

    def _pack(self) -> int:
        """Offsets in the arena, large memories first; returns the arena's size."""
        waiting = {id(life): life for life in self.lives.values() if life.place is None}
        placed: list[tuple[int, _LiveRange]] = []
        size = 0
        for life in sorted(waiting.values(), key=lambda life: (-life.nbytes, life.first)):
            offset = self._offset(life, placed)
            life.place = BufferSlot("arena", offset)
            placed.append((offset, life))
            size = max(size, offset + life.nbytes)
        return size

    def _offset(self, life: _LiveRange, placed: Sequence[tuple[int, _LiveRange]]) -> int:
        """The lowest offset at which nothing that lives at the same time is in the way."""
        others = (
            (offset, other.nbytes)
            for offset, other in placed
            if other.first <= life.last and life.first <= other.last
        )
        return lowest_offset(
            others, life.nbytes, self.traits.alignment, self.traits.aligned_allocation_bytes
        )


def lowest_offset(
    busy: Iterable[tuple[int, int]], nbytes: int, alignment: int, piece: int = sys.maxsize
) -> int:
    """The lowest aligned offset from which ``nbytes`` are free and lie in one allocation.

    ``busy`` are offsets and sizes of what is in the way; allocations have ``piece`` bytes.
    """
    offset = 0
    for begin, size in sorted(busy):
        if offset + nbytes <= begin:
            break
        offset = max(offset, up(begin + size, alignment))
        end = up(offset + 1, piece)
        offset = offset if offset + nbytes <= end else end
    return offset


def up(value: int, to: int) -> int:
    """The least multiple of ``to`` that is not below ``value``."""
    return -(-value // to) * to


def plan_memory(
    plan: FusionPlan,
    reads: Iterable[tuple[int, ...]],
    scratch: Iterable[tuple[TensorType, ...]],
    over: Iterable[frozenset[int]],
    options: Options,
    traits: Traits,
) -> MemoryPlan:
    """The plan for kernels that read these stored values and need this scratch, by fusion.

    ``over`` are the operands that each may write its only output over, where nobody needs them
    later.
    """
    return _Planner(plan, options, traits, list(reads), list(scratch), list(over)).plan()
