"""What is computed of one row alone, where one row is all that is read: see ``hoist_takes``."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from ptir.ir.graph import Ref, emit, freeze, repeat, source
from ptir.ir.location import Location, located
from ptir.ir.program import Block, Instruction
from ptir.ops.fill import full, highest, scalar
from ptir.ops.implementations import PORTABLE, lowered_again
from ptir.ops.record import OPS, op
from ptir.passes.single_reads import Graph, Root
from ptir.sharding.local import axis_slice, compute, localized, says_the_same
from ptir.sharding.placement import REPLICATED, Placement, Split
from ptir.sharding.strategies import Strategy, block_strategy, replicated_strategy, strategy
from ptir.types import TensorType

WORTH: Final = frozenset({"composite", "dot_general", "reduce"})
"""Ops of which at least one must be spared: what reads a row computes all others as it reads."""


@dataclass(frozen=True)
class Positioned:
    """A composite whose rows know where they stand: operand ``start`` i32[B] says it of the first.

    ``axis`` is that of the rows, in the first operand and in the result.
    """

    axis: int
    start: int


POSITIONED: Final = {"attention": Positioned(axis=2, start=3)}


def _first(axis: int, count: int) -> Split:
    """One place of an axis for one worker, all others for another."""
    return Split(axis, (((0, 1),), ((1, count),)))


def _one_place(placement: Placement, count: int) -> bool:
    """Whether a place of it is one of an axis of ``count``, and not of two that became one."""
    if isinstance(placement, Split):
        return placement == _first(placement.axis, count)
    return placement == REPLICATED


class _Narrowing:
    """Which instructions compute nothing that is read but for one place: ``chosen``, and how."""

    def __init__(self, graph: Graph, root: Root) -> None:
        self._graph, self._block, self.root = graph, graph.block, root
        self.instruction = self._block.instructions[root.number]
        self.count = self._block.types[self.instruction.operands[0]].shape[root.axis]
        self.chosen: dict[int, Strategy] = {}
        self._choose()

    @property
    def pays(self) -> bool:
        """Whether something is spared that is not computed as it is read anyway."""
        worth = any(self._block.instructions[number].op in WORTH for number in self.chosen)
        return worth and (self.instruction.op != "composite" or _is_functional(self.instruction))

    def _choose(self) -> None:
        """From the root back: narrow is what nobody reads but for one place, of one axis."""
        maker, uses = self._graph.maker, self._graph.uses
        wanted: defaultdict[int, list[Split]] = defaultdict(list)
        pending: list[int] = []  # makers of wanted values, the last first: all who read have asked

        def want(value: int, split: Split) -> None:
            wanted[value].append(split)
            if value in maker and -maker[value] not in pending:
                heapq.heappush(pending, -maker[value])

        want(self.instruction.operands[0], _first(self.root.axis, self.count))
        while pending:
            number = -heapq.heappop(pending)
            results, instruction = self._graph.numbered[number]
            read = [at for at, v in enumerate(results) if uses[v]]
            splits = {split for at in read for split in wanted[results[at]]}
            whole = any(len(wanted[results[at]]) < uses[results[at]] for at in read)
            if whole or len(splits) != 1:
                continue
            chosen = self._strategy(instruction, read, splits.pop())
            if chosen is not None:
                self.chosen[number] = chosen
                for value, placement in zip(instruction.operands, chosen.operands, strict=True):
                    if isinstance(placement, Split):
                        want(value, placement)

    def _strategy(
        self, instruction: Instruction, read: Sequence[int], split: Split
    ) -> Strategy | None:
        """How one place of the results that are ``read`` is computed of one of each operand."""
        positioned = _positioned(instruction)
        if positioned is not None:
            if split.axis != positioned.axis:
                return None
            others = replicated_strategy(instruction).operands[1:]
            return Strategy((split, *others), (split,))
        if "creation" in OPS[instruction.op].traits:
            return None  # its places differ
        types = tuple(self._block.types[v] for v in instruction.operands)
        chosen = strategy(instruction, types, len(types) + read[0], split)
        if chosen is None or any(chosen.results[at] != split for at in read):
            return None
        if not all(_one_place(p, self.count) for p in (*chosen.operands, *chosen.results)):
            return None
        if instruction.op == "composite":
            region = instruction.regions[0]
            if not _alike(region, chosen.operands):
                return None
            if not says_the_same(instruction, localized(region, chosen.operands, 0)):
                return None
        return chosen


def apart(graph: Graph, roots: Sequence[Root]) -> list[_Narrowing]:
    """What pays and has no root among what another narrows; the rest is found the next time.

    What one narrows is read by nothing but that and its root, so that is all they can share.
    """
    found: list[_Narrowing] = []
    taken = set[int]()
    for root in roots:
        one = _Narrowing(graph, root)
        if one.pays and taken.isdisjoint(one.chosen):
            found.append(one)
            taken.add(root.number)
    return found


# --- the block after it ---


def narrowed(graph: Graph, narrowings: Sequence[_Narrowing]) -> Block:
    """The block that computes the same from fewer rows."""
    return _Narrowed(graph, narrowings).block()


class _Narrowed:
    def __init__(self, graph: Graph, narrowings: Sequence[_Narrowing]) -> None:
        block = graph.block
        self._graph, self._block, self._numbered = graph, block, graph.numbered
        self._of = {n: one for one in narrowings for n in (*one.chosen, one.root.number)}
        self._inputs = [source(type) for type in block.inputs]
        self._values: dict[int, Ref] = dict(enumerate(self._inputs))
        self._narrow: set[int] = set()
        self._taken: dict[tuple[int, int, int], Ref] = {}  # one row of what is computed whole

    def block(self) -> Block:
        """See ``narrowed``."""
        for number in self._order():
            results, instruction = self._numbered[number]
            one = self._of.get(number)
            with located(instruction.location):
                made = self._made(number, instruction, one)
            self._values.update(zip(results, made, strict=True))
            if one is not None and number in one.chosen:
                self._narrow.update(results)
        return freeze([self._values[v] for v in self._block.outputs], self._inputs)

    def _order(self) -> Iterator[int]:
        """The instructions as they were, but for what says a place: it comes before the narrow.

        It needs none of them, as who reads a place of something computed reads it whole.
        """
        maker = self._graph.maker
        needs = [
            {maker[v] for v in instruction.operands if v in maker}
            for _, instruction in self._numbered
        ]
        for number, one in self._of.items():
            if one.root.place is None and one.instruction.operands[1] in maker:
                needs[number].add(maker[one.instruction.operands[1]])
        readers: defaultdict[int, list[int]] = defaultdict(list)
        for number, makers in enumerate(needs):
            for each in makers:
                readers[each].append(number)
        missing = [len(makers) for makers in needs]
        ready = [number for number, count in enumerate(missing) if not count]
        while ready:
            number = heapq.heappop(ready)
            yield number
            for reader in readers[number]:
                missing[reader] -= 1
                if not missing[reader]:
                    heapq.heappush(ready, reader)

    def _made(self, number: int, instruction: Instruction, one: _Narrowing | None) -> Sequence[Ref]:
        if one is None:
            return repeat(instruction, [self._values[v] for v in instruction.operands])
        if number == one.root.number:
            read = self._row(one, instruction.operands[0], one.root.axis)
            return [op("reshape")(read, shape=instruction.types[0].shape)]
        chosen = one.chosen[number]
        operands = [
            self._row(one, v, p.axis) if isinstance(p, Split) else self._values[v]
            for v, p in zip(instruction.operands, chosen.operands, strict=True)
        ]
        return self._computed(one, instruction, chosen, operands)

    def _row(self, one: _Narrowing, value: int, axis: int) -> Ref:
        """The place that is read, as an axis of one."""
        if value in self._narrow:
            return self._values[value]
        key = (one.root.number, value, axis)
        if key not in self._taken:
            with located(_place(one.instruction)):
                self._taken[key] = self._take(one, self._values[value], axis)
        return self._taken[key]

    def _take(self, one: _Narrowing, whole: Ref, axis: int) -> Ref:
        place = one.root.place
        if place is not None:
            return axis_slice(whole, axis, place, place + 1)
        index = op("reshape")(self._values[one.instruction.operands[1]], shape=(1,))
        return op("take")(whole, index, axis=axis)

    def _computed(
        self,
        one: _Narrowing,
        instruction: Instruction,
        chosen: Strategy,
        operands: list[Ref],
    ) -> Sequence[Ref]:
        """The results of a narrow instruction."""
        positioned = _positioned(instruction)
        if positioned is None:
            return compute(instruction, chosen, 0, operands)
        start = operands[positioned.start]
        with located(_place(one.instruction)):
            operands[positioned.start] = op("add")(start, self._moved(one, start.type))
        lowering = lowered_again(instruction, [operand.type for operand in operands])
        assert lowering is not None  # it is what the table says
        given, results = instruction.attributes, lowering.output_types
        return emit("composite", operands, given, results, (lowering,), instruction.location)

    def _moved(self, one: _Narrowing, type: TensorType) -> Ref:
        """How far behind the first row that is which is read, for each row of a batch."""
        if one.root.place is not None:
            return full(one.root.place, type.shape, type.dtype)
        index = self._values[one.instruction.operands[1]]
        own = index.type.dtype
        last = scalar(min(one.count - 1, highest(own)), own)
        flat = op("reshape")(index, shape=())
        inside = op("minimum")(op("maximum")(flat, scalar(0, own)), last)
        return op("broadcast_to")(op("cast")(inside, dtype=type.dtype), shape=type.shape)


def _place(root: Instruction) -> Location:
    """Where what reads a row comes from: of the root, as a lowering of the functional it was."""
    given = root.location
    return given.inside(root.name, PORTABLE) if root.op == "composite" else given


def _positioned(instruction: Instruction) -> Positioned | None:
    found = POSITIONED.get(instruction.name) if instruction.op == "composite" else None
    return found if found and _is_functional(instruction) else None


def _is_functional(composite: Instruction) -> bool:
    """Whether it computes what its name says: a program from outside may call anything so."""
    return says_the_same(composite, composite.regions[0])


# --- what is the same for every place ---


@lru_cache(maxsize=1 << 10)
def _alike(block: Block, inputs: tuple[Placement, ...]) -> bool:
    """Whether what one place needs of a block's own values is the same for every place.

    A lowering may hold values of all places, positions say: they are not those of any place.
    """
    found = block_strategy(block, inputs)
    if found is None:
        return False
    made = {v: (i, at) for results, i in block.numbered() for at, v in enumerate(results)}

    def uniform(value: int, split: Split) -> bool:
        if value not in made:
            return False
        instruction, at = made[value]
        if "creation" in OPS[instruction.op].traits:
            return instruction.op == "iota" and instruction.attributes["axis"] != split.axis
        types = tuple(block.types[v] for v in instruction.operands)
        chosen = strategy(instruction, types, len(types) + at, split)
        if chosen is None or not _alike_inside(instruction, chosen):
            return False
        pairs = zip(instruction.operands, chosen.operands, strict=True)
        return all(not isinstance(p, Split) or uniform(v, p) for v, p in pairs)

    for instruction, chosen in zip(block.instructions, found.strategies, strict=True):
        if not _alike_inside(instruction, chosen):
            return False
        for value, needs in zip(instruction.operands, chosen.operands, strict=True):
            has = found.values[value]
            if isinstance(needs, Split) and has == REPLICATED and not uniform(value, needs):
                return False
    return True


def _alike_inside(instruction: Instruction, chosen: Strategy) -> bool:
    if instruction.op != "composite" or chosen == replicated_strategy(instruction):
        return True
    return _alike(instruction.regions[0], chosen.operands)
