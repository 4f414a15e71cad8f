"""Convolutions by Winograd's minimal filtering, F(2x2, 3x3), as one kernel (``conv2d=winograd``).

A piece of work is a block of rows of tiles and some panels of outputs. The inputs under its tiles
go into scratch memory, transformed: 16 *positions*, each a matrix of tiles by channels. For every
tile of panels the filters are transformed too, a part of the channels at a time, and each position
is multiplied with its own; then 16 sums of a tile become its 2 x 2 outputs and their epilogue. All
that lies in memory meanwhile is meant to stay in a core's own cache.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Final

from ptir.codegen.expressions.expr import Coordinate, Expr, Load, Var, compare, constant
from ptir.codegen.expressions.index import ZERO, Axis, Index, axis, number, ravel_index
from ptir.codegen.expressions.movement import limited
from ptir.codegen.families.convolution.convolving import LANE, below, least, variable
from ptir.codegen.families.convolution.match import NEAR, SPREAD, Tiling, parts
from ptir.codegen.families.convolution.operands import ConvolutionOperands
from ptir.codegen.kernel_ir.conditions import all_of, less
from ptir.codegen.kernel_ir.statements import Whole
from ptir.codegen.kernel_ir.values import Splat
from ptir.codegen.schedules.kernel import (
    EmitContext,
    Fusion,
    Kernel,
    finish_kernel,
    scratch_value,
)
from ptir.codegen.schedules.tiles import Tiles
from ptir.codegen.weights.filters import Convolution
from ptir.codegen.weights.panels import LANES
from ptir.ops.winograd import STEP, TAPS, TILE, filters_of, inputs_of, outputs_of, tiles_along
from ptir.types import F32, I32, TensorType

POSITIONS: Final = TILE * TILE
"""Products of a tile for each channel and output."""
ROOM: Final = 160 * 1024
"""Floats of transformed inputs and of sums that stay in a core's cache beside the filters."""
INPUT_COST: Final = 48
"""Cycles of the transform of 16 channels of a tile."""
OUTPUT_COST: Final = 40
"""Cycles of the transform of 16 outputs of a tile, and of what follows it."""
FILTER_COST: Final = 32
"""Cycles of the transform of a channel's filters for 16 outputs."""
MOST_CHANNELS: Final = 128
"""Channels whose filters for a tile of panels stay beside everything else in a core's cache."""


def tiled(shape: Convolution) -> Convolution:
    """The geometry of the tiles of a convolution: windows of 4 x 4 inputs, two apart."""
    depth, *axes = shape.dimensions
    rows, columns = (tiles_along(one.size, one.low, one.high) for one in axes)
    return replace(shape, dimensions=(depth, rows, columns))


