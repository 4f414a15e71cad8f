"""A block as the generator sees it: who makes and reads a value, and what one element of it is."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from ptir.codegen.expressions.elementwise import COSTLY, ELEMENTWISE
from ptir.codegen.expressions.expr import Const, Expr, Load
from ptir.codegen.expressions.index import ZERO, ravel_index
from ptir.codegen.expressions.movement import FREE, MOVEMENT, THROUGH, Coordinates, Operands
from ptir.codegen.expressions.unpacked import UNPACK, unpacked_element
from ptir.ir.attributes import Literal
from ptir.ir.program import Block, Instruction
from ptir.types import TensorType

CHEAP: Final = 3
"""Elementwise ops that are rather computed again in every kernel than stored."""


class Unfusible(Exception):  # noqa: N818  not an error: a question answered with no
    """A value is needed at coordinates where the kernel at hand does not have it."""


@dataclass(eq=False)
class Graph:
    """Makers and readers of the values of a block."""

    block: Block
    maker: dict[int, int] = field(default_factory=dict[int, int])
    """The position of the instruction that defines a value; inputs have none."""
    readers: dict[int, list[int]] = field(default_factory=dict[int, list[int]])
    """The positions of the instructions that read a value, each once, in order."""
    results: list[tuple[int, ...]] = field(default_factory=list[tuple[int, ...]])
    """The values that each instruction defines."""
    taken: set[int] = field(default_factory=set[int])
    """The positions of the instructions that kernels have already taken in."""
    cooperative: bool = False
    """Whether kernels are cooperative, where their family has such a schedule."""

    def __post_init__(self) -> None:
        for position, (results, instruction) in enumerate(self.block.numbered()):
            self.results.append(results)
            self.maker.update(dict.fromkeys(results, position))
            for value in dict.fromkeys(instruction.operands):
                self.readers.setdefault(value, []).append(position)
        self.outputs = frozenset(self.block.outputs)

    def type(self, value: int) -> TensorType:
        """The type of a value."""
        return self.block.types[value]

    def instruction(self, value: int) -> Instruction | None:
        """The instruction that defines a value; None for an input."""
        position = self.maker.get(value)
        return None if position is None else self.block.instructions[position]

    def behind_views(self, value: int, stop: Collection[int] = ()) -> int:
        """The value that free ops of one operand make ``value`` from, or one of ``stop`` before."""
        while (made := self.instruction(value)) is not None and is_free(made) and made.operands:
            if value in stop:
                break
            value = made.operands[0]
        return value

    def last_view(self, value: int) -> int:
        """The last of the views that are each the only reader of the one before."""
        while value not in self.outputs and len(readers := self.readers.get(value, [])) == 1:
            made = self.block.instructions[readers[0]]
            if made.op not in THROUGH:
                break
            value = self.results[readers[0]][0]
        return value

    def through(self, value: int, view: int, at: Coordinates) -> Coordinates:
        """Where the element of ``value`` at some coordinates stands in a view of it."""
        if value == view:
            return at
        made = self.instruction(view)
        assert made is not None
        types = tuple(self.type(v) for v in made.operands)
        before = self.through(value, made.operands[0], at)
        return THROUGH[made.op](Operands(made, types, lambda i, c: _no_element()), before)

    def is_constant(self, value: int) -> bool:
        """Whether a value is a constant of the block."""
        made = self.instruction(value)
        return made is not None and made.op == "constant"

    def is_map(self, value: int) -> bool:
        """Whether an element of a value is an expression of elements of others."""
        made = self.instruction(value)
        return made is not None and is_map(made)

    def walk(self, *values: int, enters: Callable[[int], bool]) -> Iterator[int]:
        """Values and what they are made of, each once, behind those alone that ``enters`` holds."""
        seen, pending = set[int](), list(values)
        while pending:
            value = pending.pop()
            if value in seen:
                continue
            seen.add(value)
            yield value
            made = self.instruction(value)
            if made is not None and enters(value):
                pending.extend(made.operands)


def _no_element() -> Expr:
    raise Unfusible("only places are asked for")


def is_free(instruction: Instruction) -> bool:
    """Whether the instruction costs nothing wherever its result is read."""
    if instruction.op == "composite":
        return instruction.name == UNPACK
    return instruction.op in FREE or splat(instruction) is not None


def is_map(instruction: Instruction) -> bool:
    """Whether one element of the result is an expression of elements of the operands."""
    if instruction.op == "constant":
        return True
    return is_free(instruction) or instruction.op in ELEMENTWISE or instruction.op in MOVEMENT


def follows(instruction: Instruction) -> bool:
    """Whether the instruction may join the kernel of what it reads: element by element, or a view.

    Lookups and shifts read an operand at many places, so what feeds them is better stored.
    """
    return is_free(instruction) or instruction.op in ELEMENTWISE


def weight(instruction: Instruction) -> int:
    """What computing one element costs, in elementwise ops."""
    if is_free(instruction) or instruction.op == "constant":
        return 0
    return 1 + CHEAP if instruction.op in COSTLY or instruction.op in MOVEMENT else 1


def splat(instruction: Instruction) -> float | int | None:
    """The number that a constant holds in every element, or None."""
    if instruction.op != "constant":
        return None
    literal: Literal = instruction.attributes["value"]
    size = literal.type.dtype.itemsize
    if not literal.type.size or literal.data != literal.data[:size] * literal.type.size:
        return None
    if literal.type.dtype.bits == 8:  # f8 is only moved: its bits will do
        return literal.data[0] if literal.type.dtype.kind != "int" else literal.numpy().item(0)
    first = literal.numpy().ravel()[0]
    return float(first) if literal.type.dtype.is_float else int(first)


Register = tuple[Coordinates, Expr]
"""The coordinates at which a kernel holds a value, and the variable that holds it."""


class Builder:
    """Expressions for the elements of a graph's values inside one kernel."""

    def __init__(
        self,
        graph: Graph,
        stored: Callable[[int], bool],
        registers: Mapping[int, Register] | None = None,
    ) -> None:
        self.graph = graph
        self.stored = stored
        self.registers = dict(registers or {})
        self.computed: dict[int, Callable[[Coordinates], Expr | None]] = {}
        """Values whose elements a kernel computes in a way of its own, where that gives one."""
        self._known: dict[tuple[int, Coordinates], Expr] = {}

    def holding(self, registers: Mapping[int, Register]) -> Builder:
        """A builder that also finds values in variables."""
        return Builder(self.graph, self.stored, {**self.registers, **registers})

    def at(self, value: int, coordinates: Coordinates) -> Expr:
        """The element of ``value``; raises ``Unfusible``."""
        key = (value, coordinates)
        if key not in self._known:
            self._known[key] = self._element(value, coordinates)
        return self._known[key]

    def _element(self, value: int, coordinates: Coordinates) -> Expr:
        shape = self.graph.type(value).shape
        at = tuple(ZERO if n == 1 else c for n, c in zip(shape, coordinates, strict=True))
        held = self.registers.get(value)
        if held is not None:
            if at != held[0]:
                raise Unfusible(f"%{value} at {at} instead of {held[0]}")
            return held[1]
        found = self.computed[value](at) if value in self.computed else None
        if found is not None:
            return found
        made = self.graph.instruction(value)
        if made is None or self.stored(value):
            return Load(self.graph.type(value).dtype, value, ravel_index(at, shape))
        return self._made(made, at)

    def _made(self, made: Instruction, at: Coordinates) -> Expr:
        number = splat(made)
        if number is not None:
            return Const(made.types[0].dtype, number)
        if made.op in ELEMENTWISE:
            operands = [self.at(v, at) for v in made.operands]
            return ELEMENTWISE[made.op](made.types[0].dtype, *operands, **made.attributes)
        rule = unpacked_element if made.op == "composite" else MOVEMENT.get(made.op)
        if rule is None or not is_map(made):
            raise Unfusible(f"{made.name} is not an expression of its operands")
        types = tuple(self.graph.type(v) for v in made.operands)
        return rule(Operands(made, types, lambda i, c: self.at(made.operands[i], c)), at)
