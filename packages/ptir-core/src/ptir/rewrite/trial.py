"""A value compared with the composite that it may be: emitted again, normal form by normal form."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ptir.errors import PtirError
from ptir.ir.attributes import Attributes
from ptir.ir.graph import Node, Ref, inline
from ptir.ops.implementations import FUNCTIONALS, PORTABLE, SPELLINGS, Lower
from ptir.ops.record import op
from ptir.ops.verify import WRONG_KIND
from ptir.rewrite.constants import uniform
from ptir.rewrite.normal import NormalForms
from ptir.rewrite.normal_ops import RULES
from ptir.rewrite.pattern_table import Operands, PatternRow
from ptir.rewrite.polynomial import TooLargeError
from ptir.rewrite.skeleton import bare
from ptir.rewrite.taking import Graph, Match, called

TRIES: Final = 3
"""Most ratios that a number is looked for in."""


@dataclass
class Trial:
    """One root, compared with the composite that it may be."""

    row: PatternRow
    graph: Graph
    root: Ref
    inner: frozenset[str]
    spelling: str
    permutation: tuple[int, ...] = ()
    """The order in which the root has the result's axes, where that is another."""

    def settle(self, operands: Operands, attributes: Mapping[str, Any]) -> Match | None:
        """The match, if the root is this composite on these operands."""
        unknown = [n for n in self.row.unknown if attributes.get(n) is not None]
        for lower in self._lowerings():
            try:
                if not unknown:
                    fits = self._equal(lower, operands, attributes)
                    found = attributes if fits else None
                else:
                    found = self._solved(lower, operands, attributes, unknown)
                if found is not None and self._closed(operands):
                    named = self.row.functional, self.root
                    return Match(*named, operands, dict(found), self.permutation)
            except (TooLargeError, OverflowError, ZeroDivisionError):
                continue
        return None

    def _lowerings(self) -> Iterator[Lower]:
        """The functional's own, then the spelling where it is more than other algebra."""
        yield FUNCTIONALS[self.row.functional].implementations[PORTABLE].lower
        if self.spelling != PORTABLE and self.spelling not in self.row.samples:
            yield SPELLINGS[self.row.functional][self.spelling]

    def _solved(
        self,
        lower: Lower,
        operands: Operands,
        attributes: Mapping[str, Any],
        unknown: Sequence[str],
    ) -> Mapping[str, Any] | None:
        """The attributes with the numbers found that make both equal.

        The last number comes first: with it right, fewer numbers differ.
        """
        ratios = self._ratios(lower, operands, attributes)
        if ratios is None:
            return None
        if not unknown:
            return attributes if self._equal(lower, operands, attributes) else None
        *others, name = unknown
        nice = self.row.nice(operands, name)
        for ratio in ratios[:TRIES]:
            for value in (attributes[name] * ratio, attributes[name] / ratio):
                given = {**attributes, name: _rounded(value, nice)}
                left = self._ratios(lower, operands, given)
                if left is not None and (len(left) < len(ratios) or not others):
                    found = self._solved(lower, operands, given, others)
                    if found is not None:
                        return found
        return None

    def _ratios(
        self, lower: Lower, operands: Operands, attributes: Mapping[str, Any]
    ) -> list[float] | None:
        emitted = self._emitted(lower, operands, attributes)
        if emitted is None:
            return None
        forms = self._forms(operands)
        wanted = forms.of(self.root)
        forms.ratios = []
        if not forms.same(forms.of(emitted), wanted):
            return None
        distinct: dict[str, float] = {}
        for ratio in forms.ratios:
            if ratio > 0 and ratio != float("inf"):
                distinct.setdefault(f"{ratio:.5g}", ratio)
        return list(distinct.values())

    def _equal(self, lower: Lower, operands: Operands, attributes: Mapping[str, Any]) -> bool:
        emitted = self._emitted(lower, operands, attributes)
        if emitted is None:
            return False
        forms = self._forms(operands)
        return forms.same(forms.of(emitted), forms.of(self.root))

    def _emitted(
        self, lower: Lower, operands: Operands, attributes: Mapping[str, Any]
    ) -> Ref | None:
        types = tuple(operand.type for operand in operands.values())
        try:
            block = lower(types, Attributes(attributes))
        except (PtirError, *WRONG_KIND):  # these operands are none that it takes
            return None
        (result,) = inline(block, list(operands.values()))
        if self.permutation:
            result = op("transpose")(result, permutation=self.permutation)
        same = result.type.dtype == self.root.type.dtype and result.type.size == self.root.type.size
        return result if same else None

    def _forms(self, operands: Operands) -> NormalForms:
        leaves = {}
        for name, operand in operands.items():
            base = bare(operand)
            if uniform(base) is None and self.graph.known.of(base) is None:
                leaves[base.key] = name
        return NormalForms(
            leaves,
            lambda node: called(self.graph, node, self.inner),
            RULES,
            masks=self.row.masks,
            known=self.graph.known,
        )

    def _closed(self, operands: Operands) -> bool:
        """Whether nothing else reads what is computed of the first operand inside."""
        cut = {bare(operand).key for operand in operands.values()}
        first = bare(next(iter(operands.values()))).key
        region: dict[int, Node] = {}
        pending = [self.root.node]
        while pending:
            node = pending.pop()
            if node.serial not in region and len(region) < 2000:
                region[node.serial] = node
                pending += [r.node for r in node.operands if r.key not in cut]
        touched: set[int] = set()
        for serial in sorted(region):
            node = region[serial]
            reads = (r.key == first or r.node.serial in touched for r in node.operands)
            if any(reads):
                touched.add(serial)
        for serial in touched - {self.root.node.serial}:
            view = bare(Ref(region[serial])).key in cut
            if not view and not self.graph.readers.get(serial, set()) <= region.keys():
                return False
        return True


def _rounded(value: float, nice: Sequence[float]) -> float:
    """The number that somebody probably wrote, which is this one in f32."""
    import numpy as np

    for one in nice:
        if abs(one - value) <= 2e-6 * abs(one):
            return one
    for figures in range(1, 8):
        short = float(f"{value:.{figures}g}")
        if abs(short - value) <= 3e-7 * abs(value):
            return short
    return float(str(np.float32(value)))