def channels_at_once(channels: int, per: int) -> int:
    """The channels whose filters are transformed at once: equal parts, whole words of ``per``."""
    parts = (channels // n for n in range(1, channels + 1) if channels % n == 0)
    fitting = (size for size in parts if size <= MOST_CHANNELS and size % per == 0)
    most = next(fitting, channels)
    return most if 2 * most > MOST_CHANNELS else channels


@dataclass(frozen=True)
class Blocks:
    """How the work is cut: pieces of ``rows`` rows of tiles and ``tiles`` tiles of panels.

    A register tile has ``high`` tiles and ``panels`` panels; ``across`` tiles of panels are all.
    """

    rows: int
    tiles: int
    high: int
    panels: int
    across: int
    row_pieces: int
    tile_pieces: int
    groups: int
    """Register tiles of a piece for a position and a tile of panels."""

    @property
    def held(self) -> int:
        """Tiles that a piece has room for."""
        return self.groups * self.high


def choose_blocks(shape: Convolution, units: int, tiles: Tiles) -> Blocks:
    """The cheapest cut."""
    return min(_cuts(shape, tiles), key=lambda one: _cost(shape, one, units))


def _panels(shape: Convolution, held: Tiles) -> tuple[int, int]:
    """Panels of a tile, and how many such tiles there are."""
    count = -(-shape.outputs // LANES)
    panels = min(held.convolution_panels, count)
    return panels, -(-count // panels)


def _cuts(shape: Convolution, held: Tiles) -> Iterator[Blocks]:
    _, down, wide = shape.places
    panels, across = _panels(shape, held)
    for rows in parts(shape.batch * down):
        groups = -(-rows * wide // held.convolution_pixels)
        high = -(-rows * wide // groups)
        for tiles in parts(across):
            pieces = -(-shape.batch * down // rows), -(-across // tiles)
            yield Blocks(rows, tiles, high, panels, across, *pieces, groups)


def _cost(shape: Convolution, one: Blocks, units: int) -> float:
    """Cycles of the slowest unit: products, transforms, and what comes from far away."""
    panels = one.tiles * one.panels
    vectors = one.high * one.panels, one.high + one.panels
    products = one.groups * one.tiles * shape.inputs * max(vectors) / 2
    channels = -(-shape.channels // LANES)
    transforms = one.held * (channels * INPUT_COST + panels * OUTPUT_COST)
    transforms += panels * shape.channels * FILTER_COST
    filters = TAPS * TAPS * shape.channels
    far = 4 * panels * filters if filters * shape.outputs > NEAR else 0
    held = POSITIONS * one.held * (shape.channels + one.panels * LANES)
    again = one.tiles * held * (held / ROOM) / 16 if held > ROOM else 0
    pieces = one.row_pieces * one.tile_pieces
    return math.ceil(pieces / units) * (products + transforms + far + again) + 200 * pieces


class Winograd(ConvolutionOperands):
    """One convolution by tiles while its kernel is written."""

    def __init__(self, fusion: Fusion, context: EmitContext) -> None:
        units = context.traits.compute_units
        super().__init__(fusion, context)
        self.blocks = choose_blocks(self.shape, units, context.tiles)
        self.pieces = self.blocks.row_pieces * self.blocks.tile_pieces
        self.workgroups = min(self.pieces, units)
        self.tiles, self.products = scratch_value(fusion, 2), scratch_value(fusion, 3)
        panels = self.detail.panels
        self.per = 1 if panels is None else panels.per
        self.part = channels_at_once(self.shape.channels, self.per)
        self.filter_pitch = self.part + 1  # not all positions in the same sets of the cache
        self.rows = self.slabs * self.shape.places[1]
        self.first: Index = ZERO
        close = self.shape.channels % (SPREAD * LANES) == 0
        self.pitch = self.shape.channels + (SPREAD if close else 0)

    def geometry(self) -> Convolution:
        """That of the tiles."""
        return tiled(self.detail.shape)

    def choose(self) -> Tiling:
        """A row of tiles at a time is copied, with its padding."""
        _, down, wide = self.shape.places
        panels, across = _panels(self.shape, self.context.tiles)
        pitch = self.shape.channels
        return Tiling(1, across, 1, wide, panels, across, 1, down, 1, pitch, True)

    def kernel(self) -> Kernel:
        """A loop over pieces."""
        writer, cut = self.writer, self.blocks
        part = writer.work_range(self.pieces, self.workgroups)
        with writer.loop(Axis("q", self.pieces), *part, no_unroll=True):
            sizes = cut.row_pieces, cut.tile_pieces
            row_piece, tile_piece = self.named_digits(axis("q", self.pieces), sizes)
            self.first = row_piece * cut.rows
            rows, groups = self._extent()
            with writer.loop(Axis("r", cut.rows), 0, rows, no_unroll=True):
                self._transform(axis("r", cut.rows))
            self._panels(tile_piece, rows, groups)
        each = (
            self.block,
            POSITIONS * cut.panels * self.filter_pitch * LANES,
            POSITIONS * cut.held * self.pitch,
            POSITIONS * cut.held * cut.panels * LANES,
        )
        scratch = tuple(TensorType(F32, (max(1, self.workgroups * size),)) for size in each)
        return finish_kernel(self.fusion, writer, self.workgroups, scratch)

    def _extent(self) -> tuple[Whole, Whole]:
        """The rows of tiles of the piece, and its register tiles: the last piece may have fewer."""
        cut, wide = self.blocks, self.shape.places[2]
        if self.rows % cut.rows == 0:
            return cut.rows, cut.groups
        rows = self.writer.let(least(number(cut.rows), number(self.rows) - self.first))
        tiles = variable(rows, cut.rows + 1) * wide + (cut.high - 1)
        return rows, self.named(tiles // cut.high, cut.groups + 1)

    # --- inputs ---

    def _transform(self, row: Index) -> None:
        """The inputs under a row of tiles, transformed, into scratch memory."""
        shape, wide = self.shape, self.shape.places[2]
        at = self.named(self.first + row, self.rows)
        self.slab, self.row_piece = self.named_digits(at, (self.slabs, shape.places[1]))
        self.copy()
        with self.over("t", wide) as column:

            def channel(place: Index) -> None:
                lines: list[list[Expr]] = []
                for i in range(TILE):
                    taps = [(number(0), number(i), number(j)) for j in range(TILE)]
                    seen = [self._let(self.element(ZERO, column, tap, place)) for tap in taps]
                    lines.append([self._let(one) for one in inputs_of(seen)])
                for j, line in enumerate(zip(*lines, strict=True)):
                    for i, found in enumerate(inputs_of(line)):
                        to = self._tile_at(number(i * TILE + j), row * wide + column, place)
                        self.writer.store(self.tiles, F32, to, found)

            self.channels(channel, ZERO, shape.channels)

    def _let(self, expr: Expr) -> Expr:
        return self.writer.let(self.writer.value(expr))

    def _tile_at(self, position: Index, tile: Index, channel: Index) -> Index:
        sizes = self.workgroups, POSITIONS, self.blocks.held, self.pitch
        return ravel_index((self.item, position, tile, channel), sizes)

    def _product_at(self, position: Index, tile: Index, panel: int) -> Index:
        sizes = self.workgroups, POSITIONS, self.blocks.held, self.blocks.panels, LANES
        place = self.item, position, tile, number(panel), axis("lane", LANES)
        return ravel_index(place, sizes)

    # --- filters ---

    def _filters(self, begin: Index, panel: Index, panels: int) -> None:
        """The filters of the channels from ``begin`` on, transformed, into scratch memory."""
        for p in range(panels):
            output = (panel + p) * LANES + axis("lane", LANES)
            with self.writer.scope(), self.writer.lanes(LANE):
                self._filters_of(p, output, begin)

    def _filters_of(self, place: int, output: Index, begin: Index) -> None:
        """Those of 16 outputs; channels whose weights share words of memory are written out."""
        with self.over("w", self.part // self.per) as word:
            for inner in range(self.per):
                channel = word * self.per + inner
                lines: list[list[Expr]] = []
                for i in range(TAPS):
                    taps = [self._tap(output, i, j, begin + channel) for j in range(TAPS)]
                    lines.append([self._let(one) for one in filters_of(list(map(self._let, taps)))])
                for j, column in enumerate(zip(*lines, strict=True)):
                    for i, found in enumerate(filters_of(column)):
                        to = self._filter_at(place, number(i * TILE + j), channel)
                        self.writer.store(self.held, F32, to, found)

    def _tap(self, output: Index, row: int, column: int, channel: Index) -> Expr:
        """The weights of the 16 outputs for a channel's input at a tap."""
        panels, packed = self.detail.panels, self.detail.packed
        if panels is None or packed is None:
            known = limited(output, self.shape.outputs)
            return self.plain_weight(known, (ZERO, number(row), number(column)), channel)
        tap = number(row * TAPS + column)
        return panels.weight(packed, output, tap * self.shape.channels + channel)

    def _filter_at(self, panel: int, position: Index, channel: Index) -> Index:
        """Where the filters of a panel's 16 outputs are for a channel at a position."""
        sizes = self.workgroups, self.blocks.panels, POSITIONS, self.filter_pitch, LANES
        place = self.item, number(panel), position, channel, axis("lane", LANES)
        return ravel_index(place, sizes)

    # --- products and outputs ---

    def _panels(self, tile_piece: Index, rows: Whole, groups: Whole) -> None:
        """Every tile of panels of the piece; the last one may have fewer panels."""
        writer, cut = self.writer, self.blocks
        ends: tuple[Whole, Whole] = 0, cut.across
        if cut.tile_pieces > 1:
            first = self.named(tile_piece * cut.tiles, cut.across)
            ends = first, least(first + cut.tiles, cut.across)
        whole, left = divmod(-(-self.each // LANES), cut.panels)
        with writer.loop(Axis("p", cut.across), *ends, no_unroll=True):
            tile = axis("p", cut.across)
            if whole:
                with writer.when(less(tile, whole) if left else None):
                    self._tile(below(tile, whole) * cut.panels, cut.panels, rows, groups)
            if left:
                with writer.otherwise() if whole else writer.scope():
                    self._tile(number(whole * cut.panels), left, rows, groups)

    def _tile(self, panel: Index, panels: int, rows: Whole, groups: Whole) -> None:
        """The products of all positions, then the outputs of all tiles."""
        writer, cut, wide = self.writer, self.blocks, self.shape.places[2]
        with self.over("c", self.shape.channels // self.part) as part:
            self._filters(part * self.part, panel, panels)
            with (
                writer.loop(Axis("f", POSITIONS), 0, POSITIONS, no_unroll=True),
                writer.loop(Axis("g", cut.groups), 0, groups, no_unroll=True),
            ):
                self._products(part, axis("f", POSITIONS), axis("g", cut.groups), panels)
        with (
            writer.loop(Axis("r", cut.rows), 0, rows, no_unroll=True),
            writer.loop(Axis("t", wide), 0, wide, no_unroll=True),
        ):
            self._outputs(axis("r", cut.rows), axis("t", wide), panel, panels)

    def _products(self, part: Index, position: Index, group: Index, panels: int) -> None:
        """The sums of a register tile over a part of the channels, for one position."""
        writer, high = self.writer, self.blocks.high
        zero = Splat(constant(F32, 0.0))
        tiles = [group * high + i for i in range(high)]
        k, known = axis("k", self.part), dict[Index, Var]()
        sums = [[writer.declare(zero, writer.name("a")) for _ in range(panels)] for _ in tiles]
        stored = [[self._product_at(position, tile, p) for p in range(panels)] for tile in tiles]
        if not part.is_constant:
            began = writer.scalar(compare("ne", Coordinate(I32, part), constant(I32, 0)))
            with writer.when(began), writer.lanes(LANE):
                for line, places in zip(sums, stored, strict=True):
                    for total, place in zip(line, places, strict=True):
                        writer.assign(total, writer.value(Load(F32, self.products, place)))
        channel = part * self.part + k
        xs = [Load(F32, self.tiles, self._tile_at(position, tile, channel)) for tile in tiles]
        filters = [Load(F32, self.held, self._filter_at(p, position, k)) for p in range(panels)]
        self.multiply(
            self.part,
            sums,
            [self.ahead(x, False, known) for x in xs],
            [self.ahead(one, True, known) for one in filters],
        )
        with writer.lanes(LANE):
            for line, places in zip(sums, stored, strict=True):
                for total, place in zip(line, places, strict=True):
                    writer.store(self.products, F32, place, total)

    def _outputs(self, row: Index, column: Index, panel: Index, panels: int) -> None:
        """The outputs of a tile, as far as the result has them."""
        writer, (_, down, wide) = self.writer, self.shape.places
        _, height, width, _ = self.context.graph.type(self.hero).shape
        at = self.named(self.first + row, self.rows)
        slab, y = self.named_digits(at, (self.slabs, down))
        place = self.named(row * wide + column, self.blocks.held)
        for p in range(panels):
            with writer.scope():
                for (i, j), total in self._square(place, p).items():
                    ends = (y * STEP + i, height), (column * STEP + j, width)
                    if any(index.low >= size for index, size in ends):
                        continue
                    inside = [less(index, size) for index, size in ends if index.high >= size]
                    with writer.when(all_of(inside)) if inside else nullcontext():
                        (line, _), (along, _) = ends
                        flat = (slab * height + line) * width + along
                        pixel = self.named(flat, self.slabs * height * width)
                        self.results(ZERO, panel + p, [pixel], [total])

    def _square(self, tile: Index, panel: int) -> dict[tuple[int, int], Var]:
        """The 2 x 2 outputs of a tile for a panel, by row and column."""
        with self.writer.lanes(LANE):
            lines: list[list[Expr]] = []
            for i in range(TILE):
                places = [number(i * TILE + j) for j in range(TILE)]
                sums = [self._product_at(position, tile, panel) for position in places]
                found = [self._let(Load(F32, self.products, at)) for at in sums]
                lines.append([self._let(one) for one in outputs_of(found)])
            return {
                (i, j): self.writer.let(self.writer.value(one))
                for j, line in enumerate(zip(*lines, strict=True))
                for i, one in enumerate(outputs_of(line))
            }
