"""The serial schedule of experts: a gemv of the rows that an expert was given.

For a single token a piece of work is one of its experts and a run of the panels of that; for
several it is an expert, all rows that it was given, a few at a time, and a run of its panels.
Experts without a row are not read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from ptir.codegen.expressions.expr import (
    Apply,
    Cell,
    Coordinate,
    Expr,
    Load,
    Var,
    as_index,
    compare,
    constant,
)
from ptir.codegen.expressions.index import ZERO, Axis, Index, axis, number, unravel_index
from ptir.codegen.expressions.movement import clamped
from ptir.codegen.families.experts.match import ExpertLinear
from ptir.codegen.families.linear import int8_slices
from ptir.codegen.families.linear.gemv import Gemv
from ptir.codegen.families.linear.gemv_slices import SlicedGemv
from ptir.codegen.families.linear.parts import in_registers
from ptir.codegen.families.linear.serial import Outputs
from ptir.codegen.families.linear.unpacking import unpack
from ptir.codegen.schedules.kernel import EmitContext, Fusion, Kernel, finish_kernel, scratch_value
from ptir.codegen.weights.panels import LANES
from ptir.types import BOOL, F32, I32, TensorType

SIZES: Final = (4, 1)
"""Rows that are multiplied at once: as many as there are registers for, then those left over."""
MANY: Final = 4
"""Rows for each expert, on average, from which panels become floats once for all of them."""
FINER: Final = 4
"""Pieces for each workgroup where it is not known which experts have rows."""


def emit(fusion: Fusion, context: EmitContext) -> Kernel:
    """By products of bytes where the weight and the device are for it."""
    whole: ExpertLinear = fusion.detail
    if int8_slices.fits(whole, context):
        return SlicedExperts(fusion, context).kernel()
    is_many = whole.pairs >= MANY * whole.experts
    return (ManyRows if is_many else Experts)(fusion, context).kernel()


class Experts(Gemv):
    """A contraction with the weights of experts while its kernel is written."""

    linear: ExpertLinear
    is_private = False

    def __init__(self, fusion: Fusion, context: EmitContext) -> None:
        super().__init__(fusion, context)
        self.whole: ExpertLinear = in_registers(fusion.detail, context)
        self.linear = replace(self.whole, rows=1)
        self.tokens, self.each = self.graph.type(self.whole.chosen).shape
        self.first = ZERO
        self.pairs_of: list[Index] = []
        self.rows_of: list[Index] = []

    def kernel(self) -> Kernel:
        """A loop over experts and runs of their panels."""
        writer, whole = self.writer, self.whole
        self.fetch_ahead()
        is_single = self.tokens == 1
        lines, finer = (whole.pairs, 1) if is_single else (whole.experts, FINER)
        wanted = self.context.traits.compute_units * self.tiles.workgroups_per_unit * finer
        self.run = -(-whole.count // min(whole.count, max(1, -(-wanted // lines))))
        sizes = -(-whole.count // self.run), lines
        items = sizes[0] * lines
        work = whole.pairs * whole.outputs * whole.inputs
        workgroups = self.context.workgroups(items, work)
        self.item = Index({Axis("item", workgroups): 1})
        first, last = writer.work_range(items, workgroups)
        self._declare_arrays(1 if is_single else self.sizes[0])
        with writer.each("e", items, first, last) as e:
            run, line = map(writer.let_index, unravel_index(e, sizes), sizes)
            self.begin = run * self.run
            if is_single:
                self._weights_of(Coordinate(I32, self._expert(line)))
                self._tile([line])
            else:
                self._weights_of(Coordinate(I32, line))
                self._rows_of_expert(line)
        return finish_kernel(self.fusion, writer, workgroups, self.scratch(workgroups))

    @property
    def sizes(self) -> Sequence[int]:
        """Rows that are multiplied at once: most first, then those for what is left."""
        return SIZES

    def scratch(self, workgroups: int) -> tuple[TensorType, ...]:
        """Memory for weights that become floats."""
        return ()

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
        with writer.each("c", pairs) as pair:
            same = compare("eq", Coordinate(I32, self._expert(pair)), Coordinate(I32, expert))
            with writer.when(same):
                writer.put("mine", as_index(n, 0, pairs - 1), Coordinate(I32, pair), I32)
                writer.assign(n, n + 1)
        self._multiply(n)

    def _multiply(self, n: Var) -> None:
        """Multiply the ``n`` rows that are the expert's."""
        self._each_tile(n, self._tile)

    def _each_tile(self, n: Var, body: Callable[[Sequence[Index]], None]) -> None:
        """Call ``body`` with the pairs of tiles of rows."""
        writer, pairs = self.writer, self.whole.pairs
        at = writer.declare(constant(I32, 0), "at")
        place = Index({Axis("at", pairs): 1})
        for size in self.sizes:
            inside = Apply(BOOL, "le", Coordinate(I32, place + size), n)
            with writer.while_true(at, inside, Coordinate(I32, place + size)):
                cells = [Cell(I32, "mine", place + slot) for slot in range(size)]
                pairs_of = [as_index(writer.scalar(cell), 0, pairs - 1) for cell in cells]
                body([writer.let_index(pair, pairs) for pair in pairs_of])

    def _take(self, pairs: Sequence[Index]) -> None:
        """Have the rows of a few pairs in the slots of the tile."""
        writer, whole, size = self.writer, self.whole, len(pairs)
        self.linear = replace(whole, rows=size)
        self.pairs_of = list(pairs)
        self.rows_of = [writer.let_index(pair // whole.shared, whole.rows) for pair in pairs]
        if size > 1:
            for slot, row in enumerate(self.rows_of):
                writer.put("from", Index({}, slot), Coordinate(I32, row), I32)

    @contextmanager
    def _each_panel(self) -> Iterator[Index]:
        """A block for each panel of the run; gives its number in the expert."""
        end = Coordinate(I32, self.begin + self.run)
        until: Expr = Apply(I32, "min", end, constant(I32, self.whole.count))
        with self.writer.each("p", self.whole.count, self.begin, until) as p:
            yield p

    def _tile(self, pairs: Sequence[Index]) -> None:
        """The rows of a few pairs times the panels of the run."""
        self._take(pairs)
        if self.whole.quantized is not None:
            self.fill_groups()
        with self._each_panel() as panel:
            self._panel(Outputs(ZERO, len(pairs), panel, 1))

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
        self.store(row * self.whole.outputs + output, sum)


class SlicedExperts(Experts, SlicedGemv):
    """One with products in whole numbers."""


class ManyRows(Experts):
    """One whose experts have many rows each: a panel stays in the cache while all of them pass.

    Weights below 32 bits become floats once for all rows, as in the gemm of the family linear, and
    are summed in its order.
    """

    @property
    def sizes(self) -> Sequence[int]:
        """As high as the tile of a gemm that is one panel wide."""
        return self.tiles.gemm_rows, 4, 2, 1

    @property
    def is_unpacked(self) -> bool:
        """Whether weights become floats in scratch memory."""
        return self.linear.quantized is not None or self.panels.dtype != F32

    def scratch(self, workgroups: int) -> tuple[TensorType, ...]:
        """A panel of floats for each workgroup."""
        size = workgroups * self.whole.inputs * LANES
        return (TensorType(F32, (size,)),) if self.is_unpacked else ()

    def declare_groups(self) -> None:
        """Nothing of groups is needed where weights are floats."""

    @property
    def accumulators(self) -> int:
        """One: rows beside each other hide an addition's delay."""
        return 1

    def _held(self, input: Index) -> Index:
        return (self.item * self.whole.inputs + input) * LANES + axis("lane", LANES)

    def _multiply(self, n: Var) -> None:
        """Panel by panel, each with all rows."""
        some = Apply(BOOL, "gt", n, constant(I32, 0))
        with self.writer.when(some), self._each_panel() as panel:
            if self.is_unpacked:
                unpack(self, self.output(panel), self._held)
            self._each_tile(n, lambda pairs: self._rows_of(panel, pairs))

    def _rows_of(self, panel: Index, pairs: Sequence[Index]) -> None:
        """The rows of a few pairs times one panel."""
        self._take(pairs)
        tile = Outputs(ZERO, len(pairs), panel, 1)
        step = 1 if self.is_unpacked else self.panels.per
        for m, ((sum,),) in enumerate(self.along_inputs(tile, step)):
            with self.writer.scope():
                self.finish_panel(number(m), panel, sum)

    def weight_at(self, panel: Index, p: int, input: Index) -> Expr:
        """The weights of an input."""
        if self.is_unpacked:
            return Load(F32, scratch_value(self.fusion, 0), self._held(input))
        return super().weight_at(panel, p, input)
