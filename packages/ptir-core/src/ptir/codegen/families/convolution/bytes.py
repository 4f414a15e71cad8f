"""Convolutions of bytes by dot products: images of words of four channels, filters in panels.

The image is padded already, so it is read where it is. Otherwise they go as convolutions of floats
do, tiles of pixels and panels in registers: a word of an image meets the words of 16 filters.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ptir.codegen.expressions.expr import Apply, Expr, Load, Var
from ptir.codegen.expressions.index import Index, axis, unravel_index
from ptir.codegen.expressions.unpacked import UNPACK
from ptir.codegen.families.convolution.match import Detail
from ptir.codegen.families.convolution.serial import Dense
from ptir.codegen.fusion.graph import Graph
from ptir.codegen.kernel_ir.values import Read
from ptir.codegen.schedules.epilogue import epilogue
from ptir.codegen.schedules.kernel import EmitContext, Fusion, Kernel
from ptir.codegen.weights.filters import CHANNEL, OUTPUT, Convolution
from ptir.codegen.weights.panels import LANES, panels_of
from ptir.codegen.weights.rounded import DOTS
from ptir.ops.rounded import PER_WORD, WINDOWS
from ptir.ops.sliding import WindowDimension, window_dimensions
from ptir.types import I32, U32


def match(graph: Graph, position: int) -> Fusion | None:
    """The fusion of a convolution of bytes and its epilogue."""
    made = graph.block.instructions[position]
    unpack = graph.instruction(made.operands[1])
    assert unpack is not None and unpack.name == UNPACK, "weights are packed (``settled``)"
    packed = unpack.operands[0]
    panels = panels_of(graph.type(packed), unpack.attributes)
    detail = Detail(position, _in_words(graph, position), packed, panels)
    whole, left = divmod(panels.outputs, LANES)
    pixels = axis("m", made.types[0].size // panels.outputs) * panels.outputs
    outputs = [axis("p", whole) * LANES + axis("lane", LANES)] if whole else []
    places = [pixels + one for one in outputs]
    places += [pixels + (whole * LANES + place) for place in range(left)]
    found = epilogue(graph, position, places)
    reads = tuple(sorted({made.operands[0], packed} | found.inputs))
    return Fusion("byte_convolution", found.instructions, reads, (found.output,), detail, (packed,))


def _in_words(graph: Graph, position: int) -> Convolution:
    """The convolution of words: one is four channels."""
    made = graph.block.instructions[position]
    x, weight = made.operands
    batch, *sizes, channels = graph.type(x).shape
    found = window_dimensions(
        sizes,
        made.attributes["window"],
        strides=made.attributes["strides"],
        low=(0, 0),
        high=(0, 0),
        window_dilation=made.attributes["dilation"],
    )
    dimensions = (WindowDimension(1, 1), found[0], found[1])
    words, outputs = channels // PER_WORD, made.types[0].shape[-1]
    roles = (OUTPUT, 0, 1, CHANNEL)
    return Convolution(x, weight, None, batch, words, outputs, 1, dimensions, 2, roles)


def materialized(graph: Graph, fusion: Fusion, made: frozenset[int]) -> Collection[int]:
    """The image, whose bytes are read as words."""
    return (fusion.detail.shape.x,)


class DenseBytes(Dense):
    """Words of an image, each broadcast to 16 outputs: four products for a lane at once."""

    sum_dtype = I32

    @property
    def keeps(self) -> bool:
        """No workgroup makes panels of its own."""
        return False

    def is_direct(self) -> bool:
        """Padded already, channels side by side."""
        return True

    @property
    def is_run(self) -> bool:
        """Nothing lies between pixels."""
        return self.shape.dimensions[2].window_dilation == 1

    def element(self, row: Index, column: Index, taps: Sequence[Index], channel: Index) -> Expr:
        """The word that a tap sees from a pixel of the piece."""
        shape = self.shape
        _, rows, columns = shape.dimensions
        batch, _ = unravel_index(self.slab, (shape.batch, 1))
        first = self.row_piece * self.cut.rows + row
        down = first * rows.stride + taps[1] * rows.window_dilation
        along = column * columns.stride + taps[2] * columns.window_dilation
        line = (batch * rows.size + down) * columns.size + along
        return Load(U32, shape.x, line * shape.channels + channel)

    def weight(self, group: Index, panel: Index, number_: int, input: Index) -> Expr:
        """The words of the 16 outputs of a panel of the tile, for a word of the image."""
        panels, packed = self.detail.panels, self.detail.packed
        assert panels is not None and packed is not None
        output = (panel + number_) * LANES + axis("lane", LANES)
        return Load(U32, packed, panels.word(output, input * PER_WORD))

    def broadcast(self, x: Read) -> Expr:
        """The word where it is in memory: dot instructions take it from there."""
        return x

    def add(self, total: Var, x: Expr, weight: Expr) -> None:
        """Four products more, in every lane."""
        self.writer.assign(total, Apply(I32, DOTS[WINDOWS], total, weight, x))


def emit(fusion: Fusion, context: EmitContext) -> Kernel:
    """The only schedule: devices with the instruction are CPUs."""
    return DenseBytes(fusion, context).kernel()
