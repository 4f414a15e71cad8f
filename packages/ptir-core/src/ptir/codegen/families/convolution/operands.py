"""What the kernels of convolutions see of their operand: where it is, or a copy with padding."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from ptir.codegen.expressions.expr import Const, Expr, Load, constant
from ptir.codegen.expressions.index import ZERO, Index, axis, ravel_index, unravel_index
from ptir.codegen.expressions.movement import spread
from ptir.codegen.families.convolution.convolving import SerialConvolution
from ptir.codegen.families.convolution.match import Tiling, columns_in
from ptir.codegen.schedules.kernel import EmitContext, Fusion
from ptir.codegen.weights.panels import LANES
from ptir.types import F32


class ConvolutionOperands(SerialConvolution):
    """A convolution cut into pieces, and where the factors of a piece come from."""

    def __init__(self, fusion: Fusion, context: EmitContext) -> None:
        super().__init__(fusion, context)
        self.slabs = self.shape.batch * self.shape.places[0]
        self.cut: Tiling = self.choose()
        self.direct = not self.cut.copied
        self.slab = self.row_piece = self.tile_piece = ZERO

    @abstractmethod
    def choose(self) -> Tiling:
        """How the work is cut."""

    @property
    def each(self) -> int:
        """Outputs of a group; a depthwise convolution is cut as if it were one group."""
        return self.shape.outputs // self.cut.groups

    @property
    def panels(self) -> int:
        """Panels of a tile."""
        return self.cut.panels

    # --- the operand ---

    def is_direct(self) -> bool:
        """Whether the operand may be read where it is: nothing padded, channels side by side."""
        shape = self.shape
        if shape.is_depthwise and shape.channels % LANES:
            return False
        for dimension in shape.dimensions:
            last = (dimension.count - 1) * dimension.stride + dimension.span - dimension.low
            if dimension.low > 0 or last > dimension.size or dimension.base_dilation > 1:
                return False
        at = [axis(f"x{n}", dimension.size) for n, dimension in enumerate(shape.dimensions)]
        channel = axis("c", shape.channels)
        found = self.builder.at(shape.x, shape.x_at(axis("n", shape.batch), at, channel))
        wanted = ravel_index(
            (axis("n", shape.batch), *at, channel),
            (shape.batch, *(dimension.size for dimension in shape.dimensions), shape.channels),
        )
        return isinstance(found, Load) and found.index == wanted

    @property
    def block(self) -> int:
        """Floats of a workgroup's copy of the operand, whole lines of them."""
        return -(-self.cut.block(self.shape) // LANES) * LANES + LANES

    def element(self, row: Index, column: Index, taps: Sequence[Index], channel: Index) -> Expr:
        """What a tap sees from a pixel of the piece: ``row`` counts from the piece's first."""
        shape, cut = self.shape, self.cut
        depth, rows, columns = shape.dimensions
        down = row * rows.stride + taps[1] * rows.window_dilation
        along = column * columns.stride + taps[2] * columns.window_dilation
        if not self.direct:
            sizes = (shape.taps[0], cut.rows_in(shape), columns_in(shape), cut.pitch)
            place = ravel_index((taps[0], down, along, self.local(channel)), sizes)
            return Load(F32, self.source, self.item * self.block + place)
        batch, deep = unravel_index(self.slab, (shape.batch, shape.places[0]))
        first = self.row_piece * cut.rows * rows.stride
        at = (
            deep * depth.stride + taps[0] * depth.window_dilation - depth.low,
            first + down - rows.low,
            along - columns.low,
        )
        return self.builder.at(shape.x, shape.x_at(batch, at, channel))

    @property
    def beyond(self) -> int:
        """By how much the range of an element's place is too large.

        It does not know that the last piece may have fewer rows.
        """
        if not self.direct:
            return 0
        _, rows, columns = self.shape.dimensions
        missing = self.cut.row_pieces * self.cut.rows - rows.count
        return missing * rows.stride * columns.size * self.shape.channels

    def local(self, channel: Index) -> Index:
        """A channel's number in the copy."""
        return channel

    def put(self, place: Index, expr: Expr) -> None:
        """Write an element of the copy, or one per lane."""
        self.writer.store(self.source, F32, self.item * self.block + place, expr)

    def copy(self) -> None:
        """The rows under the piece, spread and padded with zeros."""
        shape, writer, cut = self.shape, self.writer, self.cut
        depth, rows, _ = shape.dimensions
        batch, deep = unravel_index(self.slab, (shape.batch, shape.places[0]))
        with self.over("d", shape.taps[0]) as tap, self.over("r", cut.rows_in(shape)) as row:
            at = (
                deep * depth.stride + tap * depth.window_dilation - depth.low,
                self.row_piece * (cut.rows * rows.stride) + row - rows.low,
            )
            sizes, gaps = zip(
                *((dimension.size, dimension.base_dilation - 1) for dimension in (depth, rows)),
                strict=True,
            )
            inside, found = spread(at, sizes, gaps)
            begin = (tap * cut.rows_in(shape) + row) * (columns_in(shape) * cut.pitch)
            always = isinstance(inside, Const) and inside.value
            with writer.when(None if always else writer.scalar(inside)):
                self._line(batch, found, begin)
            if not always:
                with writer.otherwise():
                    self._zeros(begin, columns_in(shape))

    def _zeros(self, begin: Index, columns: int) -> None:
        zero = constant(F32, 0.0)
        self.channels(lambda place: self.put(place, zero), begin, columns * self.cut.pitch)

    def _line(self, batch: Index, found: Sequence[Index], begin: Index) -> None:
        """One row of the operand: padding, elements, padding."""
        dimension, pitch = self.shape.dimensions[2], self.cut.pitch
        wide = columns_in(self.shape)
        first = min(wide, max(0, dimension.low))
        end = max(first, min(wide, dimension.size + dimension.low))
        if dimension.base_dilation > 1:
            self._spread_line(batch, found, begin)
            return
        for start, stop in ((0, first), (end, wide)):
            if start < stop:
                with self.writer.scope():
                    self._zeros(begin + start * pitch, stop - start)
        if end > first:
            with self.writer.scope():
                self.elements(
                    batch, found, begin + first * pitch, (first - dimension.low, end - first)
                )

    def elements(
        self, batch: Index, found: Sequence[Index], begin: Index, part: tuple[int, int]
    ) -> None:
        """Columns that hold elements, from the first one on, as many as there are."""
        shape, (first, count) = self.shape, part
        if self.cut.pitch == shape.channels:  # all of them, without anything between pixels

            def flat(place: Index) -> None:
                column, channel = unravel_index(place, (count, shape.channels))
                at = shape.x_at(batch, (*found, column + first), channel)
                self.put(begin + place, self.builder.at(shape.x, at))

            self.channels(flat, ZERO, count * shape.channels)
            return
        with self.over("j", count) as column:
            to = begin + column * self.cut.pitch
            self.pixel_of(batch, (*found, column + first), to)

    def pixel_of(self, batch: Index, at: Sequence[Index], begin: Index) -> None:
        """The channels of one pixel of the operand into the copy."""
        x = self.shape

        def one(channel: Index) -> None:
            self.put(begin + channel, self.builder.at(x.x, x.x_at(batch, at, channel)))

        self.channels(one, ZERO, x.channels)

    def _spread_line(self, batch: Index, found: Sequence[Index], begin: Index) -> None:
        """One row whose columns have gaps between them."""
        dimension = self.shape.dimensions[2]
        with self.over("j", columns_in(self.shape)) as column:
            inside, (at,) = spread(
                (column - dimension.low,), (dimension.size,), (dimension.base_dilation - 1,)
            )
            begin = begin + column * self.cut.pitch
            with self.writer.when(self.writer.scalar(inside)):
                self.pixel_of(batch, (*found, at), begin)
            with self.writer.otherwise():
                self._zeros(begin, 1)
