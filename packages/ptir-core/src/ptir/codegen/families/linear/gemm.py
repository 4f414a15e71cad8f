"""The gemm schedule, of many rows: tiles of rows and panels stay in registers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ptir.codegen.expressions.expr import Expr, Load, Var
from ptir.codegen.expressions.index import Axis, Index, axis, number
from ptir.codegen.families.linear.serial import Outputs, Serial, Sums
from ptir.codegen.families.linear.unpacking import unpack
from ptir.codegen.kernel_ir.conditions import less
from ptir.codegen.kernel_ir.statements import Whole
from ptir.codegen.schedules.kernel import Kernel, finish_kernel, scratch_value
from ptir.codegen.schedules.tiles import FEW
from ptir.codegen.weights.panels import LANES
from ptir.types import F32, I32, TensorType


class Gemm(Serial):
    """Many rows: a few panels stay in the cache while every row passes, tile by tile."""

    def kernel(self) -> Kernel:
        """A workgroup per run of panel groups."""
        groups = -(-self.panels.count // self._wide)
        workgroups = self.workgroups(groups)
        self.item = Index({Axis("item", workgroups): 1})
        self.each_group(groups, *self.writer.work_range(groups, workgroups), self._group)
        return finish_kernel(self.fusion, self.writer, workgroups, self._scratch(workgroups))

    def each_group(
        self, groups: int, first: Whole, end: Whole, body: Callable[[Index, int], None]
    ) -> None:
        """Call ``body`` with the first panel and the panels of each of some groups of panels."""
        writer, wide = self.writer, self._wide
        whole, left = divmod(self.panels.count, wide)
        with writer.each("g", groups, first, end):
            if whole:
                with writer.when(less(Var(I32, "g"), whole) if left else None):
                    body(axis("g", whole) * wide, wide)
            if left:
                with writer.otherwise() if whole else writer.scope():
                    body(number(whole * wide), left)

    @property
    def _high(self) -> int:
        """Rows of a tile."""
        return self.tiles.gemm_rows

    @property
    def _wide(self) -> int:
        """Panels of a tile."""
        return self.tiles.gemm_panels

    def _scratch(self, workgroups: int) -> tuple[TensorType, ...]:
        """Memory for the weights that become floats."""
        size = workgroups * self.linear.inputs * self._wide * LANES
        return (TensorType(F32, (size,)),) if self.is_unpacked else ()

    def _group(self, panel: Index, panels: int) -> None:
        """A group of panels, prepared once for all rows."""
        self._prepare(panel, panels)
        self._rows(panel, panels)

    def _prepare(self, panel: Index, panels: int) -> None:
        """Weights that are not floats become such in scratch memory."""
        for p in range(panels if self.is_unpacked else 0):
            output = (panel + p) * LANES + axis("lane", LANES)
            unpack(self, output, partial(self._held, p))

    @property
    def is_unpacked(self) -> bool:
        """Whether weights become floats in scratch memory before the rows pass."""
        if self.linear.quantized is not None:
            return True
        tiles = self.linear.rows // self.tiles.gemm_rows
        return self.unit == 1 and self.panels.dtype != F32 and tiles >= FEW

    def _held(self, panel: int, input: Index) -> Index:
        """Where a weight of the workgroup's group is in the scratch memory."""
        place = (self.item * self.tiles.gemm_panels + panel) * self.linear.inputs
        return (place + input) * LANES + axis("lane", LANES)

    def _rows(self, panel: Index, panels: int) -> None:
        """Every row times one group of panels."""
        tall = self._high
        whole, left = divmod(self.linear.rows, tall)
        with self.writer.each("t", whole) as t:
            self._tile(Outputs(t * tall, tall, panel, panels))
        if left:
            with self.writer.scope():
                self._tile(Outputs(number(whole * tall), left, panel, panels))

    def _tile(self, tile: Outputs) -> None:
        """A tile of outputs in registers, finished at once."""
        for m, line in enumerate(self.results(tile)):
            for p, (one,) in enumerate(line):
                with self.writer.scope():
                    self.finish_panel(tile.row + m, tile.panel + p, one)

    def results(self, tile: Outputs) -> Sums:
        """One vector for each panel of a tile's rows."""
        return self.along_inputs(tile, 1 if self.is_unpacked else self.panels.per)

    def weight_at(self, panel: Index, p: int, input: Index) -> Expr:
        """The weights of an input in a tile's panel ``p``."""
        if self.is_unpacked:
            return Load(F32, scratch_value(self.fusion, 0), self._held(p, input))
        return super().weight_at(panel, p, input)
