"""The strategies of each op, and which splits of which values lead to them.

A strategy is a placement for each operand and each result. A composite has those that its lowering
allows: a split of an operand is propagated through the lowering, and counts if nothing inside would
have to be communicated.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Final

from ptir.ir.program import Block, Instruction
from ptir.sharding.placement import (
    REPLICATED,
    Partial,
    Placement,
    Ranges,
    Split,
    balanced,
    cut,
    merged,
)
from ptir.sharding.rules import factors
from ptir.types import TensorType

Types = tuple[TensorType, ...]

UNEVEN: Final = 1.3
"""How much larger the greatest part of a piece may be than that of the whole, to be propagated."""


@dataclass(frozen=True)
class Strategy:
    """One way to partition an op: where each operand must be, and where its results are then."""

    operands: tuple[Placement, ...]
    results: tuple[Placement, ...]


def replicated_strategy(instruction: Instruction) -> Strategy:
    """The strategy that every op has: each worker does all of it."""
    return Strategy(
        (REPLICATED,) * len(instruction.operands), (REPLICATED,) * len(instruction.types)
    )


def alone(instruction: Instruction) -> Instruction:
    """The instruction without the place that it has in its block: equal for equal calls."""
    return replace(instruction, operands=tuple(range(len(instruction.operands))))


def strategy(instruction: Instruction, types: Types, at: int, split: Split) -> Strategy | None:
    """The strategy with operand ``at`` split so (results are counted behind the operands)."""
    return _strategy(alone(instruction), types, at, split)


@lru_cache(maxsize=1 << 14)
def _strategy(instruction: Instruction, types: Types, at: int, split: Split) -> Strategy | None:
    if instruction.op == "composite":
        return _inside(instruction, at, split)
    for factor in factors(instruction, types):
        axes = (*factor.operands, *factor.results)
        units = factor.units(axes[at], split)
        if units is not None:
            placed = tuple(factor.placed(link, units) for link in axes)
            return Strategy(placed[: len(types)], placed[len(types) :])
    return _across(instruction, types, at, split)


def _inside(instruction: Instruction, at: int, split: Split) -> Strategy | None:
    """The strategy that the lowering of a composite allows."""
    lowering, count = instruction.regions[0], len(instruction.operands)
    propagation = Propagation(lowering, 1)
    propagation.propagate(at if at < count else lowering.outputs[at - count], split)
    operands = tuple(propagation.first(number) for number in range(count))
    found = block_strategy(lowering, operands)
    if found is None or all(placement == REPLICATED for placement in operands):
        return None
    result = Strategy(operands, tuple(found.values[v] for v in lowering.outputs))
    placed = (*result.operands, *result.results)
    return result if placed[at] == split else None


# --- along the axis of a slice or concat ---


def axis_pieces(
    instruction: Instruction, types: Types
) -> tuple[int, int, list[tuple[int, int, int]]]:
    """What pieces a value has: where the value is, the axis, and (where, start, end) of each piece.

    Places are counted as for ``strategy``. Without pieces the axis is -1.
    """
    given = instruction.attributes
    if instruction.op == "concat":
        axis = given["axis"]
        ends = [0, *itertools.accumulate(type.shape[axis] for type in types)]
        pieces = list(zip(range(len(types)), ends, ends[1:], strict=False))
        return len(types), axis, pieces
    if instruction.op == "slice" and all(n == 1 for n in given["strides"] or (1,)):
        rows = list(zip(given["starts"], given["limits"], types[0].shape, strict=True))
        axes = [a for a, (low, high, size) in enumerate(rows) if (low, high) != (0, size)]
        if len(axes) == 1:
            return 0, axes[0], [(1, *rows[axes[0]][:2])]
    return 0, -1, []


def _across(instruction: Instruction, types: Types, at: int, split: Split) -> Strategy | None:
    """Pieces of a split value: each worker has what of the piece lies in its ranges."""
    whole, axis, pieces = axis_pieces(instruction, types)
    if at != whole or split.axis != axis:
        return None
    parts = [tuple(cut(part, low, high) for part in split.parts) for _, low, high in pieces]
    if not all(part for axis_slice in parts for part in axis_slice):
        return None
    splits: tuple[Placement, ...] = tuple(Split(axis, axis_slice) for axis_slice in parts)
    return Strategy((split,), splits) if whole == 0 else Strategy(splits, (split,))


# --- through a block ---


@dataclass(frozen=True)
class BlockStrategy:
    """The placements of a block's values and the strategies of its ops, without communication."""

    values: tuple[Placement, ...]
    strategies: tuple[Strategy, ...]


@lru_cache(maxsize=1 << 12)
def block_strategy(block: Block, inputs: tuple[Placement, ...]) -> BlockStrategy | None:
    """What follows from the inputs' placements; None where a value must be communicated."""
    values: list[Placement] = list(inputs)
    strategies: list[Strategy] = []
    for instruction in block.instructions:
        operands = [values[v] for v in instruction.operands]
        types = tuple(block.types[v] for v in instruction.operands)
        chosen = _fitting(instruction, types, operands)
        if chosen is None:
            return None
        strategies.append(chosen)
        values.extend(chosen.results)
    return BlockStrategy(tuple(values), tuple(strategies))


