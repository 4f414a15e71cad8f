"""The streamed schedule of a product of few rows: every weight is read once, as it lies in memory.

An item owns a run of panels, keeps a vector of 16 outputs per row and broadcasts one input after
the other.
"""

from __future__ import annotations

from collections.abc import Callable

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
from ptir.codegen.expressions.index import Axis, Index, axis, number
from ptir.codegen.families.matmul.parts import Writing, add_product
from ptir.codegen.families.reduction.rows import Rows, RowWriter
from ptir.codegen.kernel_ir.nodes import Store
from ptir.codegen.kernel_ir.writer import Writer
from ptir.codegen.schedules.epilogue import builder_of
from ptir.codegen.schedules.kernel import Group, Kernel, finished
from ptir.codegen.weights.panels import LANES
from ptir.codegen.weights.quantized import Quantized
from ptir.types import BOOL, F32, I32


class Streamed(Writing):
    """Few rows: every weight is read once, in the order in which it lies in memory."""

    def kernel(self) -> Kernel:
        """An item per run of panels."""
        writer, panels = self.writer, self.panels
        writer.fetch_ahead(self.product.packed, self.tiles.ahead)
        items = self.items(panels.count)
        read = self._activations()
        if self.product.quantized is not None:
            self._sums(self.product.quantized, read)
        with writer.loop(Axis("p", panels.count), *writer.share(panels.count, items)):
            self._find_panel()
            if self.product.quantized is None:
                self._panel(read, axis("p", panels.count))
            else:
                self._groups(self.product.quantized, read, axis("p", panels.count))
        return finished(self.group, writer, items)

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
        lane = axis("lane", LANES)
        return (axis("stored", self.panels.stored) if self.panels.runs else panel) * LANES + lane

    def _activations(self) -> bool:
        """Compute what is not simply stored into a private array; says whether there is one."""
        rows, size = self.product.rows, self.product.inputs
        if self.is_stored:
            return False
        writer = self.writer
        writer.array("x", rows * size, F32)
        with writer.loop(Axis("m", rows), 0, rows):
            row = axis("m", rows)
            prologue = self.group.prologue
            if prologue is not None:
                self._run(prologue, row)
            else:
                each(writer, size, lambda place: self._put(row, place, self.activation(row, place)))
        return True

    def _run(self, prologue: Group, row: Index) -> None:
        """The row program that makes the activations, for one row."""
        rows: Rows = prologue.detail
        body = RowWriter(self.writer, builder_of(prologue, self.site), rows, row)
        body.stages()
        body.each(lambda place: self._put(row, place, body.exit(rows.exits[0], place)))

    def _put(self, row: Index, place: Index, expr: Expr) -> None:
        self.writer.put("x", row * self.product.inputs + place, expr)

    def _panel(self, private: bool, panel: Index) -> None:
        writer, rows = self.writer, self.product.rows
        chains = max(1, self.tiles.chains // rows)
        while self.panels.inputs % (chains * self.panels.per):
            chains //= 2
        step = max(chains, 1) * self.panels.per
        steps = self.panels.inputs // step
        sums = self.chained(max(chains, 1))
        with writer.loop(Axis("k", steps), 0, steps), writer.lanes(Axis("lane", LANES)):
            for inner in range(step):
                self._step(private, panel, axis("k", steps) * step + inner, inner, sums)
        self.finish_chained(panel, sums)

    def chained(self, chains: int) -> list[list[Var]]:
        """Declare a row's sums that are kept apart, for every row."""
        names = [[f"a{m}_{c}" for c in range(chains)] for m in range(self.product.rows)]
        return [[self.writer.declare(self.zero(), name) for name in line] for line in names]

    def finish_chained(self, panel: Index, sums: list[list[Var]]) -> None:
        """Bring sums together and finish a panel of every row."""
        for m, line in enumerate(sums):
            with self.writer.scope():
                total = self.writer.let(self.writer.total(line), "acc")
                self.finish_panel(number(m), panel, total)

    def _input(self, private: bool, row: Index, input: Index) -> Expr:
        """One activation where the item has it."""
        if private:
            return Cell(F32, "x", row * self.product.inputs + input)
        return self.activation(row, input)

    def _sums(self, quantized: Quantized, private: bool) -> None:
        """The sum of every group of activations into the private array ``sums``."""
        writer, rows, size = self.writer, self.product.rows, quantized.group
        groups = quantized.inputs // size
        writer.array("sums", rows * groups, F32)
        with writer.loop(Axis("m", rows), 0, rows):
            row = axis("m", rows)
            with writer.loop(Axis("h", groups), 0, groups):
                group = axis("h", groups)
                found = self._sum(private, row, group * size, size)
                writer.emit(Store(F32, "sums", row * groups + group, found))

    def _sum(self, private: bool, row: Index, first: Index, size: int) -> Expr:
        """The sum of a group of activations: its vectors, then their lanes."""
        writer, whole = self.writer, size // LANES
        parts = [self._input(private, row, first + place) for place in range(whole * LANES, size)]
        total = [writer.scalar(part) for part in parts]
        if whole:
            with writer.lanes(Axis("lane", LANES)):
                vectors = [
                    writer.wide(self._input(private, row, first + v * LANES + axis("lane", LANES)))
                    for v in range(whole)
                ]
                held = writer.let(writer.total(vectors))
            total.append(writer.folded("add", held))
        return writer.total(total)

    def _groups(self, quantized: Quantized, private: bool, panel: Index) -> None:
        """A panel group by group: words times activations, scaled once."""
        writer, rows = self.writer, self.product.rows
        groups = quantized.inputs // quantized.group
        results = [writer.declare(self.zero(), f"y{m}") for m in range(rows)]
        with writer.loop(Axis("h", groups), 0, groups), writer.lanes(Axis("lane", LANES)):
            self._group(quantized, private, panel, axis("h", groups), results)
        for m, result in enumerate(results):
            self.finish_panel(number(m), panel, result)

    def _group(
        self, quantized: Quantized, private: bool, panel: Index, group: Index, results: list[Var]
    ) -> None:
        """Add one group's products to the result of every row."""
        writer, rows = self.writer, self.product.rows
        output = self.output(panel)
        groups, words = quantized.inputs // quantized.group, quantized.group // quantized.per
        chains = max(1, self.tiles.chains // rows)
        raise_by = quantized.unit - (quantized.zero or 0.0)
        totals = [Cell(F32, "sums", number(m * groups) + group) for m in range(rows)]
        sums = list[list[Var]]()
        for m, total in enumerate(totals):
            start = writer.wide(Apply(F32, "mul", constant(F32, -raise_by), total))
            begun = [self.zero() if c else start for c in range(chains)]
            sums.append([writer.declare(one, f"a{m}_{c}") for c, one in enumerate(begun)])
        for w in range(words):
            word = quantized.word(output, group * words + w)
            for place in range(quantized.per):
                value = writer.wide(quantized.raised(word, place))
                input = group * quantized.group + (w * quantized.per + place)
                for m in range(rows):
                    x = writer.wide(self._input(private, number(m), input))
                    add_product(writer, sums[m][place % chains], x, value)
        step = writer.wide(quantized.scaled(self.builder, output, group))
        for m, result in enumerate(results):
            add_product(writer, result, writer.total(sums[m]), step)
            if quantized.zero is None:
                self.added(result, quantized.offset(self.builder, output, group), totals[m])

    def _step(
        self,
        private: bool,
        panel: Index,
        input: Index,
        inner: int,
        sums: list[list[Var]],
    ) -> None:
        """Multiply one input of every row with the weights of 16 outputs."""
        writer = self.writer
        weights = writer.wide(self.weight(self.output(panel), input))
        for m, line in enumerate(sums):
            x = writer.wide(self._input(private, number(m), input))
            add_product(writer, line[inner % len(line)], x, weights)


def each(writer: Writer, size: int, body: Callable[[Index], None]) -> None:
    """Call ``body`` with every place below ``size``: whole vectors, then single elements."""
    whole = size // LANES
    if whole:
        with writer.loop(Axis("v", whole), 0, whole), writer.lanes(Axis("lane", LANES)):
            body(axis("v", whole) * LANES + axis("lane", LANES))
    for place in range(whole * LANES, size):
        with writer.scope():
            body(number(place))
