"""What one worker computes: an op, or the lowering of a composite, on its parts of the operands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final

from ptir.errors import PtirError, VerifyError
from ptir.ir.attributes import Attributes
from ptir.ir.graph import Ref, emit, expand, freeze, inline, rebuild, repeat, source
from ptir.ir.location import UNKNOWN, located
from ptir.ir.program import Block, Instruction
from ptir.ops import movement
from ptir.ops.implementations import FUNCTIONALS, lowered_again
from ptir.ops.record import OPS
from ptir.rewrite.cse import cse_block
from ptir.rewrite.engine import rewrite
from ptir.rewrite.rules import rules
from ptir.sharding.placement import Partial, Placement, Split, below, runs
from ptir.sharding.strategies import (
    BlockStrategy,
    Strategy,
    block_strategy,
    replicated_strategy,
    strategy,
)
from ptir.types import F32

ADDED: Final = {
    "sum": "add",
    "prod": "mul",
    "max": "maximum",
    "min": "minimum",
    "any": "or",
    "all": "and",
}
"""The op that brings two addends of a kind together."""


def compute(
    instruction: Instruction, chosen: Strategy, worker: int, operands: Sequence[Ref]
) -> Sequence[Ref]:
    """What a worker computes of an op under a strategy: its results; raises ``VerifyError``."""
    if chosen == replicated_strategy(instruction):
        return repeat(instruction, operands)
    if instruction.op == "composite":
        return _composite(instruction, chosen, worker, operands)
    if "creation" in OPS[instruction.op].traits:
        whole = repeat(instruction, ())
        return [shard_of(whole[0], chosen.results[0], worker)]
    changed = _changed(instruction, chosen, worker)
    attributes = Attributes({**instruction.attributes, **changed})
    types = OPS[instruction.op].infer([ref.type for ref in operands], attributes)
    _check(instruction, chosen, worker, types)
    return emit(instruction.op, operands, attributes, types, (), instruction.location)


def _changed(instruction: Instruction, chosen: Strategy, worker: int) -> dict[str, Any]:
    """The attributes that say how large something is, for the sizes that a worker has."""
    (placement, *_), given = chosen.results, instruction.attributes
    shape = placement.local(instruction.types[0], worker).shape
    match instruction.op:
        case "reshape" | "broadcast_to":
            return {"shape": shape}
        case "dynamic_slice":
            return {"sizes": shape}
        case "dot_general" if isinstance(placement, Partial) and placement.wide:
            return {"dtype": F32}
        case "slice":
            split = chosen.operands[0]
            assert isinstance(split, Split)
            part, axis = split.parts[worker], split.axis
            starts, limits = list(given["starts"]), list(given["limits"])
            starts[axis], limits[axis] = below(part, starts[axis]), below(part, limits[axis])
            return {"starts": tuple(starts), "limits": tuple(limits)}
    return {}


def _check(instruction: Instruction, chosen: Strategy, worker: int, found: Sequence[Any]) -> None:
    pairs = zip(chosen.results, instruction.types, strict=True)
    wanted = [placement.local(type, worker) for placement, type in pairs]
    if list(found) != wanted:
        raise VerifyError(
            f"partition: {instruction.name}: worker {worker} gets {_listed(found)} where"
            f" {_listed(chosen.results)} makes {_listed(wanted)}; correct the row of"
            f" {instruction.op!r} in ptir.sharding.rules"
        )


def _listed(values: Sequence[Any]) -> str:
    return ", ".join(map(str, values))


# --- composites ---


def _composite(
    instruction: Instruction, chosen: Strategy, worker: int, operands: Sequence[Ref]
) -> Sequence[Ref]:
    """A composite on parts: itself where its functional says the same at these sizes."""
    lowering = localized(instruction.regions[0], chosen.operands, worker)
    _check(instruction, chosen, worker, lowering.output_types)
    if not says_the_same(instruction, lowering):
        return expand(replace(instruction, regions=(lowering,)), operands)
    return emit("composite", operands, instruction.attributes, lowering.output_types, (lowering,),
                instruction.location)  # fmt: skip


@lru_cache(maxsize=1 << 12)
def localized(block: Block, inputs: tuple[Placement, ...], worker: int) -> Block:
    """What a worker computes of a block whose inputs are placed so; see ``block_strategy``."""
    found = block_strategy(block, inputs)
    if found is None:
        raise VerifyError(
            "partition: a block whose values would have to be communicated is not one worker's"
        )
    with located(UNKNOWN):  # equal blocks share it, wherever they are called
        return _Localized(block, found, worker).block_of_outputs()


class _Localized:
    """A block for one worker; of whole values it computes the parts that are needed of them."""

    def __init__(self, block: Block, found: BlockStrategy, worker: int) -> None:
        self._block, self._worker = block, worker
        self._placed = found.values
        self._made = {
            v: (instruction, chosen, at)
            for (results, instruction), chosen in zip(
                block.numbered(), found.strategies, strict=True
            )
            for at, v in enumerate(results)
        }
        self._given = [
            source(found.values[number].local(type, worker))
            for number, type in enumerate(block.inputs)
        ]
        self._refs: dict[tuple[int, Placement], Ref] = {}

    def block_of_outputs(self) -> Block:
        """The block for the worker; its outputs are placed as the strategies say."""
        for value in self._made:
            self._get(value, self._placed[value])
        outputs = [self._get(value, self._placed[value]) for value in self._block.outputs]
        return freeze(outputs, self._given)

    def _get(self, value: int, needs: Placement) -> Ref:
        key = (value, needs)
        if key not in self._refs:
            self._refs[key] = self._computed(value, needs)
        return self._refs[key]

    def _computed(self, value: int, needs: Placement) -> Ref:
        placed = self._placed[value]
        if value not in self._made:
            return redistributed(self._given[value], placed, needs, self._worker)
        instruction, chosen, at = self._made[value]
        if placed != needs:
            types = tuple(self._block.types[v] for v in instruction.operands)
            assert isinstance(needs, Split)
            finer = strategy(instruction, types, len(types) + at, needs)
            if finer is None:
                return shard_of(self._get(value, placed), needs, self._worker)
            chosen = finer
        operands = [
            self._get(v, one) for v, one in zip(instruction.operands, chosen.operands, strict=True)
        ]
        return compute(instruction, chosen, self._worker, operands)[at]


def says_the_same(instruction: Instruction, lowering: Block) -> bool:
    """Whether the composite's functional, at the sizes of ``lowering``, lowers to just that.

    If not, an attribute is about the size of what is split (a number of groups, say).
    """
    if instruction.name not in FUNCTIONALS:
        return False
    try:
        own = lowered_again(instruction, lowering.inputs)
    except PtirError:
        return False  # it refuses these sizes
    return own is not None and _normal(own) == _normal(lowering)


@lru_cache(maxsize=1 << 10)
def _normal(block: Block) -> Block:
    """The block in ops alone, at a fixed point of the exact rules, without repetitions."""
    return _demanded(cse_block(rewrite(cse_block(rebuild(block, _inlined)), rules(), {})))


def _demanded(block: Block) -> Block:
    """The same values in the order in which the outputs ask for them: one order for all."""
    made = {v: (i, at) for results, i in block.numbered() for at, v in enumerate(results)}
    inputs = [source(type) for type in block.inputs]
    known: dict[int, Ref] = dict(enumerate(inputs))
    pending = list(reversed(block.outputs))
    while pending:
        value = pending[-1]
        if value in known:
            pending.pop()
            continue
        instruction, at = made[value]
        missing = [v for v in instruction.operands if v not in known]
        if missing:
            pending.extend(reversed(missing))
            continue
        results = repeat(instruction, tuple(known[v] for v in instruction.operands))
        known.update(zip(range(value - at, value - at + len(results)), results, strict=True))
    return freeze([known[v] for v in block.outputs], inputs)


def _inlined(instruction: Instruction, operands: tuple[Ref, ...]) -> Sequence[Ref] | None:
    if instruction.op != "composite":
        return None
    return inline(instruction.regions[0], operands, _inlined)


# --- parts of values ---


def redistributed(value: Ref, has: Placement, needs: Placement, worker: int) -> Ref:
    """A worker's value as it is needed: cut out of the whole, or as it is."""
    return value if has == needs else shard_of(value, needs, worker)


