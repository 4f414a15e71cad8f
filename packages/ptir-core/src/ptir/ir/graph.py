"""The value graph: how programs are built, before they are frozen into blocks.

Ops called on ``Ref`` operands make ``Node`` objects; ``freeze`` turns what some refs need into a
``Block``, ``inline`` turns a block back into nodes. Lazy tensors, lowerings, decompositions and
rewrite rules are all written this one way.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ptir.errors import CaptureError, PtirError
from ptir.ir.attributes import NO_ATTRIBUTES, Attributes
from ptir.ir.location import UNKNOWN, Location, around, located, note_place
from ptir.ir.program import Block, Instruction
from ptir.types import TensorType

_serial = itertools.count()

SOURCE = "source"


class Node:
    """An op application under construction; a *source* node stands for a value from outside.

    ``payload`` belongs to whoever made a source: a buffer, a parameter, a symbolic input.
    """

    __slots__ = (
        "__weakref__",
        "attributes",
        "location",
        "op",
        "operands",
        "payload",
        "regions",
        "serial",
        "types",
        "users",
    )

    def __init__(
        self,
        op: str,
        operands: tuple[Ref, ...],
        attributes: Attributes,
        types: tuple[TensorType, ...],
        regions: tuple[Block, ...] = (),
        location: Location = UNKNOWN,
    ) -> None:
        self.op = op
        self.operands = operands
        self.attributes = attributes
        self.types = types
        self.regions = regions
        self.location = location
        self.payload: Any = None
        self.serial = next(_serial)
        self.users: weakref.WeakSet[Node] | None = None

    @property
    def is_source(self) -> bool:
        """Whether the node is a value from outside the graph."""
        return self.op == SOURCE


@dataclass(frozen=True, slots=True, eq=False)
class Ref:
    """One result of a node."""

    node: Node
    index: int = 0

    @property
    def type(self) -> TensorType:
        """The type of the value."""
        return self.node.types[self.index]

    @property
    def key(self) -> tuple[int, int]:
        """An identity for dictionaries; valid while the node is alive."""
        return (self.node.serial, self.index)


def source(type: TensorType, payload: Any = None) -> Ref:
    """A value from outside the graph."""
    node = Node(SOURCE, (), NO_ATTRIBUTES, (type,))
    node.payload = payload
    return Ref(node)


def emit(
    op: str,
    operands: Sequence[Ref],
    attributes: Attributes,
    types: tuple[TensorType, ...],
    regions: tuple[Block, ...] = (),
    location: Location | None = None,
) -> tuple[Ref, ...]:
    """Record one op application (already typed) and return its results.

    Without a location it stands at the place that is worked at: that of the instruction which a
    pass visits.
    """
    place = around() if location is None else location
    node = Node(op, tuple(operands), attributes, types, regions, place)
    return tuple(Ref(node, index) for index in range(len(types)))


def reachable(outputs: Sequence[Ref], known: Container[int] = ()) -> list[Node]:
    """Every node that ``outputs`` need, sources included, in the order they were made.

    Nodes whose serial is among ``known`` are not looked behind.
    """
    seen: dict[int, Node] = {}
    pending = [ref.node for ref in outputs]
    while pending:
        node = pending.pop()
        if node.serial not in seen:
            seen[node.serial] = node
            if node.serial not in known:
                pending.extend(ref.node for ref in node.operands)
    return [seen[serial] for serial in sorted(seen)]


def freeze(outputs: Sequence[Ref], inputs: Sequence[Ref]) -> Block:
    """The block that computes ``outputs`` from ``inputs``, whatever those are computed from.

    Raises ``CaptureError`` when a source that is not among ``inputs`` is needed.
    """
    numbers = {ref.key: number for number, ref in enumerate(inputs)}
    bound = {ref.node.serial for ref in inputs}
    instructions: list[Instruction] = []
    count = len(inputs)
    for node in reachable(outputs, bound):
        if node.serial in bound:
            continue
        if node.is_source:
            raise CaptureError(f"a value {node.types[0]} from outside is not among the inputs")
        operands = tuple(numbers[ref.key] for ref in node.operands)
        instructions.append(
            Instruction(node.op, operands, node.attributes, node.types, node.regions, node.location)
        )
        for index in range(len(node.types)):
            numbers[(node.serial, index)] = count
            count += 1
    return Block(
        tuple(ref.type for ref in inputs),
        tuple(instructions),
        tuple(numbers[ref.key] for ref in outputs),
    )


Visit = Callable[[Instruction, tuple[Ref, ...]], Sequence[Ref] | None]


def inline(
    block: Block, operands: Sequence[Ref], visit: Visit | None = None, at: Location | None = None
) -> list[Ref]:
    """The outputs of ``block`` applied to ``operands``, as graph values.

    ``visit`` may return other values for an instruction (given its operands) or None to keep it;
    what it makes stands where the instruction does. With ``at`` all of them stand there.
    """
    values = list(operands)
    for instruction in block.instructions:
        if at is not None:
            instruction = relocated(instruction, at)
        arguments = tuple(values[v] for v in instruction.operands)
        results = _visited(visit, instruction, arguments) if visit else None
        values.extend(repeat(instruction, arguments) if results is None else results)
    return [values[v] for v in block.outputs]


def _visited(
    visit: Visit, instruction: Instruction, operands: tuple[Ref, ...]
) -> Sequence[Ref] | None:
    known = instruction.location != UNKNOWN
    with located(instruction.location if known else around()):
        try:
            return visit(instruction, operands)
        except PtirError as error:
            note_place(error, instruction.location)
            raise


def relocated(instruction: Instruction, location: Location) -> Instruction:
    """``instruction`` at another place, with its regions; lowerings have none of their own."""
    regions = instruction.regions
    if instruction.op != "composite":
        regions = tuple(
            replace(r, instructions=tuple(relocated(i, location) for i in r.instructions))
            for r in regions
        )
    return replace(instruction, regions=regions, location=location)


def expand(
    composite: Instruction, operands: Sequence[Ref], visit: Visit | None = None
) -> list[Ref]:
    """The results of a composite as its lowering computes them, where it is called."""
    implementation = str(composite.attributes.get("implementation", ""))
    where = composite.location.inside(composite.name, implementation)
    return inline(composite.regions[0], operands, visit, where)


def repeat(instruction: Instruction, operands: Sequence[Ref]) -> tuple[Ref, ...]:
    """The results of the same instruction on other operands of the same types."""
    return emit(
        instruction.op,
        operands,
        instruction.attributes,
        instruction.types,
        instruction.regions,
        instruction.location,
    )


def rebuild(block: Block, visit: Visit) -> Block:
    """``block`` with every instruction shown to ``visit``; what nothing needs disappears."""
    inputs = [source(t) for t in block.inputs]
    return freeze(inline(block, inputs, visit), inputs)
