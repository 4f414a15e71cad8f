"""Contractions of many rows by matrix instructions, where these give what f32 arithmetic gives.

Activations in f32 become three bf16 each, whose products with the weight are exact: a weight in
bf16 is taken as it lies, one in f16 is two bf16, one of 4 or 8 bits is a small whole number until
its sums are scaled. Activations that are bf16 themselves are one.
"""

from __future__ import annotations

from collections.abc import Sequence

from ptir.codegen.expressions.expr import Expr, Load, constant
from ptir.codegen.expressions.index import Index, axis
from ptir.codegen.families.linear.gemm_cooperative import CooperativeGemm
from ptir.codegen.schedules.kernel import EmitContext, Fusion, Kernel, finish_kernel
from ptir.codegen.schedules.mma_operands import (
    EXACT,
    MmaOperand,
    Words,
    as_they_lie,
    in_words,
    mma_operand,
    narrowed,
    paired,
    split,
)
from ptir.codegen.schedules.mma_shared_tiles import DEPTH
from ptir.codegen.schedules.mma_tile import Contraction, MmaTile, Recompute, shape_for
from ptir.codegen.weights.panels import LANES, UNPACKED
from ptir.types import BF16, F16, F32, U32


class MmaGemm(CooperativeGemm):
    """Many rows: a workgroup per tile, its sums in the registers of subgroups."""

    def __init__(self, fusion: Fusion, context: EmitContext) -> None:
        super().__init__(fusion, context)
        self.contraction = self._contraction()
        self.shape = None if self.contraction is None else shape_for(context, self.contraction)

    def kernel(self) -> Kernel:
        """A workgroup per tile."""
        assert self.contraction is not None and self.shape is not None
        tile = MmaTile(self.context, self.writer, self.contraction, self.shape)
        tile.write(axis("item", tile.count), self.finish_sum)
        return finish_kernel(
            self.fusion, self.writer, tile.count, workgroup_size=tile.workgroup_size
        )

    def _contraction(self) -> Contraction | None:
        """The product as instructions take it, or None where they are not exact."""
        right = self._right()
        if right is None:
            return None
        left, inputs, per = self._left(), self.linear.inputs, self.linear.per
        is_split = left.parts > 1 or right.parts > 1
        again = Recompute(
            lambda row, output, step: self._factors(row, output, step * per), inputs // per
        )
        return Contraction(
            BF16,
            left,
            right,
            self.panels.outputs,
            inputs,
            None if self.linear.quantized is None else self._scale,
            again if is_split else None,
        )

    def _factors(self, row: Index, output: Index, input: Index) -> list[tuple[Expr, Expr]]:
        """Activations and weights in f32, as many as a word holds."""
        weights = self._weights(output, input)
        return [(self.activation(row, input + n), weight) for n, weight in enumerate(weights)]

    # --- activations ---

    def _left(self) -> MmaOperand:
        """Rows of activations: one bf16 where they were rounded to it, else three."""
        graph, lhs = self.graph, self.linear.lhs
        source = narrowed(graph, lhs)
        dtype = graph.type(source).dtype
        if dtype != BF16:
            source, dtype = lhs, F32
        stored = self.context.is_materialized
        if stored(lhs) and not stored(source):
            source = lhs  # what it is a cast of may be no expression of what lies in memory
        rows = self.linear.rows
        side = mma_operand(dtype, lambda row, k: self.element(source, row, k), rows, True, BF16)
        example = axis("row", rows), axis("pair", self.linear.inputs // 2)
        return in_words(side, example)

    # --- weights ---

    def _right(self) -> MmaOperand | None:
        quantized, outputs = self.linear.quantized, self.panels.count * LANES
        if quantized is not None:
            fits = quantized.whole_zero is not None and quantized.group % DEPTH == 0
            fits = fits and quantized.is_whole
            pairs = quantized.per // 2
            return MmaOperand(self._raised, self._whole, outputs, False, pairs) if fits else None
        if self.panels.dtype == BF16:
            return MmaOperand(self._word, as_they_lie, outputs, False, lies=True)
        if self.panels.dtype == F16:
            parts, _ = EXACT[F16]
            return MmaOperand(self._halves, split(parts), outputs, False, parts=parts)
        return None

    def _word(self, output: Index, pair: Index) -> Sequence[Expr]:
        """The word of two inputs of an output."""
        return [Load(U32, self.linear.packed, self.panels.word(output, pair * 2))]

    def _halves(self, output: Index, pair: Index) -> Sequence[Expr]:
        """The two weights in f32."""
        (word,) = self._word(output, pair)
        return [UNPACKED[self.panels.dtype](word, n) for n in range(2)]

    def _raised(self, output: Index, word: Index) -> Sequence[Expr]:
        """The words of a chunk of a quantized weight."""
        return self.quantized.chunk(output, word, self.builder).words()

    def _whole(self, found: Sequence[Expr]) -> Words:
        """The values of a chunk above their zero point: small whole numbers, exact in bf16."""
        quantized, chunk = self.quantized, self.quantized.chunk_of(found)
        below = constant(F32, quantized.unit - (quantized.whole_zero or 0))
        values = [quantized.biased(chunk, n) - below for n in range(quantized.per)]
        return [[paired(*pair)] for pair in zip(values[::2], values[1::2], strict=True)]

    def _scale(self, output: Index, slice: Index) -> Expr:
        """What the sums of a slice are multiplied with."""
        group = slice // (self.quantized.group // DEPTH)
        return self.quantized.scaled(self.builder, output, group)