def shard_of(whole: Ref, placement: Placement, worker: int) -> Ref:
    """A worker's shard of a whole value."""
    if not isinstance(placement, Split):
        return whole
    return concatenated(
        [axis_slice(whole, placement.axis, a, b) for a, b in placement.parts[worker]],
        placement.axis,
    )


def axis_slice(value: Ref, axis: int, start: int, end: int) -> Ref:
    """The places from ``start`` to ``end`` along an axis."""
    shape = value.type.shape
    if (start, end) == (0, shape[axis]):
        return value
    starts, limits = [0] * len(shape), list(shape)
    starts[axis], limits[axis] = start, end
    return movement.slice(value, starts=tuple(starts), limits=tuple(limits))


def concatenated(pieces: Sequence[Ref], axis: int) -> Ref:
    """The pieces one behind the other along ``axis``; a single one as it is."""
    return pieces[0] if len(pieces) == 1 else movement.concat(*pieces, axis=axis)


def full_value(parts: Sequence[Ref], placement: Placement, type: Any) -> Ref:
    """The whole value from every worker's shard (all-gather) or addend (all-reduce)."""
    if isinstance(placement, Split):
        axis = placement.axis
        listed = [
            axis_slice(parts[worker], axis, at, at + end - start)
            for start, end, worker, at in runs(placement.parts)
        ]
        return concatenated(listed, axis)
    assert isinstance(placement, Partial)
    total = parts[0]
    for part in parts[1:]:
        total = OPS[ADDED[placement.kind]](total, part)
    return total if total.type == type else OPS["cast"](total, dtype=type.dtype)
