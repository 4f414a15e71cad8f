"""Derived patterns: what composites look like where somebody wrote them as ops.

Each is derived from the lowerings of its functional. A skeleton of a lowering finds the operands
(``rewrite.skeleton``); the lowering is then emitted again on them and counts only if it is equal to
what the program holds (``rewrite.normal``). ``Patterns.softmax.matches(program)`` gives what was
found, with operands and attributes by name.
"""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Final

from ptir.errors import PtirError, unknown_name
from ptir.ir.attributes import Attributes
from ptir.ir.graph import Node, Ref, inline, reachable, source
from ptir.ir.program import Block, Program
from ptir.ops.implementations import FUNCTIONALS, PORTABLE, SPELLINGS, Lower
from ptir.rewrite.candidates import assignments
from ptir.rewrite.engine import rewrite
from ptir.rewrite.pattern_table import (
    ROWS,
    SENTINELS,
    Form,
    Operands,
    PatternRow,
    define_pattern,
)
from ptir.rewrite.rules import EXACT
from ptir.rewrite.skeleton import OutOfStepsError, Skeleton, bare
from ptir.rewrite.taking import Graph, Match, bit, taken
from ptir.rewrite.trial import Trial

__all__ = ["DerivedPattern", "Form", "PatternRow", "Patterns", "define_pattern"]
from ptir.types import TensorType, parse_type


class DerivedPattern:
    """A functional as it looks in programs that do not name it."""

    def __init__(self, row: PatternRow) -> None:
        self.row = row
        self.name = row.functional
        self.tries = 0
        """How often a root was compared with the skeletons."""

    def may_be_in(self, ops: Collection[str]) -> bool:
        """Whether a program of these ops (composites by their name) may hold it."""
        return all(any(op in ops for op in need.split("|")) for need in self.row.needs)

    @cached_property
    def forms(self) -> tuple[Form, ...]:
        """The skeletons, each once."""
        lowerings = {PORTABLE: FUNCTIONALS[self.name].implementations[PORTABLE].lower}
        lowerings |= SPELLINGS.get(self.name, {})
        found: dict[bytes, Form] = {}
        for spelling, lower in lowerings.items():
            for text in self.row.samples.get(spelling, self.row.samples.get("", ())):
                types = tuple(map(parse_type, text.split()))
                for block, given in self._lowered(spelling, lower, types):
                    found.setdefault(block.digest, _form(self.row, spelling, block, given))
        return tuple(sorted(found.values(), key=lambda form: not form.turned))

    def _lowered(
        self, spelling: str, lower: Lower, types: tuple[TensorType, ...]
    ) -> Iterator[tuple[Block, dict[str, Any]]]:
        bare_form = spelling in self.row.samples and spelling != PORTABLE
        choices = {} if bare_form else self.row.choices
        unknown = () if bare_form else self.row.unknown
        for values in itertools.product(*choices.values()):
            given = dict(zip(choices, values, strict=True))
            for name, sentinel in zip(unknown, SENTINELS, strict=False):
                given[name] = sentinel if given.get(name, 1) is not None else None
            try:
                block = lower(types, Attributes(given))
            except PtirError:  # choices that do not go with these types
                continue
            yield rewrite(block, EXACT, {}), given

    @cached_property
    def roots(self) -> frozenset[str]:
        """The ops that a root may be."""
        return frozenset().union(*(form.roots for form in self.forms))

    def match(self, graph: Graph, node: Node) -> Match | None:
        """The composite that a node is, or None."""
        root = Ref(node)
        if len(node.types) != 1 or not root.type.size:
            return None
        forms = [f for f in self.forms if node.op in f.roots]
        forms = [f for f in forms if graph.has_near(node, f.anchors, f.levels)]
        if not forms:
            return None
        self.tries += 1
        tried: set[object] = set()
        for form in forms:
            for end in graph.views_on(root) if form.turned else (root,):
                found = self._matched(graph, end, form, tried)
                if found is not None:
                    return found
        return None

    def _matched(self, graph: Graph, root: Ref, form: Form, tried: set[object]) -> Match | None:
        try:
            for bound in form.skeleton.match(root, graph):
                values = [bound.get(leaf.node.serial) for leaf in form.skeleton.leaves]
                named = dict(zip(form.names, values, strict=True))
                if any(value is None for value in values):
                    continue
                places = tuple(bare(v).key for v in values if v is not None)
                key = (form.spelling, Attributes(form.attributes).text, places, root.key)
                if key in tried:
                    continue
                tried.add(key)
                found = self._settled(graph, root, form, {k: v for k, v in named.items() if v})
                if found is not None:
                    return found
        except OutOfStepsError:
            return None
        return None

    def _settled(self, graph: Graph, root: Ref, form: Form, bound: Operands) -> Match | None:
        for operands in assignments(self.row.slots, bound, root):
            for given, attributes in self.row.solve(form, operands, root):
                for permutation in ((), *self.row.permutations):
                    trial = Trial(self.row, graph, root, form.inner, form.spelling, permutation)
                    found = trial.settle(given, attributes)
                    if found is not None:
                        return found
        return None

    def sample(self) -> tuple[Attributes, tuple[TensorType, ...], tuple[TensorType, ...]]:
        """A call of the composite as backends are asked: attributes, operand and result types."""
        lower = FUNCTIONALS[self.name].implementations[PORTABLE].lower
        texts = self.row.samples.get(PORTABLE, self.row.samples.get("", ()))
        types = tuple(map(parse_type, texts[0].split()))
        block, given = next(self._lowered(PORTABLE, lower, types))
        return Attributes({**given, "name": self.name}), types, block.output_types

    def lowering(self, operands: Sequence[Ref], attributes: Mapping[str, Any]) -> Block:
        """The portable lowering of the composite."""
        lower = FUNCTIONALS[self.name].implementations[PORTABLE].lower
        return lower([operand.type for operand in operands], Attributes(attributes))

    def matches(self, program: Program | Block) -> list[Match]:
        """Every value of a program that is this, whether as a composite or as ops, in order."""
        block = program.main if isinstance(program, Program) else program
        graph = taken(block, (*_needed(self),))
        names = tuple(self.row.slots)
        found: list[Match] = []
        for node in graph.nodes:
            match = graph.taken.get(node.serial)
            if match is None and node.op == "composite" and node.attributes["name"] == self.name:
                given = {k: v for k, v in node.attributes.items() if k not in _OWN}
                operands = dict(zip(names, node.operands, strict=False))
                match = Match(self.name, Ref(node), operands, given)
            if match is not None and match.name == self.name:
                found.append(match)
        return found


