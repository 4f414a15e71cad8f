"""What the schedules of the linear family share: the contraction, activations and epilogue."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, TypeVar

from ptir.codegen.expressions.expr import Coordinate, Expr, Load, Var
from ptir.codegen.expressions.index import Axis, Index, axis, number, unravel_index
from ptir.codegen.fusion.renumber import Position, Value
from ptir.codegen.kernel_ir.conditions import less
from ptir.codegen.kernel_ir.values import Lane
from ptir.codegen.schedules.epilogue import HeroKernel
from ptir.codegen.schedules.kernel import EmitContext, Fusion
from ptir.codegen.schedules.mma_operands import word_of
from ptir.codegen.schedules.tiles import FEW
from ptir.codegen.weights.grid_fields import GridWords, look_up_in_registers
from ptir.codegen.weights.panels import LANES, Panels
from ptir.codegen.weights.quantized import Quantized
from ptir.types import I32

HELD: Final = 16384
"""Most activations that a workgroup keeps to itself."""


def rounds_itself(rows: int, inputs: int) -> bool:
    """Whether a contraction rounds its activations to bytes in every workgroup."""
    return rows <= FEW and rows * inputs <= HELD * 4


@dataclass(frozen=True)
class RoundedActivations:
    """Activations that are rounded, and the dot product (``Dialect.dots``) that takes them.

    Bytes come with the values of their ``scales`` and ``sums``. Few rows are rounded to bytes in
    every workgroup: then ``lhs`` is what they are rounded from.
    """

    dot: str
    scales: Value = -1
    sums: Value = -1


@dataclass(frozen=True)
class Linear:
    """One contraction: activations ``lhs`` [rows, inputs], packed weights, and the epilogue."""

    position: Position
    lhs: Value
    packed: Value
    panels: Panels
    rows: int
    quantized: Quantized | None = None
    rounded: RoundedActivations | None = None

    @property
    def inputs(self) -> int:
        """Activations in a row."""
        return self.panels.inputs if self.quantized is None else self.quantized.inputs

    @property
    def per(self) -> int:
        """Inputs in a word of the weight."""
        return self.panels.per if self.quantized is None else self.quantized.per

    @property
    def is_gemv(self) -> bool:
        """Whether the rows are few, and not already bytes in memory."""
        return self.rows <= FEW and (self.rounded is None or self.rounded.scales < 0)

    @property
    def is_held(self) -> bool:
        """Whether a workgroup may keep the activations to itself, where they are not in memory."""
        return self.is_gemv and self.rows * self.inputs <= HELD

    @property
    def own(self) -> frozenset[int]:
        """What the contraction itself reads."""
        found = [self.lhs, self.packed]
        if self.quantized is not None:
            found.append(self.quantized.scale)
            if self.quantized.computed is not None:
                found += self.quantized.computed.own
            if self.quantized.zero is None or self.rounded is not None:
                found.append(self.quantized.bias)
        if self.rounded is not None:
            found += [value for value in (self.rounded.scales, self.rounded.sums) if value >= 0]
        return frozenset(found)


LinearT = TypeVar("LinearT", bound=Linear)


def in_registers(linear: LinearT, context: EmitContext) -> LinearT:
    """The contraction, a table of floats of its weight in registers where they can be permuted."""
    weight, dialect = linear.quantized, context.dialect
    if weight is None or weight.is_whole:
        return linear
    words, bytes_ = dialect.permutes_words, dialect.permutes_bytes
    weight = replace(weight, permutes_words=words, permutes_bytes=bytes_)
    return replace(linear, quantized=weight)


class LinearEmitter(HeroKernel):
    """What both schedules share: activations, weights, and the epilogue."""

    def __init__(self, fusion: Fusion, context: EmitContext) -> None:
        super().__init__(fusion, context)
        self.linear: Linear = in_registers(fusion.detail, context)
        self.panels: Panels = self.linear.panels
        self.tiles = context.tiles
        self.grid: GridWords | None = None
        quantized = self.linear.quantized
        computed = None if quantized is None else quantized.computed
        if computed is not None and context.dialect.permutes_bytes:
            self.grid = look_up_in_registers(
                self.graph, computed.value, self.builder, self.tiles.register_entries
            )

    @staticmethod
    def position_in(fusion: Fusion) -> int:
        """The position of the product."""
        linear: Linear = fusion.detail
        return linear.position

    @property
    def quantized(self) -> Quantized:
        """The weight, where it is quantized."""
        assert self.linear.quantized is not None
        return self.linear.quantized

    @property
    def groups(self) -> int:
        """Groups of a row of the quantized weight."""
        return self.quantized.inputs // self.quantized.group

    @property
    def groups_together(self) -> int:
        """Groups that loops write out, so that it is known which word of a lookup each one is."""
        words = self.quantized.group // self.quantized.per
        found = 1 if self.grid is None else max(1, self.grid.together // words)
        return found if self.groups % found == 0 else 1

    def workgroups(self, pieces: int) -> int:
        """Workgroups for ``pieces`` equal pieces of the whole contraction."""
        work = self.linear.rows * self.panels.outputs * self.linear.inputs
        return self.context.workgroups(pieces, work)

    def activation(self, row: Index, input: Index) -> Expr:
        """One activation as an expression of what is stored."""
        return self.element(self.linear.lhs, row, input)

    def element(self, value: int, row: Index, input: Index) -> Expr:
        """An element of a value that has the activations' shape."""
        at = unravel_index(row * self.linear.inputs + input, self.graph.type(value).shape)
        return self.builder.at(value, at)

    def weight(self, output: Index, input: Index) -> Expr:
        """One weight, or one per lane."""
        return self.panels.weight(self.linear.packed, output, input)

    def stored_word(self, row: Index, word: Index) -> Load:
        """A word of activations that lie in memory."""
        found = self.word_in_memory(row, word)
        assert found is not None, self.linear
        return found

    def word_in_memory(self, row: Index, word: Index) -> Load | None:
        """A word of neighbouring activations of 16 or 8 bits, if they lie in memory as one."""
        per = 32 // self.graph.type(self.linear.lhs).dtype.bits
        return word_of([self.activation(row, word * per + n) for n in range(2)])

    @property
    def is_stored(self) -> bool:
        """Whether the activations are a matrix in memory."""
        if self.fusion.prologue is not None:
            return False
        inputs = Axis("k", self.linear.inputs)
        expr = self.activation(axis("m", self.linear.rows), Index({inputs: 1}))
        return isinstance(expr, Load) and expr.index.coefficient(inputs) == 1

    def finish_sum(self, row: Index, output: Index, sum: Expr) -> None:
        """The epilogue and the store of one output, or one per lane."""
        self.store(row * self.panels.outputs + output, sum)

    def finish_panel(self, row: Index, panel: Index, sum: Var) -> None:
        """The epilogue of a panel's 16 outputs; the last panel may have fewer.

        Row and panel become variables, so that the epilogue's places are simple to compare.
        """
        whole, left = divmod(self.panels.outputs, LANES)
        writer, lane = self.writer, Axis("lane", LANES)
        row = writer.let_index(row, self.linear.rows)
        at = writer.let(Coordinate(I32, panel))
        if whole:
            with writer.when(less(at, whole) if left else None), writer.lanes(lane):
                output = axis(at.name, whole) * LANES + axis("lane", LANES)
                self.finish_sum(row, output, sum)
        if left:
            with writer.otherwise() if whole else writer.scope():
                for place in range(left):
                    self.finish_sum(row, number(whole * LANES + place), Lane(sum, place))
