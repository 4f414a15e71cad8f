"""A depthwise convolution that computes its operand: the convolution in front of it.

Inverted bottlenecks (Sandler et al. 2018, "MobileNetV2") widen an image several times before a
depthwise convolution, and networks that use them begin with a convolution of few channels. The wide
image is never stored: a piece of the depthwise convolution computes the rows that it is about to
read into its copy of the operand, which stays in a core's cache.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from ptir.codegen.expressions.expr import constant
from ptir.codegen.expressions.index import ZERO, Index, axis, number
from ptir.codegen.families.convolution.convolving import LANE, Ahead, below
from ptir.codegen.families.convolution.match import Detail, Tiling
from ptir.codegen.families.convolution.serial import Dense, Depthwise, vectors_of
from ptir.codegen.fusion.graph import Graph
from ptir.codegen.kernel_ir.conditions import less
from ptir.codegen.kernel_ir.values import Read, Splat
from ptir.codegen.schedules.kernel import EmitContext, Fusion, scratch_value
from ptir.codegen.weights.filters import Convolution
from ptir.codegen.weights.panels import LANES
from ptir.ops.schedules import CONV2D_WINOGRAD
from ptir.types import F32

LARGE: Final = 1 << 18
"""Bytes of an operand that does not stay in a core's cache until it is read."""
NARROW: Final = 14
"""Pixels of a row that fill a tile; several rows of fewer are one only where they are stored."""
FEW_PRODUCTS: Final = 64
"""Most products behind an element that are done again where pieces overlap, but for 1x1 windows."""


def prologue(graph: Graph, fusion: Fusion, made: Mapping[int, Fusion]) -> tuple[int, Fusion] | None:
    """The convolution whose result a depthwise one reads, and that value."""
    shape: Convolution = fusion.detail.shape
    found = made.get(shape.x)
    if graph.cooperative or not shape.is_depthwise or found is None:
        return None
    if found.family != "convolution":
        return None
    before: Detail = found.detail
    pays = graph.type(shape.x).nbytes > LARGE and shape.dimensions[2].size >= NARROW
    known = before.shape.x in made or before.shape.x not in graph.maker
    fits = before.panels is not None and before.panels.dtype == F32 and shape.channels % LANES == 0
    is_direct = graph.block.instructions[before.position].name != CONV2D_WINOGRAD
    if not (pays and known and fits and is_direct and _is_cheap(before.shape)):
        return None
    return shape.x, found


def _is_cheap(shape: Convolution) -> bool:
    """Whether every pixel of the result is made of the same pixel alone, or of few products."""
    plain = all(
        dimension.window == dimension.stride == dimension.base_dilation == 1
        and dimension.low == dimension.high == 0
        for dimension in shape.dimensions
    )
    return shape.groups == 1 and (plain or shape.inputs <= FEW_PRODUCTS)


