"""The cooperative gemv, of few rows: a workgroup per panel, its threads along the inputs.

Four threads side by side read one row of a panel, 64 bytes, as 16 bytes each: the words of four
outputs. The next four read the next row, so a workgroup reads what follows in memory. Each thread
sums four outputs of every row of activations; what threads with the same outputs hold is brought
together at the end. Activations that are not stored are computed into shared memory first, as many
inputs at a time as fit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Final

from ptir.codegen.expressions.expr import Cell, Coordinate, Expr, Var, constant
from ptir.codegen.expressions.index import Axis, Index, axis, number
from ptir.codegen.families.linear.parts import LinearEmitter
from ptir.codegen.families.reduction.rows import RowReduction
from ptir.codegen.families.reduction.rows_cooperative import CooperativeRows, fitting
from ptir.codegen.kernel_ir.conditions import less
from ptir.codegen.schedules.epilogue import builder_of
from ptir.codegen.schedules.kernel import EmitContext, Fusion, Kernel, finish_kernel
from ptir.codegen.schedules.workgroup import Workgroup, power_of_two
from ptir.codegen.weights.panels import LANES
from ptir.codegen.weights.quantized import Quantized
from ptir.types import F32, I32

OUTPUTS: Final = 4
"""Outputs of a thread: the words of 16 bytes."""
ACROSS: Final = LANES // OUTPUTS
"""Threads beside each other that share a row of a panel."""
LEAST: Final = 32
MOST: Final = 256
EACH: Final = 8
"""Rows of a panel from which another four threads pay."""
FLIGHT: Final = 32
"""Weights of an output that a thread holds at once, times rows of activations."""

Activation = Callable[[int, Index], Expr]
"""An activation by row and input."""


class CooperativeGemv(LinearEmitter):
    """Few rows: every weight is read once, in the order in which it lies in memory."""

    def __init__(self, fusion: Fusion, context: EmitContext) -> None:
        super().__init__(fusion, context)
        self.per = self.linear.per
        self.words = self.linear.inputs // self.per
        wanted = power_of_two(ACROSS * -(-self.words // EACH))
        most = MOST if self.linear.rows <= OUTPUTS else MOST // 2
        threads = min(max(LEAST, wanted), most, context.traits.max_workgroup_size)
        self.workgroup = Workgroup(self.writer, threads)
        self.along = threads // ACROSS
        self.items = self.panels.count
        """Workgroups."""
        self.panel: Index = axis("item", self.items)
        self.quarter = axis("quarter", ACROSS)
        self.sums = [
            [Var(F32, f"a{m}_{c}") for c in range(OUTPUTS)] for m in range(self.linear.rows)
        ]

    def kernel(self) -> Kernel:
        """A workgroup per panel."""
        writer, every = self.writer, [one for line in self.sums for one in line]
        self.find_panel()
        writer.declare_all(*((one, constant(F32, 0.0)) for one in every))
        writer.let_index(self.workgroup.local_id % ACROSS, ACROSS, "quarter")
        if self.is_stored:
            self._multiply(number(0), self.words, lambda m, k: self.activation(number(m), k))
        else:
            self._in_parts(self._activations())
        self.workgroup.sum(every, ACROSS)
        self._finish()
        return finish_kernel(self.fusion, writer, self.items, workgroup_size=self.workgroup.size)

    def find_panel(self) -> None:
        """Say which panel the workgroup has."""

    # --- activations ---

    def _activations(self) -> Activation:
        """What gives an activation, once the row programs in front have run."""
        prologue = self.fusion.prologue
        if prologue is None:
            return lambda m, place: self.activation(number(m), place)
        rows: RowReduction = prologue.detail
        bodies: list[CooperativeRows] = []
        for m in range(self.linear.rows):
            builder = builder_of(prologue, self.context)
            body = CooperativeRows(
                self.writer, builder, fitting(rows, 0), number(m), self.workgroup
            )
            body.stages()
            bodies.append(body)
        return lambda m, place: bodies[m].exit(rows.outputs[0], place)

    def _in_parts(self, activation: Activation) -> None:
        """Compute activations into shared memory, as many as fit, and multiply them."""
        writer, rows = self.writer, self.linear.rows
        folds = (self.workgroup.size * OUTPUTS + LANES) * rows
        left = (
            self.context.traits.shared_memory_bytes - writer.shared_bytes
        ) // F32.itemsize - folds
        part = min(self.words, max(self.along, left // (rows * self.per)))
        x = writer.shared(F32, rows * part * self.per)
        parts, rest = divmod(self.words, part)
        with writer.each("part", parts, no_unroll=True):
            self._one_part(x, activation, axis("part", parts) * part, part)
        if rest:
            self._one_part(x, activation, number(parts * part), rest)

    def _one_part(self, x: str, activation: Activation, first: Index, words: int) -> None:
        """The activations of so many words from ``first`` on, and the products with them."""
        writer, begin, size = self.writer, first * self.per, words * self.per
        for m in range(self.linear.rows):
            with self.workgroup.distribute(size, "k") as own:
                writer.put(x, own + m * size, activation(m, begin + own))
        writer.barrier()
        self._multiply(begin, words, lambda m, k: Cell(F32, x, k - begin + m * size))
        writer.barrier()

    # --- products ---

    def _multiply(self, first: Index, words: int, x: Activation) -> None:
        """Multiply the thread's words of those from input ``first`` on, several at a time."""
        writer = self.writer
        flight = FLIGHT // (self.per * self.linear.rows)
        flight = max(1, min(flight, words // self.along, OUTPUTS))
        w = writer.declare(Coordinate(I32, self.workgroup.local_id // ACROSS), writer.name("w"))
        at = Index({Axis(w.name, words): 1})
        for several in sorted({flight, 1}, reverse=True):
            inside = less(at + (several - 1) * self.along, words)
            with writer.while_true(w, inside, Coordinate(I32, at + several * self.along)):
                for n in range(several):
                    self._word(first + (axis(w.name, words) + n * self.along) * self.per, x)

    def _word(self, first: Index, x: Activation) -> None:
        """Multiply one word of each output of the thread: the inputs from ``first`` on."""
        writer, quantized, rows = self.writer, self.linear.quantized, range(self.linear.rows)
        inputs = [first + place for place in range(self.per)]
        weights = [self._weights(first // self.per, inputs, c) for c in range(OUTPUTS)]
        values = [[writer.scalar(x(m, k)) for k in inputs] for m in rows]
        for m in rows:
            if quantized is not None:
                self._scaled(quantized, m, first // self.per, weights, values[m])
                continue
            for c in range(OUTPUTS):
                for value, weight in zip(values[m], weights[c], strict=True):
                    writer.add_product(self.sums[m][c], value, weight)

    def _output(self, c: int) -> Index:
        return self.panel * LANES + self.quarter * OUTPUTS + c

    def _weights(self, word: Index, inputs: Sequence[Index], c: int) -> list[Expr]:
        """The weights in one word, of quantized ones raised."""
        writer, quantized = self.writer, self.linear.quantized
        with writer.vectorized_run(self.quarter, OUTPUTS, c):
            if quantized is None:
                found = [self.weight(self._output(c), input) for input in inputs]
            else:
                held = quantized.chunk(self._output(c), word, self.builder)
                found = [quantized.biased(held, place) for place in range(self.per)]
            return [writer.scalar(one) for one in found]

    def _scaled(
        self,
        quantized: Quantized,
        m: int,
        word: Index,
        weights: Sequence[Sequence[Expr]],
        values: Sequence[Expr],
    ) -> None:
        """Add the products of a word of each output, scaled."""
        writer = self.writer
        group = word // (quantized.group // self.per)
        total = reduce(lambda a, b: a + b, values)
        raised_by = constant(F32, (quantized.zero or 0.0) - quantized.unit)
        start = writer.scalar(raised_by * total)
        for c in range(OUTPUTS):
            output = self._output(c)
            step = writer.scalar(quantized.scaled(self.builder, output, group))
            offset = None
            if quantized.zero is None:
                offset = writer.scalar(quantized.offset(self.builder, output, group))
            with writer.scope():
                t = writer.declare(start, "t")
                for value, weight in zip(values, weights[c], strict=True):
                    writer.add_product(t, value, weight)
                writer.add_product(self.sums[m][c], t, step)
                if offset is not None:
                    writer.add_product(self.sums[m][c], writer.scalar(total), offset)

    # --- results ---

    def _finish(self) -> None:
        """The first threads put the sums down; an output of a row is finished by one thread."""
        writer, rows = self.writer, self.linear.rows
        held = writer.shared(F32, rows * LANES)
        with writer.when(less(self.workgroup.local_id, ACROSS)):
            for m, line in enumerate(self.sums):
                for c, one in enumerate(line):
                    writer.put(held, self.quarter * OUTPUTS + (m * LANES + c), one)
        writer.barrier()
        with self.workgroup.distribute(rows * LANES, "o") as own:
            self.finish_output(own // LANES, own % LANES, Cell(F32, held, own))

    def finish_output(self, row: Index, output: Index, held: Cell) -> None:
        """The epilogue of an output of the panel, where it is none that fills the last one."""
        writer, outputs = self.writer, self.panels.outputs
        row = writer.let_index(row, self.linear.rows)
        place = writer.let(Coordinate(I32, self.panel * LANES + output))
        with writer.when(less(place, outputs) if outputs % LANES else None):
            sum = writer.let(writer.element(held))
            self.finish_sum(row, axis(place.name, outputs), sum)
