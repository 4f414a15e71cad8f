"""The cooperative gemm, of many rows: tiles of a workgroup, weights made floats on the way."""

from __future__ import annotations

from collections.abc import Sequence

from ptir.codegen.expressions.expr import Expr
from ptir.codegen.expressions.index import Index, axis
from ptir.codegen.families.linear.parts import LinearEmitter
from ptir.codegen.schedules.kernel import Kernel, finish_kernel
from ptir.codegen.schedules.tile import Operand, Tile
from ptir.types import F32


class CooperativeGemm(LinearEmitter):
    """Many rows: activations and weights meet in shared memory."""

    def kernel(self) -> Kernel:
        """A workgroup per tile."""
        linear, outputs = self.linear, self.panels.outputs
        tile = Tile(self.context, self.writer, F32, (linear.rows, outputs, linear.inputs))
        tile.write(
            axis("item", tile.count),
            Operand(lambda row, k: [self.activation(row, k)], deep=True),
            Operand(self._weights, deep=False, per=linear.per),
            self.finish_sum,
        )
        return finish_kernel(
            self.fusion, self.writer, tile.count, workgroup_size=tile.workgroup_size
        )

    def _weights(self, output: Index, input: Index) -> Sequence[Expr]:
        """The weights in one word."""
        quantized = self.linear.quantized
        if quantized is None:
            return [self.weight(output, input + n) for n in range(self.panels.per)]
        group = input // quantized.group
        return quantized.dequantized(self.builder, output, group, input // quantized.per)
