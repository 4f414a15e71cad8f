"""The schedule of one thread that a convolution gets."""

from __future__ import annotations

from ptir.codegen.families.convolution.match import Detail
from ptir.codegen.families.convolution.produced import ProducedDepthwise
from ptir.codegen.families.convolution.serial import Dense, Depthwise
from ptir.codegen.families.convolution.winograd import Winograd
from ptir.codegen.schedules.kernel import EmitContext, Fusion, Kernel
from ptir.ops.schedules import CONV2D_WINOGRAD


def emit(fusion: Fusion, context: EmitContext) -> Kernel:
    """That of Winograd's tiles, those for depthwise convolutions, or the one for all others."""
    detail: Detail = fusion.detail
    if context.graph.block.instructions[detail.position].name == CONV2D_WINOGRAD:
        return Winograd(fusion, context).kernel()
    if fusion.prologue is not None:
        return ProducedDepthwise(fusion, context).kernel()
    return (Depthwise if detail.shape.is_depthwise else Dense)(fusion, context).kernel()
