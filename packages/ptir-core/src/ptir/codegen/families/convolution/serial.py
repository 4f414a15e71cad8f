"""The kernels of convolutions: pieces, tiles of pixels and panels, products, the epilogue."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Final, TypeAlias

from ptir.codegen.expressions.expr import (
    Apply,
    Const,
    Coordinate,
    Expr,
    Var,
    compare,
    constant,
)
from ptir.codegen.expressions.index import Axis, Index, axis, number, ravel_index
from ptir.codegen.families.convolution.convolving import LANE, Ahead, Sums, below, least, variable
from ptir.codegen.families.convolution.match import Tiling, choose_tiling
from ptir.codegen.families.convolution.operands import ConvolutionOperands
from ptir.codegen.kernel_ir.conditions import less
from ptir.codegen.kernel_ir.statements import Whole
from ptir.codegen.kernel_ir.values import Read, Splat
from ptir.codegen.schedules.kernel import EmitContext, Fusion, Kernel, finish_kernel
from ptir.codegen.weights.filters import Convolution
from ptir.codegen.weights.panels import LANES
from ptir.types import BOOL, F32, I32, DType, TensorType

FEW_TILES: Final = 8
"""Most tiles of pixels for which the panels of the next tile are fetched ahead."""
SHORT: Final = 1 << 14
"""Most floats of the panels of a tile that are."""
SHARED: Final = 1 << 16
"""More than any number of workgroups."""

Places: TypeAlias = Sequence[tuple[Index, Index]]
"""The row and column of each pixel of a tile, within the piece."""


def vectors_of(shape: Convolution) -> int:
    """Vectors of products of a convolution."""
    results = math.prod(shape.places) * shape.batch * shape.outputs
    return results * shape.inputs // LANES


class _Pieces(ConvolutionOperands, ABC):
    """What all schedules share."""

    sum_dtype: ClassVar[DType] = F32

    def __init__(self, fusion: Fusion, context: EmitContext) -> None:
        super().__init__(fusion, context)
        self.pieces = self.slabs * self.cut.row_pieces * self.cut.tile_pieces
        self.workgroups = context.workgroups(self.pieces, self.work)

    @property
    def work(self) -> int:
        """Vectors of products."""
        return vectors_of(self.shape)

    @property
    def made_of(self) -> int:
        """Products behind an element of the copy; 0: it lies in memory."""
        return 0

    def choose(self) -> Tiling:
        """Blocks of rows and panels, as many as there is work for."""
        context, copied = self.context, not self.is_direct()
        wanted = context.workgroups(SHARED, self.work)
        units = context.traits.compute_units
        return choose_tiling(self.shape, units, wanted, copied, context.tiles, self.made_of)

    def kernel(self) -> Kernel:
        """A loop over pieces."""
        writer, cut = self.writer, self.cut
        part = writer.work_range(self.pieces, self.workgroups)
        with writer.loop(Axis("q", self.pieces), *part, no_unroll=True):
            sizes = self.slabs, cut.row_pieces, cut.tile_pieces
            split = self.named_digits(axis("q", self.pieces), sizes)
            self.slab, self.row_piece, self.tile_piece = split
            if not self.direct:
                self.copy()
            self._panels()
        scratch = tuple(TensorType(F32, (size,)) for size in self.blocks)
        return finish_kernel(self.fusion, writer, self.workgroups, scratch)

    @property
    def blocks(self) -> tuple[int, ...]:
        """Floats of the kernel's scratch memories: copies of the operand, panels."""
        block = 1 if self.direct else self.workgroups * self.block
        return block, self.workgroups * self.kept if self.keeps else 1

    def _panels(self) -> None:
        """Every tile of panels of the piece, and for each every tile of pixels."""
        writer, cut = self.writer, self.cut
        count = cut.groups * cut.across
        ends: tuple[Whole, Whole] = 0, count
        if cut.tile_pieces > 1:
            first = self.named(self.tile_piece * cut.tiles, count)
            ends = first, least(first + cut.tiles, count)
        with writer.loop(Axis("p", count), *ends, no_unroll=True):
            group, tile = self.named_digits(axis("p", count), (cut.groups, cut.across))
            self._tile_of_panels(group, tile)

    def _tile_of_panels(self, group: Index, tile: Index) -> None:
        """The whole tiles, and the last one where it has fewer panels."""
        writer, cut = self.writer, self.cut
        whole, left = divmod(-(-self.each // LANES), cut.panels)
        if whole:
            with writer.when(less(tile, whole) if left else None):
                self._rows(group, below(tile, whole) * cut.panels, cut.panels)
        if left:
            with writer.otherwise() if whole else writer.scope():
                self._rows(group, number(whole * cut.panels), left)

    def _rows(self, group: Index, panel: Index, panels: int) -> None:
        """Every tile of pixels of the piece."""
        if self.keeps:
            self.keep(group, panel, panels)
        writer, cut, height = self.writer, self.cut, self.shape.places[1]
        end: Expr = Const(I32, cut.rows)
        if height % cut.rows:
            end = least(number(cut.rows), number(height) - self.row_piece * cut.rows)
        if cut.high == 1:
            with writer.loop(Axis("y", cut.rows), 0, end, no_unroll=True):
                self._columns(group, panel, panels, axis("y", cut.rows), 1)
            return
        until, at = writer.let(end, "end"), writer.declare(Const(I32, 0), "at")
        for high in (cut.high, 1):
            after = Coordinate(I32, axis("at", cut.rows) + high)
            within = less(at, until) if high == 1 else Apply(BOOL, "le", after, until)
            with writer.while_true(at, within, after, rolled=True):
                row = variable(writer.let(at), cut.rows - high + 1)
                self._columns(group, panel, panels, row, high)

    def _columns(self, group: Index, panel: Index, panels: int, row: Index, high: int) -> None:
        whole, left = divmod(self.shape.places[2], self.cut.wide)
        with self.over("x", whole) as column:
            self._tile(group, panel, panels, (row, column * self.cut.wide), (high, self.cut.wide))
        if left:
            with self.writer.scope():
                begin = number(whole * self.cut.wide)
                self._tile(group, panel, panels, (row, begin), (high, left))

    def _tile(
        self,
        group: Index,
        panel: Index,
        panels: int,
        at: tuple[Index, Index],
        size: tuple[int, int],
    ) -> None:
        """Sums in registers, and the epilogue of each panel's pixels."""
        writer = self.writer
        places = [(i, j) for i in range(size[0]) for j in range(size[1])]
        zero = Splat(constant(self.sum_dtype, 0))
        with writer.scope():
            sums = [[writer.declare(zero, writer.name("a")) for _ in range(panels)] for _ in places]
            self.sums(group, panel, sums, [(at[0] + i, at[1] + j) for i, j in places])
            row = self.row_piece * self.cut.rows + at[0]
            pixels = [self.pixel(row + i, at[1] + j) for i, j in places]
            for p in range(panels):
                with writer.scope():
                    self.results(group, panel + p, pixels, [line[p] for line in sums])

    @abstractmethod
    def sums(self, group: Index, panel: Index, sums: Sums, places: Places) -> None:
        """Add every product to the tile's sums."""

    # --- the epilogue ---

    def pixel(self, row: Index, column: Index) -> Index:
        """A pixel's number in the result, as a variable."""
        _, height, width = self.shape.places
        flat = (self.slab * height + row) * width + column
        return self.named(flat, self.slabs * height * width)


class Dense(_Pieces):
    """Every output sees every channel of its group: one input is broadcast to 16 outputs."""

    @property
    def is_run(self) -> bool:
        """Whether the channels that a row of taps sees lie in memory one behind the other."""
        shape, (_, channels) = self.shape, self.shape.own
        together = shape.groups == 1 and self.cut.pitch == channels and not self.direct
        return together and shape.dimensions[2].window_dilation == 1

    def sums(self, group: Index, panel: Index, sums: Sums, places: Places) -> None:
        """Taps and channels, in the order of the weights."""
        shape, (_, channels) = self.shape, self.shape.own
        along, lines = shape.taps[2], 1 if self.is_run else shape.taps[2]
        run = along // lines * channels
        with (
            self.over("k0", shape.taps[0]) as a,
            self.over("k1", shape.taps[1]) as b,
            self.over("k2", lines) as c,
        ):
            k = axis("k", run)
            channel = group * channels + k
            input = ravel_index((a, b, c, k), (*shape.taps[:2], lines, run))
            xs = [self.element(*place, (a, b, c), channel) for place in places]
            weights = [self.weight(group, panel, p, input) for p in range(len(sums[0]))]
            known: dict[Index, Var] = {}
            reads = [self.ahead(x, False, known, self.beyond) for x in xs]
            factors = [self.ahead(weight, True, known) for weight in weights]
            following = self.pixels_ahead(reads[0], len(places)) if self.direct else []
            following += self.panels_ahead(factors[0], places[0])
            self.multiply(run, sums, reads, factors, following)

    def panels_ahead(self, weight: Read, place: tuple[Index, Index]) -> list[Ahead]:
        """Panels behind those of this tile, a part for each of a piece's tiles of pixels.

        Where these are many, a panel is used so often that it may as well be waited for; and large
        panels are streams that processors know to follow.
        """
        cut, (row, column), line = self.cut, place, self.shape.inputs * LANES
        tiles = -(-cut.rows // cut.high) * -(-self.shape.places[2] // cut.wide)
        fetched = self.context.tiles.convolution_tiles_ahead and not self.keeps
        fits = self.panels <= tiles <= FEW_TILES and self.panels * line <= SHORT
        if not (fetched and fits):
            return []
        pixel = row * self.shape.places[2] + column
        part = pixel * (self.shape.inputs // (cut.high * cut.wide) * LANES)
        return [Ahead(weight, self.panels * line, LANES, part)]


class Depthwise(_Pieces):
    """Every output sees one channel: 16 neighbouring channels side by side."""

    def local(self, channel: Index) -> Index:
        """Only the piece's own channels are copied."""
        return channel - self.tile_piece * (self.cut.tiles * LANES)

    @property
    def beyond(self) -> int:
        """Nor that the copy has the piece's own channels only."""
        return super().beyond if self.direct else (self.cut.across - self.cut.tiles) * LANES

    def pixel_of(self, batch: Index, at: Sequence[Index], begin: Index) -> None:
        """The piece's channels of one pixel."""
        shape, writer, cut = self.shape, self.writer, self.cut
        whole, left = divmod(shape.channels, LANES)
        with self.over("w", cut.tiles) as vector:
            panel = self.named(self.tile_piece * cut.tiles + vector, cut.tile_pieces * cut.tiles)

            def one(channel: Index, to: Index) -> None:
                self.put(to, self.builder.at(shape.x, shape.x_at(batch, at, channel)))

            if panel.low < whole:
                guard = less(panel, whole) if panel.high >= whole else None
                with writer.when(guard), writer.lanes(LANE):
                    lane = axis("lane", LANES)
                    one(below(panel, whole) * LANES + lane, begin + vector * LANES + lane)
            if left and panel.high >= whole:
                last = compare("eq", Coordinate(I32, panel), constant(I32, whole))
                with writer.when(last), self.over("u", left) as place:
                    one(place + whole * LANES, begin + vector * LANES + place)

    def sums(self, group: Index, panel: Index, sums: Sums, places: Places) -> None:
        """Tap by tap; those of a row are written out, so that pixels share what they load."""
        shape, writer = self.shape, self.writer
        channel = panel * LANES + axis("lane", LANES)
        with (
            self.over("k0", shape.taps[0]) as a,
            self.over("k1", shape.taps[1]) as b,
            writer.scope(),
            writer.lanes(LANE),
        ):
            known: dict[Index, Var] = {}
            loaded: dict[Read, Var] = {}

            def load(expr: Expr, beyond: int = 0) -> Var:
                read = self.ahead(expr, True, known, beyond)
                if read not in loaded:
                    loaded[read] = writer.let(read)
                return loaded[read]

            for c in range(shape.taps[2]):
                taps = (a, b, number(c))
                weight = load(self.weight(group, panel, 0, ravel_index(taps, shape.taps)))
                for (row, column), (total,) in zip(places, sums, strict=True):
                    self.add(
                        total, load(self.element(row, column, taps, channel), self.beyond), weight
                    )
