"""The cooperative schedule of experts: a workgroup per pair of a token and an expert, and panel.

It is the gemv of one row, which finds out first whose panel that is. Pairs of one expert read its
weights one after the other, from the cache of the device.
"""

from __future__ import annotations

from dataclasses import replace

from ptir.codegen.expressions.expr import Cell, Expr, as_index, constant
from ptir.codegen.expressions.index import Index, axis, unravel_index
from ptir.codegen.expressions.movement import clamped
from ptir.codegen.families.experts.match import ExpertLinear
from ptir.codegen.families.linear.gemv_cooperative import CooperativeGemv
from ptir.codegen.schedules.kernel import EmitContext, Fusion, Kernel
from ptir.codegen.weights.panels import LANES
from ptir.types import I32


def emit_cooperative(fusion: Fusion, context: EmitContext) -> Kernel:
    """A workgroup per pair and panel."""
    return _CooperativeExperts(fusion, context).kernel()


class _CooperativeExperts(CooperativeGemv):
    """One panel of the expert of a pair."""

    pair: Index
    row: Index
    within: Index
    """The pair at hand, its row of activations, and the panel's place in its expert."""

    def __init__(self, fusion: Fusion, context: EmitContext) -> None:
        self.whole: ExpertLinear = fusion.detail
        single = replace(fusion, detail=replace(self.whole, rows=1))
        super().__init__(single, context)
        self.fusion, self.items = fusion, self.whole.pairs * self.whole.count

    def find_panel(self) -> None:
        """The expert of the pair, and where its panel lies among all."""
        writer, whole = self.writer, self.whole
        item = axis("item", self.items)
        pair, self.within = unravel_index(item, (whole.pairs, whole.count))
        self.pair = writer.let_index(pair, whole.pairs, "pair")
        self.row = writer.let_index(self.pair // whole.shared, whole.rows, "row")
        shape, last = self.graph.type(whole.chosen).shape, whole.experts - 1
        found = writer.scalar(self.builder.at(whole.chosen, unravel_index(self.pair, shape)))
        expert = as_index(clamped(found, constant(I32, 0), constant(I32, last)), 0, last)
        panel = expert * whole.count + self.within
        self.panel = writer.let_index(panel, self.panels.count, "panel")

    def activation(self, row: Index, input: Index) -> Expr:
        """One activation of the pair's row."""
        return super().activation(self.row, input)

    def finish_output(self, row: Index, output: Index, held: Cell) -> None:
        """The epilogue and the store of an output of the pair."""
        writer, whole = self.writer, self.whole
        sum = writer.let(writer.element(held))
        place = writer.let_index(self.within * LANES + output, whole.outputs)
        self.store(self.pair * whole.outputs + place, sum)