_OWN: Final = ("name", "implementation")


def _needed(pattern: DerivedPattern) -> Iterator[DerivedPattern]:
    """A pattern behind those that are parts of it."""
    for name in sorted(frozenset().union(*(form.inner for form in pattern.forms))):
        if name != pattern.name and name in ROWS:
            yield from _needed(Patterns[name])
    yield pattern


def _form(row: PatternRow, spelling: str, block: Block, given: dict[str, Any]) -> Form:
    leaves = [source(t) for t in block.inputs]
    (root,) = inline(block, leaves)
    nodes = [n for n in reachable([root]) if not n.is_source]
    ops = {n.op for n in nodes}
    inner = frozenset(str(n.attributes["name"]) for n in nodes if n.op == "composite")
    names = tuple(row.slots)[: len(leaves)]
    if len(leaves) > len(names):
        names = (*names, *(f"hole {i}" for i in range(len(leaves) - len(names))))
    anchors = 0
    for name in ops - {"composite"} - _OPTIONAL:
        anchors |= bit(name)
    if "mask" in _HOLES.get(spelling, ()):
        names = ("q", "k", "v", "mask")
    skeleton = Skeleton(root, tuple(leaves))
    levels = _depth(nodes) + (16 if inner else 6)
    roots = _root_ops(skeleton)
    turned = any(n.op == "transpose" for n in _views_above(root))
    return Form(spelling, names, given, skeleton, anchors, levels, inner, roots, turned)


def _views_above(root: Ref) -> Iterator[Node]:
    """The views that a value ends in."""
    while root.key != bare(root).key:
        yield root.node
        root = root.node.operands[0]


_OPTIONAL: Final = frozenset({"compare", "concat"})
_HOLES: Final = {name: ("mask",) for name in ("selected", "filled", "added", "bent")}


def _root_ops(skeleton: Skeleton) -> frozenset[str]:
    """The ops that a value of this skeleton may end in."""
    root = bare(skeleton.root)
    factors = skeleton.factors(root)
    if len(factors) != 1 or bare(factors[0][0]).key != root.key:
        return frozenset({"mul", "div", "neg"})
    if root.node.op in ("add", "sub"):
        return frozenset({"add", "sub", "mul", "div"})
    return frozenset({root.node.op})


def _depth(nodes: Sequence[Node]) -> int:
    depth: dict[int, int] = {}
    for node in nodes:
        below = (depth.get(r.node.serial, 0) for r in node.operands)
        depth[node.serial] = 1 + max(below, default=0)
    return max(depth.values(), default=1)


class _Patterns(Mapping[str, DerivedPattern]):
    """Every pattern, by the name of its functional: ``Patterns.softmax``."""

    def __init__(self) -> None:
        self._made: dict[str, DerivedPattern] = {}

    def __getitem__(self, name: str) -> DerivedPattern:
        importlib.import_module("ptir.functional")  # the room below, which fills the tables
        importlib.import_module("ptir.rewrite.pattern_rows")
        if name not in ROWS:
            raise KeyError(name)
        if name not in self._made:
            self._made[name] = DerivedPattern(ROWS[name])
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        importlib.import_module("ptir.functional")
        importlib.import_module("ptir.rewrite.pattern_rows")
        return iter(ROWS)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __getattr__(self, name: str) -> DerivedPattern:
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            return self[name]
        except KeyError:
            raise AttributeError(unknown_name("pattern", name, list(self))) from None


Patterns: Final = _Patterns()
"""The patterns by name, as a mapping and as attributes."""