def _fitting(
    instruction: Instruction, types: Types, operands: Sequence[Placement]
) -> Strategy | None:
    """The strategy for operands that are placed so; of whole ones a part may be taken."""
    for at, placement in enumerate(operands):
        if isinstance(placement, Partial):
            return None
        if isinstance(placement, Split):
            found = strategy(instruction, types, at, placement)
            if found is None:
                return None
            pairs = zip(operands, found.operands, strict=True)
            return found if all(has in (REPLICATED, needs) for has, needs in pairs) else None
    return replicated_strategy(instruction)


Pieces = dict[int, tuple[Ranges, ...]]
"""The splits of a piece by the number of the seed that they were propagated from."""


@dataclass
class Propagation:
    """Propagation of splits through a block, both ways; at most ``most`` for each value."""

    block: Block
    most: int
    found: dict[int, list[Split]] = field(default_factory=dict[int, list[Split]])
    pieces: dict[tuple[int, int], dict[tuple[int, int], Pieces]] = field(
        default_factory=dict[tuple[int, int], dict[tuple[int, int], Pieces]]
    )
    seeds: int = 0

    def __post_init__(self) -> None:
        self._at: dict[int, list[tuple[int, int]]] = {}
        self._values: list[tuple[int, ...]] = []
        for number, (results, instruction) in enumerate(self.block.numbered()):
            self._values.append((*instruction.operands, *results))
            for at, value in enumerate(self._values[-1]):
                self._at.setdefault(value, []).append((number, at))

    def first(self, value: int) -> Placement:
        """The first split found for a value, else the whole."""
        return self.found.get(value, [REPLICATED])[0]

    def propagate(self, value: int, split: Split) -> None:
        """Note a split of a value, and all splits that it leads to."""
        self.seeds += 1
        pending = [(value, split)]
        while pending:
            value, split = pending.pop(0)
            known = self.found.setdefault(value, [])
            if split in known or len(known) >= self.most:
                continue
            known.append(split)
            for number, at in self._at.get(value, ()):
                pending.extend(self._through(number, at, split))

    def _through(self, number: int, at: int, split: Split) -> Iterator[tuple[int, Split]]:
        instruction = self.block.instructions[number]
        types = tuple(self.block.types[v] for v in instruction.operands)
        values = self._values[number]
        found = strategy(instruction, types, at, split)
        if found is not None:
            placed = (*found.operands, *found.results)
            yield from (
                (value, placement)
                for value, placement in zip(values, placed, strict=True)
                if isinstance(placement, Split) and placement.most <= UNEVEN * split.most
            )
        whole, axis, pieces = axis_pieces(instruction, types)
        for where, start, end in pieces:
            if where == at and split.axis == axis:
                yield from self._joined(values[whole], axis, (start, end), split.parts)

    def _joined(
        self, value: int, axis: int, axis_slice: tuple[int, int], parts: tuple[Ranges, ...]
    ) -> Iterator[tuple[int, Split]]:
        """The split of a value all of whose pieces have one, of the same seed if they can."""
        known = self.pieces.setdefault((value, axis), {})
        known.setdefault(axis_slice, {})[self.seeds] = parts
        tiles = sorted(known)
        ends = [0, *(end for _, end in tiles)]
        size = self.block.types[value].shape[axis]
        if [start for start, _ in tiles] != ends[:-1] or ends[-1] != size:
            return
        way = [known[tile].get(self.seeds, next(iter(known[tile].values()))) for tile in tiles]
        yield value, Split(axis, _side_by_side(tiles, way))


def _side_by_side(
    tiles: Sequence[tuple[int, int]], way: Sequence[tuple[Ranges, ...]]
) -> tuple[Ranges, ...]:
    """Each worker's places of all pieces, counted in what they are pieces of."""
    return tuple(
        merged(
            (start + a, start + b)
            for (start, _), part in zip(tiles, worker, strict=True)
            for a, b in part
        )
        for worker in zip(*way, strict=True)
    )


# --- where propagation starts ---


@lru_cache(maxsize=1 << 12)
def seed_splits(
    instruction: Instruction, types: Types, workers: int, grain: int
) -> tuple[tuple[int, Split], ...]:
    """Even splits of an op (given ``alone``) along each of its factors: (place, split)."""
    if instruction.op == "composite":
        return tuple(dict.fromkeys(_inner_seed_splits(instruction, workers, grain)))
    found: list[tuple[int, Split]] = []
    for factor in factors(instruction, types):
        axes = (*factor.operands, *factor.results)
        fine = all(getattr(link, "inner", 1) == 1 for link in axes)
        units = balanced(factor.count, workers, grain if fine else 1)
        placed = [factor.placed(link, units) for link in axes] if units else []
        at = next((n for n, one in enumerate(placed) if isinstance(one, Split)), None)
        if at is not None:
            found.append((at, placed[at]))  # type: ignore[arg-type]
    return tuple(found)


def _inner_seed_splits(
    instruction: Instruction, workers: int, grain: int
) -> Iterator[tuple[int, Split]]:
    lowering, count = instruction.regions[0], len(instruction.operands)
    for results, inner in lowering.numbered():
        types = tuple(lowering.types[v] for v in inner.operands)
        for at, split in seed_splits(alone(inner), types, workers, grain):
            propagation = Propagation(lowering, 1)
            propagation.propagate((*inner.operands, *results)[at], split)
            ends = [*range(count), *lowering.outputs]
            place = next((n for n, v in enumerate(ends) if v in propagation.found), None)
            if place is not None:
                yield place, propagation.found[ends[place]][0]
