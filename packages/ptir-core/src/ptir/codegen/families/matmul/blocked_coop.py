"""The coop schedule of a product of many rows: tiles of a group, weights made floats on the way."""

from __future__ import annotations

from collections.abc import Sequence

from ptir.codegen.expressions.expr import Expr
from ptir.codegen.expressions.index import Index, axis
from ptir.codegen.families.matmul.parts import Writing
from ptir.codegen.schedules.kernel import Kernel, finished
from ptir.codegen.schedules.tile import Operand, Tile
from ptir.types import F32


class TeamBlocked(Writing):
    """Many rows: activations and weights meet in shared memory."""

    def kernel(self) -> Kernel:
        """A group per tile."""
        product, outputs = self.product, self.panels.outputs
        tile = Tile(self.site, self.writer, F32, (product.rows, outputs, product.inputs))
        tile.write(
            axis("item", tile.count),
            Operand(lambda row, k: [self.activation(row, k)], deep=True),
            Operand(self._weights, deep=False, per=product.per),
            self.finish_sum,
        )
        return finished(self.group, self.writer, tile.count, members=tile.members)

    def _weights(self, output: Index, input: Index) -> Sequence[Expr]:
        """The weights in one word."""
        quantized = self.product.quantized
        if quantized is None:
            return [self.weight(output, input + n) for n in range(self.panels.per)]
        group = input // quantized.group
        return quantized.dequantized(self.builder, output, group, input // quantized.per)
