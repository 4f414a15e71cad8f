"""The gemv schedule, of few rows: every weight is read once, as it lies in memory.

A workgroup owns a run of panels, keeps a vector of 16 outputs per row and broadcasts one input
after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from ptir.codegen.expressions.expr import (
    Apply,
    Cell,
    Const,
    Coordinate,
    Expr,
    Var,
    as_index,
    constant,
)
from ptir.codegen.expressions.index import ZERO, Axis, Index, axis, number
from ptir.codegen.families.linear.serial import ZERO_SUM, Grouped, Outputs, RowGroup
from ptir.codegen.families.reduction.rows import RowEmitter, RowReduction
from ptir.codegen.kernel_ir.nodes import Store
from ptir.codegen.schedules.epilogue import builder_of
from ptir.codegen.schedules.kernel import Fusion, Kernel, finish_kernel
from ptir.codegen.weights.panels import LANES
from ptir.types import BF16, BOOL, F32, I32, U32


class Gemv(Grouped):
    """Few rows: every weight is read once, in the order in which it lies in memory."""

    def kernel(self) -> Kernel:
        """A workgroup per run of panels."""
        writer, panels = self.writer, self.panels
        self.fetch_ahead()
        workgroups = self.workgroups(panels.count)
        if self.is_private:
            self._keep_activations()
        if self.linear.quantized is not None:
            self.prepare()
        with writer.each("p", panels.count, *writer.work_range(panels.count, workgroups)) as p:
            self._find_panel()
            self._panel(Outputs(ZERO, self.linear.rows, p, 1))
        return finish_kernel(self.fusion, writer, workgroups)

    def fetch_ahead(self) -> None:
        """Have the cache fetch weights ahead of their loads, as far as the device gains by it."""
        is_quantized = self.linear.quantized is not None
        tiles = self.tiles
        ahead = tiles.quantized_prefetch_bytes if is_quantized else tiles.prefetch_bytes
        self.writer.prefetch(self.linear.packed, ahead)

    @property
    def accumulators(self) -> int:
        """As many as hide an addition's delay, all rows together."""
        chains = max(1, self.tiles.accumulators // self.linear.rows)
        while self.linear.inputs % (chains * self.panels.per):
            chains //= 2
        return chains

    @cached_property
    def is_private(self) -> bool:
        """Whether a workgroup keeps the activations to itself."""
        if self.unit == 1:
            return not self.is_stored
        first = axis("m", self.linear.rows), axis("k", self.linear.inputs // 2)
        return self.fusion.prologue is not None or self.word_in_memory(*first) is None

    def _find_panel(self) -> None:
        """Declare where panel ``p`` lies in memory, where panels lie in several runs."""
        begin, place = 0, Index({Axis("p", self.panels.count): 1})
        for (start, end), (_, before) in zip(
            self.panels.runs, ((0, 0), *self.panels.runs), strict=False
        ):
            if start != before:
                behind = Apply(BOOL, "ge", Var(I32, "p"), Const(I32, begin))
                move = Apply(I32, "select", behind, Const(I32, start - before), Const(I32, 0))
                place += as_index(move, min(0, start - before), max(0, start - before))
            begin += end - start
        if self.panels.runs:
            self.writer.let(Coordinate(I32, place), "stored")

    def output(self, panel: Index) -> Index:
        """Where the 16 outputs of a panel lie in memory."""
        return super().output(axis("stored", self.panels.stored) if self.panels.runs else panel)

    def _keep_activations(self) -> None:
        """Compute the activations into a private array."""
        writer, rows, size = self.writer, self.linear.rows, self.linear.inputs
        writer.array("x", rows * size // self.unit, F32 if self.unit == 1 else U32)
        with writer.each("m", rows) as row:
            prologue = self.fusion.prologue
            if prologue is not None:
                self._run(prologue, row)
            else:
                writer.each_element(
                    size, lambda place: self._put(row, place, self.activation(row, place))
                )

    def _run(self, prologue: Fusion, row: Index) -> None:
        """The row program that makes the activations, for one row."""
        rows: RowReduction = prologue.detail
        body = RowEmitter(self.writer, builder_of(prologue, self.context), rows, row)
        body.stages()
        body.each(lambda place: self._put(row, place, body.exit(rows.outputs[0], place)))

    def _put(self, row: Index, place: Index, expr: Expr) -> None:
        dtype = F32 if self.unit == 1 else BF16
        self.writer.put("x", row * self.linear.inputs + place, expr, dtype)

    def _panel(self, tile: Outputs) -> None:
        """The outputs of a panel for every row."""
        if self.linear.quantized is not None:
            for m, ((result,),) in enumerate(self.by_groups(tile)):
                self.finish_panel(number(m), tile.panel, result)
            return
        for m, (sums,) in enumerate(self.along_inputs(tile, self.accumulators * self.panels.per)):
            with self.writer.scope():
                total = self.writer.let(self.writer.total(sums), "acc")
                self.finish_panel(number(m), tile.panel, total)

    def x_at(self, row: Index, input: Index) -> Expr:
        """The value of an activation, or the word of two, where the workgroup has it."""
        if self.unit == 1:
            return self.writer.wide(self._input(row, input))
        if not self.is_private:
            return super().x_at(row, input)
        return self.writer.element(Cell(U32, "x", (row * self.linear.inputs + input) // 2))

    def _input(self, row: Index, input: Index) -> Expr:
        """One activation where the workgroup has it."""
        if self.is_private:
            return Cell(F32, "x", row * self.linear.inputs + input)
        return self.activation(row, input)

    # --- by groups ---

    def prepare(self) -> None:
        """What is known of every group of activations, into private arrays."""
        self.declare_groups()
        self.fill_groups()

    def declare_groups(self) -> None:
        """Declare the private array ``sums``."""
        self.writer.array("sums", self.linear.rows * self.groups, F32)

    def fill_groups(self) -> None:
        """The sum of every group of activations."""
        writer, rows, groups = self.writer, self.linear.rows, self.groups
        with writer.each("m", rows) as row, writer.each("h", groups) as h:
            group, size = h, self.quantized.group
            found = self._sum(row, group * size, size)
            writer.emit(Store(F32, "sums", row * groups + group, found))

    def _sum(self, row: Index, first: Index, size: int) -> Expr:
        """The sum of a group of activations: its vectors, then their lanes."""
        writer, whole = self.writer, size // LANES
        parts = [self._input(row, first + place) for place in range(whole * LANES, size)]
        total = [writer.scalar(part) for part in parts]
        if whole:
            with writer.lanes(Axis("lane", LANES)):
                vectors = [
                    writer.wide(self._input(row, first + v * LANES + axis("lane", LANES)))
                    for v in range(whole)
                ]
                held = writer.let(writer.total(vectors))
            total.append(writer.reduce_lanes("add", held))
        return writer.total(total)

    def factors(self, tile: Outputs, m: int, group: Index, part: Index) -> Sequence[Expr]:
        """One activation."""
        return [self.x_at(tile.row + m, group * self.quantized.group + part)]

    def row_group(self, tile: Outputs, m: int, group: Index) -> RowGroup:
        """Sums begin below zero by what raising the weights adds."""
        total, zero = Cell(F32, "sums", number(m * self.groups) + group), self.quantized.zero
        raised_by = constant(F32, (zero or 0.0) - self.quantized.unit)
        starts = raised_by * total, *[ZERO_SUM] * (self.accumulators - 1)
        return RowGroup(starts, total=total if zero is None else None)

    def scale(self, result: Var, sums: Sequence[Var], step: Expr, unit: Expr) -> None:
        """Add all sums, scaled."""
        self.writer.add_product(result, self.writer.total(sums), self.writer.wide(step))
