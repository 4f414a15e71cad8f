"""Raising: a block with composites in place of the ops that spell them.

Every node is looked at once, operands first, so that small composites are there when those that
hold them are looked for. Only then are they put in place, from the outputs on: a composite that is
a part of a larger one disappears in it.
"""

from __future__ import annotations

from collections.abc import Sequence

from ptir.ir.graph import Node, Ref, freeze
from ptir.ir.location import located
from ptir.ir.program import Block
from ptir.rewrite.firings import note
from ptir.rewrite.patterns import Patterns
from ptir.rewrite.taking import Graph, Match, apply, taken


def raised(block: Block, counts: dict[str, int]) -> Block:
    """``block`` with composites for what patterns find in it, counted as ``raise NAME``."""
    ops = {instruction.name for instruction in block.instructions}
    patterns = tuple(p for p in Patterns.values() if p.may_be_in(ops))
    graph = taken(block, patterns) if patterns else None
    if graph is None or not graph.taken:
        return block
    return freeze(_Replaced(graph, counts).of(graph.outputs), graph.inputs)


class _Replaced:
    """Copies what outputs need, with composites for what was taken as one."""

    def __init__(self, graph: Graph, counts: dict[str, int]) -> None:
        self._graph, self._counts = graph, counts
        self._made: dict[int, tuple[Ref, ...]] = {ref.node.serial: (ref,) for ref in graph.inputs}

    def of(self, outputs: Sequence[Ref]) -> list[Ref]:
        """The outputs, computed anew; what is kept stays in its order."""
        needed = self._needed(outputs)
        for node in sorted(needed.values(), key=lambda node: node.serial):
            self._make(node)
        return [self._ref(ref) for ref in outputs]

    def _below(self, node: Node) -> Sequence[Ref]:
        match = self._graph.taken.get(node.serial)
        return tuple(match.operands.values()) if match else node.operands

    def _needed(self, outputs: Sequence[Ref]) -> dict[int, Node]:
        needed: dict[int, Node] = {}
        pending = [ref.node for ref in outputs]
        while pending:
            node = pending.pop()
            if node.serial not in needed:
                needed[node.serial] = node
                pending += [ref.node for ref in self._below(node)]
        return needed

    def _make(self, node: Node) -> None:
        """Copies a node, after the views that matching has made of its operands."""
        if node.serial in self._made:
            return
        below = self._below(node)
        for ref in below:
            self._make(ref.node)
        match = self._graph.taken.get(node.serial)
        self._made[node.serial] = self._node(node, match, [self._ref(r) for r in below])

    def _ref(self, ref: Ref) -> Ref:
        return self._made[ref.node.serial][ref.index]

    def _node(self, node: Node, match: Match | None, operands: list[Ref]) -> tuple[Ref, ...]:
        if match is None:
            if node.op == "reshape":
                source = _behind_reshapes(operands[0])
                operands = [source]
                if source.type == node.types[0]:
                    return (source,)
            made = Node(
                node.op, tuple(operands), node.attributes, node.types, node.regions, node.location
            )
            return tuple(Ref(made, index) for index in range(len(node.types)))
        note(self._counts, f"raise {match.name}", node)
        with located(node.location):
            lowering = Patterns[match.name].lowering(operands, match.attributes)
            return (apply(match, operands, lowering),)


def _behind_reshapes(value: Ref) -> Ref:
    """What a composite's result in another shape is a view of."""
    while value.node.op == "reshape":
        value = value.node.operands[0]
    return value
