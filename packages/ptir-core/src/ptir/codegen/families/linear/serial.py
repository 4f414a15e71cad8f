"""What serial schedules share: a tile of outputs in registers, along the inputs or by groups.

A schedule says where weights and activations are found, and what a group's sums begin with and
come to; the loops over rows, panels and sums are here.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Final, NamedTuple, TypeAlias

from ptir.codegen.expressions.elementwise import cast
from ptir.codegen.expressions.expr import Apply, Expr, Load, Var, constant
from ptir.codegen.expressions.index import ZERO, Axis, Index, axis, number
from ptir.codegen.families.linear.parts import LinearEmitter
from ptir.codegen.weights.panels import LANES
from ptir.types import F32, U32

ZERO_SUM: Final = constant(F32, 0.0)
Sums: TypeAlias = Sequence[Sequence[Sequence[Var]]]
"""The vectors that are summed for each panel of each row of a tile."""


class Outputs(NamedTuple):
    """A tile: ``rows`` of activations from ``row`` on, ``panels`` of weights from ``panel`` on."""

    row: Index
    rows: int
    panel: Index
    panels: int
    slot: Index = ZERO
    """The first row's place among those that a workgroup prepared."""


class Serial(LinearEmitter):
    """A contraction whose sums are in the registers of one thread."""

    @cached_property
    def dot(self) -> str:
        """The dot product of words that multiplies them; none where numbers are multiplied."""
        return "" if self.linear.rounded is None else self.linear.rounded.dot

    @cached_property
    def unit(self) -> int:
        """Inputs that are multiplied at once along the inputs: pairs of bf16 are."""
        return 2 if self.dot == "dot_bf16" else 1

    @property
    def accumulators(self) -> int:
        """Sums of an output that take turns."""
        return 1

    def output(self, panel: Index) -> Index:
        """Where the 16 outputs of a panel lie in memory."""
        return panel * LANES + axis("lane", LANES)

    def begun(self, name: str, panels: int, starts: Sequence[Sequence[Expr]]) -> Sums:
        """Declare sums that begin with a row's ``starts`` in every panel."""
        writer = self.writer

        def held(m: int, p: int) -> list[Var]:
            each = enumerate(starts[m], p * len(starts[m]))
            return [writer.declare(writer.wide(start), f"{name}{m}_{n}") for n, start in each]

        return [[held(m, p) for p in range(panels)] for m in range(len(starts))]

    def multiply(
        self,
        sums: Sums,
        count: int,
        weight: Callable[[int, int], Expr],
        factors: Callable[[int, int], Sequence[Expr]],
    ) -> None:
        """Multiply ``count`` weights of every panel with activations of every row.

        ``weight`` is asked by panel and number, ``factors`` by row and number: one, or several that
        have sums of their own.
        """
        op, writer = self.dot or "fma", self.writer
        for n in range(count):
            weights = [writer.wide(weight(p, n)) for p in range(len(sums[0]))]
            for m, line in enumerate(sums):
                found = factors(m, n)
                for place, x in enumerate(found, n % self.accumulators * len(found)):
                    for held, w in zip(line, weights, strict=True):
                        one = held[place]
                        args = (one, w, x) if self.dot else (x, w, one)
                        writer.assign(one, Apply(one.dtype, op, *args))

    def along_inputs(self, tile: Outputs, step: int) -> Sums:
        """The sums of all inputs, ``step`` of them in one pass of the loop."""
        writer, steps = self.writer, self.linear.inputs // step
        sums = self.begun("a", tile.panels, [[ZERO_SUM] * self.accumulators] * tile.rows)
        first = axis("k", steps) * step
        with writer.each("k", steps), writer.lanes(Axis("lane", LANES)):
            self.multiply(
                sums,
                step // self.unit,
                lambda p, n: self.weight_at(tile.panel, p, first + n * self.unit),
                lambda m, n: [self.x_at(tile.row + m, first + n * self.unit)],
            )
        return sums

    def weight_at(self, panel: Index, p: int, input: Index) -> Expr:
        """The weights of an input in a tile's panel ``p``, or the words of what is multiplied."""
        output = self.output(panel + p)
        if self.unit > 1:
            return Load(U32, self.linear.packed, self.panels.word(output, input))
        return self.weight(output, input)

    def x_at(self, row: Index, input: Index) -> Expr:
        """The value of an activation, or the word of what is multiplied at once."""
        if self.unit > 1:
            return self.writer.element(self.stored_word(row, input // self.unit))
        return self.writer.wide(self.activation(row, input))


class RowGroup(NamedTuple):
    """What is known of a group of a row's activations."""

    starts: Sequence[Expr]
    """What the sums of an output begin with."""
    unit: Expr = constant(F32, 1.0)
    """What its sums are multiplied with, beside the scale of the weight."""
    total: Expr | None = None
    """The sum of the activations, where the weight has a bias of its own."""


class Grouped(Serial):
    """One whose weight is quantized: sums are finished group by group."""

    def by_groups(self, tile: Outputs) -> Sums:
        """The results of a tile: one vector for each panel of a row."""
        writer, together = self.writer, self.groups_together
        results = self.begun("y", tile.panels, [[ZERO_SUM]] * tile.rows)
        with writer.each("h", self.groups // together) as h, writer.lanes(Axis("lane", LANES)):
            for n in range(together):
                self._add_group(tile, h * together + n, results, f"a_{n}_" if n else "a")
        return results

    def _add_group(self, tile: Outputs, group: Index, results: Sums, name: str) -> None:
        """Add the sums of one group, which are called so, scaled."""
        writer = self.writer
        rows = [self.row_group(tile, m, group) for m in range(tile.rows)]
        sums = self.begun(name, tile.panels, [row.starts for row in rows])
        self.multiply_group(tile, group, sums)
        for p in range(tile.panels):
            step = writer.value(self.step(tile.panel, p, group))
            for row, line, found in zip(rows, sums, results, strict=True):
                (result,) = found[p]
                self.scale(result, line[p], step, row.unit)
                if row.total is not None:
                    both = self.offset(tile.panel, p, group), row.total
                    writer.add_product(result, *map(writer.wide, both))

    def multiply_group(self, tile: Outputs, group: Index, sums: Sums) -> None:
        """Add the products of a group to its sums."""
        for word in range(self.quantized.group // self.quantized.per):
            self.multiply_word(tile, group, number(word), sums)

    def multiply_word(self, tile: Outputs, group: Index, word: Index, sums: Sums) -> None:
        """Multiply the parts of one of a group's words of every panel."""
        at = group * (self.quantized.group // self.quantized.per) + word
        parts = [self.parts_of(tile.panel, p, at) for p in range(tile.panels)]
        count = len(parts[0])
        self.multiply(
            sums,
            count,
            lambda p, n: parts[p][n],
            lambda m, n: self.factors(tile, m, group, word * count + n),
        )

    def step(self, panel: Index, p: int, group: Index) -> Expr:
        """The scale of a group in a tile's panel ``p``."""
        return self.quantized.scaled(self.builder, self.output(panel + p), group)

    def offset(self, panel: Index, p: int, group: Index) -> Expr:
        """The bias of a group in a tile's panel ``p``."""
        return self.quantized.offset(self.builder, self.output(panel + p), group)

    def parts_of(self, panel: Index, p: int, word: Index) -> Sequence[Expr]:
        """What a word of a tile's panel ``p`` is multiplied as: words of bytes or raised values."""
        found = self.quantized.chunk(self.output(panel + p), word, self.builder)
        if self.dot:
            return self.quantized.bytes_of(found)
        return [self.quantized.biased(found, place) for place in range(self.quantized.per)]

    @abstractmethod
    def factors(self, tile: Outputs, m: int, group: Index, part: Index) -> Sequence[Expr]:
        """What a group's part of a number is multiplied with in a tile's row ``m``."""

    @abstractmethod
    def row_group(self, tile: Outputs, m: int, group: Index) -> RowGroup:
        """What is known of a group of a tile's row ``m``."""

    @abstractmethod
    def scale(self, result: Var, sums: Sequence[Var], step: Expr, unit: Expr) -> None:
        """Add what a group's sums come to, times step and unit, to a result."""


class Int8Loops(Grouped):
    """One whose activations are rounded to bytes."""

    def known(self, scale: Expr, total: Expr) -> RowGroup:
        """What is known of a group with a scale, whose bytes come to a total."""
        starts = [self.quantized.start(total)]
        if self.quantized.whole_zero is not None:
            return RowGroup(starts, scale)
        return RowGroup(starts, scale, scale * cast(F32, total))

    def scale(self, result: Var, sums: Sequence[Var], step: Expr, unit: Expr) -> None:
        """Add the sum of products of bytes, scaled."""
        factor = self.writer.wide(step * unit)
        self.writer.add_product(result, Apply(F32, "convert", sums[0]), factor)
