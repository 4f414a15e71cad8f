"""What a rule is: a row of the table, either two patterns or a function of one node.

Every rule remembers the line it was written at and carries samples: programs on which it fires,
which the tests run on both sides with awkward values.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from ptir.ir.attributes import Attributes
from ptir.ir.graph import Node, Ref, emit, freeze, source
from ptir.ir.program import Block
from ptir.ops.record import op
from ptir.rewrite.pattern import (
    Apply,
    Binding,
    Pattern,
    build,
    match_node,
    operand_holes,
    parse_pattern,
)
from ptir.types import TensorType, parse_type

Condition = Callable[[Binding], bool]
Compute = Mapping[str, Callable[[Binding], Any]]
Sample = Mapping[str, Any]


class OpBuilder(Protocol):
    """Where rules make their results; the engine makes and rewrites them in one go."""

    def make(self, name: str, operands: Sequence[Ref], attributes: Mapping[str, Any]) -> Ref:
        """The only result of an op applied by name."""

    def inline(self, block: Block, operands: Sequence[Ref]) -> Sequence[Ref]:
        """The outputs of ``block`` applied to ``operands``."""


class PlainBuilder:
    """A builder that makes values and rewrites nothing; they stand where the visited node does."""

    def make(self, name: str, operands: Sequence[Ref], attributes: Mapping[str, Any]) -> Ref:
        """The only result of an op applied by name; raises ``TypeRuleError``."""
        record = op(name)
        frozen = Attributes(record.bind(attributes))
        types = record.infer([value.type for value in operands], frozen)
        return emit(name, operands, frozen, types)[0]


class RewriteRule:
    """What a table of rules holds: a ``Rule`` or a ``NodeRule``."""


@dataclass(frozen=True)
class Rule(RewriteRule):
    """Values that fit ``left`` under ``when`` become ``right``; ``compute`` gives what that needs.

    ``exact`` means bit for bit, whatever quiet NaN, infinity, zero or subnormal is in the tensor.
    """

    name: str
    left: Apply
    right: Pattern
    text: str
    line: str
    exact: bool = True
    when: Condition | None = field(default=None, compare=False)
    compute: Compute = field(default_factory=dict[str, Callable[[Binding], Any]], compare=False)
    samples: tuple[Sample, ...] = field(default=(), compare=False)

    @property
    def op(self) -> str:
        """The op that the rule looks at."""
        return self.left.op

    def rewrite(self, node: Node, builder: OpBuilder) -> Sequence[Ref] | None:
        """What replaces the node's result, or None where the rule does not apply."""
        for bound in match_node(self.left, node, {}):
            if self.when is None or self.when(bound):
                computed = {name: body(bound) for name, body in self.compute.items()}
                result = build(self.right, {**bound, **computed}, node.types[0], builder.make)
                return (result,)
        return None

    def programs(self) -> Iterator[Block]:
        """The left side with its holes filled, once for each sample."""
        for given in self.samples:
            holes = {n: source(parse_type(given[n])) for n in operand_holes(self.left)}
            like = parse_type(given["like"]) if "like" in given else None
            result = build(self.left, {**given, **holes}, like, PlainBuilder().make)
            yield freeze([result], list(holes.values()))


@dataclass(frozen=True)
class NodeRule(RewriteRule):
    """A rule that a pattern cannot say: a function of a node that gives its results or None.

    An empty ``op`` looks at every op.
    """

    name: str
    op: str
    body: Callable[[Node, OpBuilder], Sequence[Ref] | None] = field(compare=False)
    text: str
    line: str
    examples: Callable[[], Sequence[Block]] = field(compare=False)
    exact: bool = True

    def rewrite(self, node: Node, builder: OpBuilder) -> Sequence[Ref] | None:
        """What replaces the node's results, or None where the rule does not apply."""
        return self.body(node, builder)

    def programs(self) -> Iterator[Block]:
        """Programs on which the rule fires."""
        yield from self.examples()


AnyRule = Rule | NodeRule


def row(
    name: str,
    left: str,
    right: str,
    *samples: Sample,
    when: Condition | None = None,
    compute: Compute | None = None,
    exact: bool = True,
) -> Rule:
    """A row of the table: patterns as text, then samples (a type for each value hole)."""
    pattern = parse_pattern(left)
    if not isinstance(pattern, Apply):
        raise ValueError(f"rule {name!r}: the left side {left!r} must be an op")
    text = f"{left} -> {right}"
    target = parse_pattern(right)
    return Rule(name, pattern, target, text, _line(), exact, when, compute or {}, samples)


def node_rule(
    name: str,
    op_name: str,
    body: Callable[[Node, OpBuilder], Sequence[Ref] | None],
    examples: Callable[[], Sequence[Block]],
) -> NodeRule:
    """A row whose two sides are a function."""
    return NodeRule(name, op_name, body, str(body.__doc__), _line(), examples)


def _line() -> str:
    frame = sys._getframe(2)
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


def type_of(bound: Binding, name: str) -> TensorType:
    """The type of the value that fills a hole."""
    found: TensorType = bound[name].type
    return found
