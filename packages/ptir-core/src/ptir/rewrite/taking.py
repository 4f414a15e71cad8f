"""The graph of a block while composites are looked for in it: readers, what is near, what is taken.

Nothing is rewritten while matching goes on: a node that is taken as a composite stays what it is,
and whoever expects a composite there sees one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from typing import Any, Final, Protocol

from ptir.ir.attributes import Attributes
from ptir.ir.graph import Node, Ref, inline, reachable, source
from ptir.ir.program import Block
from ptir.ops.record import op
from ptir.rewrite.known import Known
from ptir.rewrite.skeleton import VIEWS, Taken

ANCHORS: Final = (
    *("exp", "erf", "tanh", "cos", "reduce", "dot_general", "take", "compare", "concat"),
    *("rsqrt", "composite"),
)
"""What makes a pattern worth trying. ``rsqrt`` stands for every root and power."""
_POWERS: Final = frozenset({"sqrt", "rsqrt", "pow", "reciprocal"})
LEVELS: Final = 48
_WIDTH: Final = len(ANCHORS)
_ALL: Final = (1 << (LEVELS * _WIDTH)) - 1
_BITS: Final = {name: 1 << i for i, name in enumerate(ANCHORS)} | dict.fromkeys(
    _POWERS, 1 << ANCHORS.index("rsqrt")
)


def bit(name: str) -> int:
    """The bit of an anchor, 0 for other ops."""
    return _BITS.get(name, 0)


@dataclass(frozen=True)
class Match:
    """A composite in a program: its operands and attributes by name, also as attributes of this.

    ``root`` is the value that it is, with its axes in another order where there is a
    ``permutation``.
    """

    name: str
    root: Ref
    operands: Mapping[str, Ref]
    attributes: Mapping[str, Any]
    permutation: tuple[int, ...] = ()

    def __getattr__(self, name: str) -> Any:
        for known in (self.operands, self.attributes):
            if name in known:
                return known[name]
        raise AttributeError(f"{self.name} has no {name!r}: {[*self.operands, *self.attributes]}")


@dataclass
class Graph(Taken):
    """A block as nodes, with the readers of each and the anchors near it."""

    inputs: list[Ref]
    outputs: list[Ref]
    nodes: list[Node]
    readers: dict[int, set[int]]
    by_serial: dict[int, Node]
    near: dict[int, int] = field(default_factory=dict[int, int])
    taken: dict[int, Match] = field(default_factory=dict[int, Match])
    """Matches by the serial of their root."""
    known: Known = field(default_factory=Known)

    @staticmethod
    def of(block: Block) -> Graph:
        """The graph of a block."""
        inputs = [source(t) for t in block.inputs]
        outputs = inline(block, inputs)
        nodes = reachable(outputs)
        readers: dict[int, set[int]] = {node.serial: set() for node in nodes}
        for node in nodes:
            for operand in node.operands:
                readers[operand.node.serial].add(node.serial)
        for ref in outputs:
            readers[ref.node.serial].add(-1)
        return Graph(inputs, outputs, nodes, readers, {node.serial: node for node in nodes})

    def views_on(self, value: Ref) -> Iterator[Ref]:
        """The views of a value that are the only reader of what they see, the last one first."""
        found: list[Ref] = []
        while len(found) < 4:
            readers = self.readers.get(value.node.serial, set())
            if len(readers) != 1 or -1 in readers:
                break
            node = self.by_serial[next(iter(readers))]
            if node.op not in VIEWS:
                break
            value = Ref(node)
            found.append(value)
        yield from reversed(found)

    def look(self, node: Node) -> None:
        """Note which anchors are near a node, by their distance; its operands' must be noted."""
        below = reduce(or_, (self.near.get(r.node.serial, 0) for r in node.operands), 0)
        self.near[node.serial] = bit(node.op) | (below << _WIDTH & _ALL)

    def has_near(self, node: Node, anchors: int, levels: int) -> bool:
        """Whether every anchor is at most so many ops below a node."""
        found, near = 0, self.near[node.serial]
        mask = (1 << _WIDTH) - 1
        for _ in range(min(levels, LEVELS)):
            found |= near & mask
            near >>= _WIDTH
            if found & anchors == anchors:
                return True
        return False

    def name(self, node: Node) -> str | None:
        """The composite that a node is, or is taken as."""
        found = self.taken.get(node.serial)
        return found.name if found else super().name(node)

    def operands(self, node: Node) -> Sequence[Ref]:
        """The operands of that composite."""
        found = self.taken.get(node.serial)
        return tuple(found.operands.values()) if found else node.operands


def called(
    graph: Graph, node: Node, inner: frozenset[str]
) -> tuple[str, str, Sequence[Ref]] | None:
    """The composite that a node is, where it is one of ``inner`` or nothing else."""
    found = graph.taken.get(node.serial)
    if found is not None and found.name in inner:
        operands = tuple(found.operands.values())
        return found.name, _told(found.attributes, operands), operands
    if node.op != "composite":
        return None
    attributes = {k: v for k, v in node.attributes.items() if k not in ("name", "implementation")}
    return str(node.attributes["name"]), _told(attributes, node.operands), node.operands


def _told(attributes: Mapping[str, Any], operands: Sequence[Ref]) -> str:
    """Attributes as text, an axis of the one operand by its size and the elements below it.

    So a call says the same whatever axes of size 1 there are, or whichever others are joined.
    """
    axis = attributes.get("axis")
    if len(operands) != 1 or not isinstance(axis, int):
        return Attributes(attributes).text
    shape = operands[0].type.shape
    return Attributes({**attributes, "axis": (shape[axis], math.prod(shape[axis + 1 :]))}).text


def apply(match: Match, operands: Sequence[Ref], lowering: Block) -> Ref:
    """The composite that a match is, as a value of the root's type."""
    results = op("composite").multi(
        *operands, regions=(lowering,), name=match.name, **match.attributes
    )
    made = results[0]
    made.node.location = match.root.node.location.inside(match.name)
    if match.permutation:
        made = op("transpose")(made, permutation=match.permutation)
    if made.type != match.root.type:
        made = op("reshape")(made, shape=match.root.type.shape)
    return made


class Finder(Protocol):
    """What looks for one composite."""

    @property
    def roots(self) -> frozenset[str]:
        """The ops that a root may be."""

    def match(self, graph: Graph, node: Node) -> Match | None:
        """The composite that a node is, or None."""


def taken(block: Block, patterns: Sequence[Finder]) -> Graph:
    """The graph of a block with the composites that its nodes are taken as."""
    graph = Graph.of(block)
    by_op: dict[str, list[Finder]] = {}
    for node in graph.nodes:
        graph.look(node)
        found = by_op.get(node.op)
        if found is None:
            found = by_op[node.op] = [p for p in patterns if node.op in p.roots]
        for pattern in found:
            match = pattern.match(graph, node)
            if match is not None:
                graph.taken[match.root.node.serial] = match
                break
    return graph
