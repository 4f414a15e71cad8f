"""A depthwise convolution that computes its operand: the 1x1 convolution in front of it.

Inverted bottlenecks (Sandler et al. 2018, "MobileNetV2") widen an image several times before a
depthwise convolution. The wide image is never stored: a piece of the depthwise convolution computes
the rows that it is about to read into its copy of the operand, which stays in a core's cache.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from ptir.codegen.expressions.expr import Expr, Var, constant
from ptir.codegen.expressions.index import Index, axis, number
from ptir.codegen.families.convolution.convolving import LANE, Convolving, below
from ptir.codegen.families.convolution.match import Detail
from ptir.codegen.families.convolution.serial import Depthwise, vectors_of
from ptir.codegen.fusion.graph import Graph
from ptir.codegen.kernel_ir.conditions import less
from ptir.codegen.kernel_ir.values import Splat
from ptir.codegen.schedules.kernel import EmitContext, Fusion
from ptir.codegen.weights.filters import Convolution
from ptir.codegen.weights.panels import LANES
from ptir.types import F32

LARGE: Final = 1 << 18
"""Bytes of an operand that does not stay in a core's cache until it is read."""
NARROW: Final = 14
"""Pixels of a row that fill a tile; several rows of fewer are one only where they are stored."""


def prologue(graph: Graph, fusion: Fusion, made: Mapping[int, Fusion]) -> tuple[int, Fusion] | None:
    """The 1x1 convolution whose result a depthwise one reads, and that value."""
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
    return (shape.x, found) if pays and known and fits and _is_pointwise(before.shape) else None


def _is_pointwise(shape: Convolution) -> bool:
    """Whether every pixel of the result is made of the same pixel alone, all its channels."""
    plain = all(
        dimension.window == dimension.stride == dimension.base_dilation == 1
        and dimension.low == dimension.high == 0
        for dimension in shape.dimensions
    )
    return plain and shape.groups == 1


class PointwiseDepthwise(Depthwise):
    """A depthwise convolution while its kernel is written, and the convolution before it."""

    def __init__(self, fusion: Fusion, context: EmitContext) -> None:
        assert fusion.prologue is not None
        self.before = Convolving(fusion.prologue, context)
        super().__init__(fusion, context)
        self.before.writer = self.writer

    def is_direct(self) -> bool:
        """Nothing of the operand is in memory."""
        return False

    @property
    def made_of(self) -> int:
        """The channels of the image before it."""
        return self.before.shape.inputs

    @property
    def work(self) -> int:
        """Vectors of products, those of the operand among them."""
        return super().work + vectors_of(self.before.shape)

    def elements(
        self, batch: Index, found: Sequence[Index], begin: Index, part: tuple[int, int]
    ) -> None:
        """The piece's channels of one row of the operand, in tiles of pixels and panels."""
        cut = self.cut
        most = min(cut.tiles, self.context.tiles.convolution_panels)
        last = cut.across - (cut.tile_pieces - 1) * cut.tiles
        step = most if last == cut.tiles or last % most == cut.tiles % most == 0 else 1
        deep, row = found
        place = deep, self.named(row, self.shape.dimensions[1].size)
        whole, left = divmod(cut.tiles, step)
        with self.over("w", whole) as tile:
            self._panels_of(batch, place, begin, part, (tile * step, step))
        if left:
            with self.writer.scope():
                self._panels_of(batch, place, begin, part, (number(whole * step), left))

    def _panels_of(
        self,
        batch: Index,
        place: tuple[Index, Index],
        begin: Index,
        part: tuple[int, int],
        panels: tuple[Index, int],
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
                self._tile_of(batch, place, begin, (column * wide, wide, first), at)
            if left:
                with self.writer.scope():
                    self._tile_of(batch, place, begin, (number(whole * wide), left, first), at)

    def _tile_of(
        self,
        batch: Index,
        place: tuple[Index, Index],
        begin: Index,
        part: tuple[Index, int, int],
        panels: tuple[Index, Index, int],
    ) -> None:
        """The sums of some pixels and panels in registers, and what they come to in the copy."""
        writer, shape = self.writer, self.before.shape
        (column, wide, first), (panel, own, high) = part, panels
        k, known = axis("k", shape.channels), dict[Index, Var]()
        at = [(*place, column + (first + n)) for n in range(wide)]
        with writer.scope():
            zero = Splat(constant(F32, 0.0))
            sums = [[writer.declare(zero, writer.name("a")) for _ in range(high)] for _ in at]
            xs = [self.before.builder.at(shape.x, shape.x_at(batch, one, k)) for one in at]
            weights = [self._weight(panel + p, k) for p in range(high)]
            self.multiply(
                shape.channels,
                sums,
                [self.ahead(x, False, known) for x in xs],
                [self.ahead(weight, True, known) for weight in weights],
            )
            with writer.lanes(LANE):
                for n, line in enumerate(sums):
                    pixel = self._pixel(batch, at[n])
                    for p, total in enumerate(line):
                        output = (panel + p) * LANES + axis("lane", LANES)
                        to = begin + (column + n) * self.cut.pitch + (own + p) * LANES
                        found = self.before.finished(pixel, output, total)
                        self.put(to + axis("lane", LANES), found)

    def _pixel(self, batch: Index, place: Sequence[Index]) -> Index:
        """A pixel's number in the operand."""
        _, height, width = self.before.shape.places
        _, row, column = place
        flat = (batch * height + row) * width + column
        return self.named(flat, self.before.shape.batch * height * width)

    def _weight(self, panel: Index, k: Index) -> Expr:
        """The weights of the 16 outputs of a panel for one channel."""
        detail: Detail = self.before.detail
        assert detail.panels is not None and detail.packed is not None
        return detail.panels.weight(detail.packed, panel * LANES + axis("lane", LANES), k)
