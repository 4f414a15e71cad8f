"""Applies rules to blocks, operands first, until none fires.

What a rule makes is rewritten as it is made, so one walk reaches a fixed point. Regions of control
flow are rewritten too; lowerings of composites stay as they are until they are inlined.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from ptir.errors import PtirError, VerifyError
from ptir.ir.graph import Node, Ref, inline, rebuild, repeat
from ptir.ir.program import Block, Instruction
from ptir.rewrite.firings import note
from ptir.rewrite.rule import AnyRule, PlainBuilder

LIMIT: Final = 64
"""Most rewrites of one value one after another, and most walks over one block."""


class RuleFailedError(VerifyError):
    """A rule that fails, changes a type or never ends; ``rule`` is which."""

    def __init__(self, rule: AnyRule, message: str) -> None:
        super().__init__(message)
        self.rule = rule


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
        self._last: AnyRule | None = None
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
        still = f"rules still fire after {LIMIT} walks over a block: {self._counts}"
        if self._last is None:
            raise VerifyError(still)
        raise RuleFailedError(self._last, f"{self._last.line}: {still}")

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
                note(self._counts, rule.name, node)
                self._last = rule
                self._hits += 1
                return results
        return tuple(Ref(node, index) for index in range(len(node.types)))

    def _rules_for(self, name: str) -> tuple[AnyRule, ...]:
        if name not in self._by_op:
            self._by_op[name] = tuple(r for r in self._rules if r.op in ("", name))
        return self._by_op[name]

    def _apply(self, rule: AnyRule, node: Node) -> Sequence[Ref] | None:
        if self._depth >= LIMIT:
            said = f"{rule.line}: rule {rule.name!r} feeds itself: {rule.text}"
            raise RuleFailedError(rule, said)
        self._depth += 1
        try:
            results = rule.rewrite(node, self)
        except PtirError:
            raise
        except Exception as error:
            said = f"{rule.line}: rule {rule.name!r} failed on {node.op}: {cause(error)}"
            raise RuleFailedError(rule, said) from error
        finally:
            self._depth -= 1
        if results is not None and tuple(r.type for r in results) != node.types:
            found = ", ".join(str(r.type) for r in results)
            wanted = ", ".join(map(str, node.types))
            said = f"{rule.line}: rule {rule.name!r} gives {found}, not {wanted}"
            raise RuleFailedError(rule, said)
        return results


def cause(error: BaseException) -> str:
    """What was raised, on one line."""
    return f"{type(error).__name__}: {error}".partition("\n")[0].removesuffix(": ")


def rewrite(block: Block, rules: Sequence[AnyRule], counts: dict[str, int]) -> Block:
    """``block`` at a fixed point of ``rules``; counts every rewrite in ``counts`` by rule name."""
    return Rewriter(rules, counts).block(block)
