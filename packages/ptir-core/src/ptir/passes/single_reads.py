"""What reads one place of an axis of a computed value: where a take could be hoisted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from ptir.ir.program import Block, Instruction


@dataclass(frozen=True)
class Root:
    """Instruction ``number`` reads one place of ``axis`` of its first operand.

    The place is ``place``, or what its second operand holds.
    """

    number: int
    axis: int
    place: int | None


class Graph:
    """A block, who makes each value and how often it is read, and what depends on ``given``."""

    def __init__(self, block: Block, given: Iterable[int]) -> None:
        self.block = block
        self.numbered = list(block.numbered())
        self.maker = {v: number for number, (r, _) in enumerate(self.numbered) for v in r}
        self.uses = Counter(v for i in block.instructions for v in i.operands)
        self.uses.update(block.outputs)
        self.given = set(given)
        for results, instruction in self.numbered:
            if not self.given.isdisjoint(instruction.operands):
                self.given.update(results)


def roots_of(graph: Graph) -> list[Root]:
    """What reads one place of an axis of something computed.

    Not of what parameters alone give, nor of the last axis: there weights would be cut.
    """
    found: list[Root] = []
    for number, (_, instruction) in enumerate(graph.numbered):
        if instruction.operands and instruction.operands[0] in graph.given:
            axis, place = _read(instruction, graph.block)
            type = graph.block.types[instruction.operands[0]]
            if axis is not None and axis < type.rank - 1 and type.shape[axis] > 1:
                found.append(Root(number, axis, place))
    return found


def _read(instruction: Instruction, block: Block) -> tuple[int | None, int | None]:
    """The axis and, where it is known, the place that an instruction reads alone."""
    types = [block.types[v] for v in instruction.operands]
    given = instruction.attributes
    if instruction.op == "take" and types[1].size == 1:
        return given["axis"], None
    if instruction.op == "composite" and instruction.name == "embedding" and types[1].size == 1:
        return 0, None
    if instruction.op == "slice":
        sizes = (types[0].shape, instruction.types[0].shape)
        cut = [a for a, (before, after) in enumerate(zip(*sizes, strict=True)) if before != after]
        if len(cut) == 1 and instruction.types[0].shape[cut[0]] == 1:
            return cut[0], given["starts"][cut[0]]
    return None, None