class Producer(Dense):
    """The convolution in front, row by row, in the kernel of the one that reads its result."""

    def __init__(self, fusion: Fusion, context: EmitContext, consumer: ProducedDepthwise) -> None:
        super().__init__(fusion, context)
        self.writer, self.workgroups = consumer.writer, consumer.workgroups
        self.source = scratch_value(consumer.fusion, 2)

    def choose(self) -> Tiling:
        """A row at a time."""
        shape, tiles = self.shape, self.context.tiles
        _, height, width = shape.places
        count = -(-shape.outputs // LANES)
        panels = min(tiles.convolution_panels, count)
        wide = -(-width // -(-width // tiles.convolution_pixels))
        across = -(-count // panels)
        tile = 1, wide, panels, across, 1
        return Tiling(1, across, *tile, height, 1, shape.channels, not self.is_direct())

    def row(self, batch: Index, deep: Index, row: Index) -> None:
        """Begin a row of the result: the rows of the operand under it, unless read in place."""
        self.slab, self.row_piece = batch * self.shape.places[0] + deep, row
        if not self.direct:
            self.copy()

    def panels_ahead(self, weight: Read, place: tuple[Index, Index]) -> list[Ahead]:
        """None: all panels are used for every row."""
        return []


class ProducedDepthwise(Depthwise):
    """A depthwise convolution while its kernel is written, and the convolution before it."""

    def __init__(self, fusion: Fusion, context: EmitContext) -> None:
        assert fusion.prologue is not None
        self.before: Convolution = fusion.prologue.detail.shape
        super().__init__(fusion, context)
        self.producer = Producer(fusion.prologue, context, self)

    def is_direct(self) -> bool:
        """Nothing of the operand is in memory."""
        return False

    @property
    def made_of(self) -> int:
        """The products behind an element of the image before it."""
        return self.before.inputs

    @property
    def work(self) -> int:
        """Vectors of products, those of the operand among them."""
        return super().work + vectors_of(self.before)

    @property
    def blocks(self) -> tuple[int, ...]:
        """The copy of the producer's own operand besides."""
        producer = self.producer
        return (*super().blocks, 1 if producer.direct else self.workgroups * producer.block)

    def elements(
        self, batch: Index, found: Sequence[Index], begin: Index, part: tuple[int, int]
    ) -> None:
        """The piece's channels of one row of the operand, in tiles of pixels and panels."""
        cut = self.cut
        most = min(cut.tiles, self.context.tiles.convolution_panels)
        last = cut.across - (cut.tile_pieces - 1) * cut.tiles
        step = most if last == cut.tiles or last % most == cut.tiles % most == 0 else 1
        deep, row = found
        place = self.named(row, self.shape.dimensions[1].size)
        begin = self.named(begin, self.block)
        self.producer.row(batch, deep, place)
        whole, left = divmod(cut.tiles, step)
        with self.over("w", whole) as tile:
            self._panels_of(place, begin, part, (tile * step, step))
        if left:
            with self.writer.scope():
                self._panels_of(place, begin, part, (number(whole * step), left))

    def _panels_of(
        self, row: Index, begin: Index, part: tuple[int, int], panels: tuple[Index, int]
    ) -> None:
        """Some of the piece's panels, of which the last piece may have fewer."""
        cut, (first, count), (own, high) = self.cut, part, panels
        panel = self.named(self.tile_piece * cut.tiles + own, cut.tile_pieces * cut.tiles)
        is_beyond = panel.high + high - 1 >= cut.across
        groups = -(-count // self.context.tiles.convolution_pixels)
        wide = -(-count // groups)
        whole, left = divmod(count, wide)
        with self.writer.when(less(panel + (high - 1), cut.across) if is_beyond else None):
            at = below(panel, cut.across - high + 1), own, high
            with self.over("x", whole) as column:
                self._tile_of(row, begin, (column * wide, wide, first), at)
            if left:
                with self.writer.scope():
                    self._tile_of(row, begin, (number(whole * wide), left, first), at)

    def _tile_of(
        self,
        row: Index,
        begin: Index,
        part: tuple[Index, int, int],
        panels: tuple[Index, Index, int],
    ) -> None:
        """The sums of some pixels and panels in registers, and what they come to in the copy."""
        writer, producer = self.writer, self.producer
        (column, wide, first), (panel, own, high) = part, panels
        columns = [column + (first + n) for n in range(wide)]
        zero = Splat(constant(F32, 0.0))
        with writer.scope():
            sums = [[writer.declare(zero, writer.name("a")) for _ in range(high)] for _ in columns]
            producer.sums(ZERO, panel, sums, [(ZERO, one) for one in columns])
            with writer.lanes(LANE):
                for n, line in enumerate(sums):
                    pixel = producer.pixel(row, columns[n])
                    for p, total in enumerate(line):
                        output = (panel + p) * LANES + axis("lane", LANES)
                        to = begin + (column + n) * self.cut.pitch + (own + p) * LANES
                        found = producer.finished(pixel, output, total)
                        self.put(to + axis("lane", LANES), found)
