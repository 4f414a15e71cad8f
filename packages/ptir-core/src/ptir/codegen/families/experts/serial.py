"""The serial schedule of experts: a gemv of the rows that an expert was given.

For a single token a piece of work is one of its experts and a run of the panels of that; for
several it is an expert, all rows that it was given, four at a time, and a run of its panels.
Experts without a row are not read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from ptir.codegen.expressions.expr import (
    Apply,
    Cell,
    Coordinate,
    Expr,
    Var,
    as_index,
    compare,
    constant,
)
from ptir.codegen.expressions.index import ZERO, Axis, Index, axis, unravel_index
from ptir.codegen.expressions.movement import clamped
from ptir.codegen.families.experts.match import ExpertLinear
from ptir.codegen.families.linear import int8_slices
from ptir.codegen.families.linear.gemv import Gemv
from ptir.codegen.families.linear.gemv_slices import SlicedGemv
from ptir.codegen.families.linear.serial import Outputs
from ptir.codegen.schedules.epilogue import store
from ptir.codegen.schedules.kernel import EmitContext, Fusion, Kernel, finish_kernel
from ptir.codegen.weights.panels import LANES
from ptir.types import I32

SIZES: Final = (4, 1)
"""Rows that are multiplied at once: as many as there are registers for, then those left over."""
FINER: Final = 4
"""Pieces for each workgroup where it is not known which experts have rows."""


def emit(fusion: Fusion, context: EmitContext) -> Kernel:
    """By products of bytes where the weight and the device are for it."""
    is_sliced = int8_slices.fits(fusion.detail, context)
    return (SlicedExperts if is_sliced else Experts)(fusion, context).kernel()


class Experts(Gemv):
    """A contraction with the weights of experts while its kernel is written."""

    linear: ExpertLinear
    is_private = False

    def __init__(self, fusion: Fusion, context: EmitContext) -> None:
        super().__init__(fusion, context)
        self.whole: ExpertLinear = fusion.detail
        self.linear = replace(self.whole, rows=1)
        self.tokens, self.each = self.graph.type(self.whole.chosen).shape
        self.first = ZERO
        self.pairs_of: list[Index] = []
        self.rows_of: list[Index] = []

    def kernel(self) -> Kernel:
        """A loop over experts and runs of their panels."""
        writer, whole = self.writer, self.whole
        writer.prefetch(whole.packed, self.tiles.prefetch_bytes)
        is_single = self.tokens == 1
        lines, finer = (whole.pairs, 1) if is_single else (whole.experts, FINER)
        wanted = self.context.traits.compute_units * self.tiles.workgroups_per_unit * finer
        self.run = -(-whole.count // min(whole.count, max(1, -(-wanted // lines))))
        sizes = -(-whole.count // self.run), lines
        items = sizes[0] * lines
        work = whole.pairs * whole.outputs * whole.inputs
        workgroups = self.context.workgroups(items, work)
        first, last = writer.work_range(items, workgroups)
        self._declare_arrays(1 if is_single else SIZES[0])
        with writer.loop(Axis("e", items), first, last):
            run, line = (
                writer.let_index(at, size)
                for at, size in zip(unravel_index(axis("e", items), sizes), sizes, strict=True)
            )
            self.begin = run * self.run
            if is_single:
                self._weights_of(Coordinate(I32, self._expert(line)))
                self._tile([line])
            else:
                self._weights_of(Coordinate(I32, line))
                self._rows_of_expert(line)
        return finish_kernel(self.fusion, writer, workgroups)

    def _declare_arrays(self, rows: int) -> None:
        """The private arrays of so many rows, and those that say which these are."""
        if rows > 1:
            self.writer.array("mine", self.whole.pairs + rows, I32)
            self.writer.array("from", rows, I32)
        self.linear = replace(self.whole, rows=rows)
        if self.whole.quantized is not None:
            self.declare_groups()

    def _expert(self, pair: Index) -> Index:
        """The expert of a pair."""
        last = self.whole.experts - 1
        at = unravel_index(pair, (self.tokens, self.each))
        found = self.writer.scalar(self.builder.at(self.whole.chosen, at))
        return as_index(clamped(found, constant(I32, 0), constant(I32, last)), 0, last)

    def _weights_of(self, expert: Expr) -> None:
        """Say where the panels of an expert begin."""
        count, experts = self.whole.count, self.whole.experts
        begin = as_index(expert, 0, experts - 1) * count
        self.first = self.writer.let_index(begin, (experts - 1) * count + 1)

    def _rows_of_expert(self, expert: Index) -> None:
        """All rows that an expert was given, a few at a time."""
        writer, pairs = self.writer, self.whole.pairs
        n = writer.declare(constant(I32, 0), "n")
        with writer.loop(Axis("c", pairs), 0, pairs):
            pair = axis("c", pairs)
            same = compare("eq", Coordinate(I32, self._expert(pair)), Coordinate(I32, expert))
            with writer.when(same):
                writer.put("mine", as_index(n, 0, pairs - 1), Coordinate(I32, pair), I32)
                writer.assign(n, Apply(I32, "add", n, constant(I32, 1)))
        at = writer.declare(constant(I32, 0), "at")
        place = Index({Axis("at", pairs): 1})
        for size in SIZES:
            inside = Apply(same.dtype, "le", Coordinate(I32, place + size), n)
            with writer.while_true(at, inside, Coordinate(I32, place + size)):
                cells = [Cell(I32, "mine", place + slot) for slot in range(size)]
                pairs_of = [as_index(writer.scalar(cell), 0, pairs - 1) for cell in cells]
                self._tile([writer.let_index(pair, pairs) for pair in pairs_of])

    def _tile(self, pairs: Sequence[Index]) -> None:
        """The rows of a few pairs times the panels of the run."""
        writer, whole, size = self.writer, self.whole, len(pairs)
        self.linear = replace(whole, rows=size)
        self.pairs_of = list(pairs)
        self.rows_of = [writer.let_index(pair // whole.shared, whole.rows) for pair in pairs]
        if size > 1:
            for slot, row in enumerate(self.rows_of):
                writer.put("from", Index({}, slot), Coordinate(I32, row), I32)
        if whole.quantized is not None:
            self.fill_groups()
        end = Coordinate(I32, self.begin + self.run)
        until: Expr = Apply(I32, "min", end, constant(I32, whole.count))
        with writer.loop(Axis("p", whole.count), self.begin, until):
            panel = axis("p", self.whole.count)
            self._panel(Outputs(ZERO, size, panel, 1))

    def activation(self, row: Index, input: Index) -> Expr:
        """One activation of the row in a slot of the tile."""
        if row.is_constant:
            return super().activation(self.rows_of[row.constant], input)
        source = as_index(Cell(I32, "from", row), 0, self.whole.rows - 1)
        return super().activation(source, input)

    def output(self, panel: Index) -> Index:
        """Where the 16 outputs of a panel of the expert lie in memory."""
        return super().output(self.first + panel)

    def finish_panel(self, row: Index, panel: Index, sum: Var) -> None:
        """The epilogue of a panel's 16 outputs for a slot of the tile."""
        at = self.writer.let_index(panel, self.whole.count)
        with self.writer.lanes(Axis("lane", LANES)):
            self.finish_sum(self.pairs_of[row.constant], at * LANES + axis("lane", LANES), sum)

    def finish_sum(self, row: Index, output: Index, sum: Expr) -> None:
        """The epilogue and the store of 16 outputs of a pair."""
        (exit,) = self.fusion.outputs
        flat = row * self.whole.outputs + output
        store(self.writer, self.builder, (self.hero, sum), exit, flat)


class SlicedExperts(Experts, SlicedGemv):
    """One with products in whole numbers."""
