"""Applies rules to blocks, operands first, until none fires.

What a rule makes is rewritten as it is made, so one walk reaches a fixed point. Regions of control
flow are rewritten too; lowerings of composites stay as they are until they are inlined.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from ptir.errors import VerifyError
from ptir.ir.graph import Node, Ref, inline, rebuild, repeat
from ptir.ir.program import Block, Instruction
from ptir.rewrite.rule import AnyRule, PlainBuilder

LIMIT: Final = 64
"""Most rewrites of one value one after another, and most walks over one block."""


def descend(instruction: Instruction, transform: Callable[[Block], Block]) -> Instruction:
    """``instruction`` with its regions transformed; a composite's lowering stays as it is."""
    if not instruction.regions or instruction.op == "composite":
        return instruction
    return replace(instruction, regions=tuple(map(transform, instruction.regions)))


class Rewriter(PlainBuilder):
    """Applies ``rules`` in order and counts in ``counts`` how often each fired."""

    def __init__(self, rules: Sequence[AnyRule], counts: dict[str, int]) -> None:
        self._rules = rules
        self._by_op: dict[str, tuple[AnyRule, ...]] = {}
        self._counts = counts
        self._hits = 0
        self._depth = 0
        self._done: dict[int, tuple[Block, Block]] = {}
        """What became of a block, by ``id``: equal ones may come from different places."""

    def block(self, block: Block) -> Block:
        """``block`` at a fixed point of the rules; raises ``VerifyError`` if there is none."""
        if id(block) in self._done:
            return self._done[id(block)][1]
        result = block
        for _ in range(LIMIT):
            hits = self._hits
            result = rebuild(result, self._visit)
            if self._hits == hits:
                self._done[id(block)] = self._done[id(result)] = (block, result)
                return result
        raise VerifyError(f"rules still fire after {LIMIT} walks over a block: {self._counts}")

    def make(self, name: str, operands: Sequence[Ref], attributes: Mapping[str, Any]) -> Ref:
        """The result of an op applied by name, rewritten."""
        return self._simplify(super().make(name, operands, attributes).node)[0]

    def inline(self, block: Block, operands: Sequence[Ref]) -> Sequence[Ref]:
        """The outputs of ``block`` applied to ``operands``, rewritten."""
        return inline(block, operands, self._visit)

    def _visit(self, instruction: Instruction, operands: tuple[Ref, ...]) -> Sequence[Ref]:
        inner = descend(instruction, self.block)
        results = repeat(inner, operands)
        return self._simplify(results[0].node) if results else results

    def _simplify(self, node: Node) -> Sequence[Ref]:
        for rule in self._rules_for(node.op):
            results = self._apply(rule, node)
            if results is not None:
                self._counts[rule.name] = self._counts.get(rule.name, 0) + 1
                self._hits += 1
                return results
        return tuple(Ref(node, index) for index in range(len(node.types)))

    def _rules_for(self, name: str) -> tuple[AnyRule, ...]:
        if name not in self._by_op:
            self._by_op[name] = tuple(r for r in self._rules if r.op in ("", name))
        return self._by_op[name]

    def _apply(self, rule: AnyRule, node: Node) -> Sequence[Ref] | None:
        if self._depth >= LIMIT:
            raise VerifyError(f"{rule.line}: rule {rule.name!r} feeds itself: {rule.text}")
        self._depth += 1
        try:
            results = rule.rewrite(node, self)
        finally:
            self._depth -= 1
        if results is not None and tuple(r.type for r in results) != node.types:
            found = ", ".join(str(r.type) for r in results)
            wanted = ", ".join(map(str, node.types))
            raise VerifyError(f"{rule.line}: rule {rule.name!r} gives {found}, not {wanted}")
        return results


def rewrite(block: Block, rules: Sequence[AnyRule], counts: dict[str, int]) -> Block:
    """``block`` at a fixed point of ``rules``; counts every rewrite in ``counts`` by rule name."""
    return Rewriter(rules, counts).block(block)
