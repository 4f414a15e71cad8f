"""The coop schedule of a product of many rows: tiles of a group, weights made floats on the way."""

from __future__ import annotations

from collections.abc import Sequence

from ptir.codegen.expressions.expr import Apply, Expr, constant
from ptir.codegen.expressions.index import Index, axis
from ptir.codegen.families.matmul.parts import Writing
from ptir.codegen.schedules.kernel import Kernel, finished
from ptir.codegen.schedules.tile import Operand, Tile
from ptir.codegen.weights.quantized import Quantized
from ptir.types import F32


class TeamBlocked(Writing):
    """Many rows: activations and weights meet in shared memory."""

    def kernel(self) -> Kernel:
        """A group per tile."""
        product, outputs = self.product, self.panels.outputs
        tile = Tile(self.site, self.writer, F32, (product.rows, outputs, product.inputs))
        quantized = product.quantized
        per = self.panels.per if quantized is None else quantized.per
        tile.write(
            axis("item", tile.count),
            Operand(lambda row, k: [self.activation(row, k)], deep=True),
            Operand(self._weights, deep=False, per=per),
            self.finish_sum,
        )
        return finished(self.group, self.writer, tile.count, members=tile.members)

    def _weights(self, output: Index, input: Index) -> Sequence[Expr]:
        """The weights in one word."""
        quantized = self.product.quantized
        if quantized is None:
            return [self.weight(output, input + n) for n in range(self.panels.per)]
        return self._dequantized(quantized, output, input)

    def _dequantized(self, quantized: Quantized, output: Index, input: Index) -> list[Expr]:
        """The numbers in one word of a quantized weight."""
        word = input // quantized.per
        group = word // (quantized.group // quantized.per)
        step = quantized.scaled(self.builder, output, group)
        raised = Apply(F32, "mul", step, constant(F32, -quantized.unit))
        start = Apply(F32, "add", raised, quantized.offset(self.builder, output, group))
        held = quantized.word(output, word)
        return [
            Apply(F32, "fma", quantized.raised(held, place), step, start)
            for place in range(quantized.per)
        ]
