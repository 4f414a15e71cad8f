"""What the kernels of convolutions read: the copy of the operand, and the weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from ptir.codegen.expressions.elementwise import cast
from ptir.codegen.expressions.expr import Apply, Const, Expr, Load, constant
from ptir.codegen.expressions.index import ZERO, Axis, Index, axis, ravel_index, unravel_index
from ptir.codegen.expressions.movement import limited, spread
from ptir.codegen.families.convolution.match import Detail, Tiling, choose_tiling, columns_in
from ptir.codegen.kernel_ir.writer import Writer
from ptir.codegen.schedules.epilogue import builder_of, store
from ptir.codegen.schedules.kernel import EmitContext, Fusion, scratch_value
from ptir.codegen.weights.filters import Convolution
from ptir.codegen.weights.panels import LANES, Panels
from ptir.types import F32

LANE = Axis("lane", LANES)
SHARED = 1 << 16
"""More than any number of workgroups."""


class Convolving:
    """One convolution while a kernel of either schedule is written."""

    def __init__(self, fusion: Fusion, context: EmitContext) -> None:
        self.fusion, self.context = fusion, context
        self.detail: Detail = fusion.detail
        self.shape: Convolution = self.detail.shape
        self.writer: Writer = context.writer()
        self.builder = builder_of(fusion, context)
        self.hero = context.graph.results[self.detail.position][0]

    def named(self, index: Index, size: int) -> Index:
        """A place as a variable of its own, so that what is computed from it stays simple."""
        if index.is_constant:
            return index
        return self.writer.let_index(self.writer.index(index), size)

    def named_digits(self, flat: Index, sizes: Sequence[int]) -> list[Index]:
        """The coordinates of a position, as variables."""
        found = zip(unravel_index(flat, sizes), sizes, strict=True)
        return [self.named(index, size) for index, size in found]

    def plain_weight(self, output: Index, taps: Sequence[Index], channel: Index) -> Expr:
        """A weight as the program knows it."""
        at = self.shape.weight_at(output, taps, channel)
        return cast(F32, self.builder.at(self.shape.weight, at))

    def finish(self, pixel: Index, output: Index, total: Expr) -> None:
        """Add the bias to a result, and store what follows it."""
        (exit,) = self.fusion.outputs
        if self.shape.bias is not None:
            total = Apply(F32, "add", total, self.builder.at(self.shape.bias, (output,)))
        flat = pixel * self.shape.outputs + output
        store(self.writer, self.builder, (self.hero, total), exit, flat)


class ConvolutionOperands(Convolving):
    """A convolution cut into pieces, and where the factors of a piece come from."""

    def __init__(self, fusion: Fusion, context: EmitContext) -> None:
        super().__init__(fusion, context)
        self.slabs = self.shape.batch * self.shape.places[0]
        results = math.prod(self.shape.places) * self.shape.batch * self.shape.outputs
        work = results * self.shape.inputs // LANES
        units = context.traits.compute_units
        wanted = context.workgroups(SHARED, work)
        copied = not self._is_direct()
        self.cut: Tiling = choose_tiling(self.shape, units, wanted, copied, context.tiles)
        self.direct = not self.cut.copied
        self.pieces = self.slabs * self.cut.row_pieces * self.cut.tile_pieces
        self.workgroups = context.workgroups(self.pieces, work)
        self.source, self.held = scratch_value(fusion, 0), scratch_value(fusion, 1)
        self.slab = self.row_piece = self.tile_piece = ZERO

    @contextmanager
    def over(self, name: str, size: int) -> Iterator[Index]:
        """A loop, or nothing but its only value."""
        with ExitStack() as loops:
            if size > 1:
                loops.enter_context(self.writer.loop(Axis(name, size), 0, size, no_unroll=True))
            yield axis(name, size)

    @property
    def each(self) -> int:
        """Outputs of a group; a depthwise convolution is cut as if it were one group."""
        return self.shape.outputs // self.cut.groups

    # --- the operand ---

    def _is_direct(self) -> bool:
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

    @property
    def item(self) -> Index:
        """The workgroup's number."""
        return Index({Axis("item", self.workgroups): 1})

    def local(self, channel: Index) -> Index:
        """A channel's number in the copy."""
        return channel

    def channels(self, body: Callable[[Index], None], begin: Index, size: int) -> None:
        """Call ``body`` with every place from ``begin`` on, whole vectors, then single ones."""
        whole, left = divmod(size, LANES)
        if whole:
            with self.over("w", whole) as vector, self.writer.lanes(LANE):
                body(begin + vector * LANES + axis("lane", LANES))
        if left:
            with self.over("u", left) as one:
                body(begin + whole * LANES + one)

    def _put(self, place: Index, expr: Expr) -> None:
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
        self.channels(lambda place: self._put(place, zero), begin, columns * self.cut.pitch)

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
                self._elements(
                    batch, found, begin + first * pitch, (first - dimension.low, end - first)
                )

    def _elements(
        self, batch: Index, found: Sequence[Index], begin: Index, part: tuple[int, int]
    ) -> None:
        """Columns that hold elements, from the first one on, as many as there are."""
        shape, (first, count) = self.shape, part
        if self.cut.pitch == shape.channels:  # all of them, without anything between pixels

            def flat(place: Index) -> None:
                column, channel = unravel_index(place, (count, shape.channels))
                at = shape.x_at(batch, (*found, column + first), channel)
                self._put(begin + place, self.builder.at(shape.x, at))

            self.channels(flat, ZERO, count * shape.channels)
            return
        with self.over("j", count) as column:
            to = begin + column * self.cut.pitch
            self.pixel_of(batch, (*found, column + first), to)

    def pixel_of(self, batch: Index, at: Sequence[Index], begin: Index) -> None:
        """The channels of one pixel of the operand into the copy."""
        x = self.shape

        def one(channel: Index) -> None:
            self._put(begin + channel, self.builder.at(x.x, x.x_at(batch, at, channel)))

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

    # --- the weights ---

    @property
    def keeps(self) -> bool:
        """Whether a workgroup makes the panels that it needs itself."""
        return self.detail.panels is None or self.detail.panels.dtype != F32

    @property
    def kept(self) -> int:
        """Floats of the panels that a workgroup makes itself."""
        return self.cut.panels * self.shape.inputs * LANES

    def weight(self, group: Index, panel: Index, number_: int, input: Index) -> Expr:
        """The weights of the 16 outputs of a panel of the tile, for one input."""
        if self.keeps:
            place = (self.item * self.cut.panels + number_) * self.shape.inputs + input
            return Load(F32, self.held, place * LANES + axis("lane", LANES))
        panels, packed = self.detail.panels, self.detail.packed
        assert panels is not None and packed is not None
        output = group * self.each + (panel + number_) * LANES + axis("lane", LANES)
        return panels.weight(packed, output, input)

    def keep(self, group: Index, panel: Index, panels: int) -> None:
        """The panels of a tile as floats into scratch memory, once for all pixels."""
        for p in range(panels):
            output = group * self.each + (panel + p) * LANES + axis("lane", LANES)
            with self.writer.scope(), self.writer.lanes(LANE):
                if self.detail.panels is None:
                    self._gather(p, output)
                else:
                    self._widen(self.detail.panels, p, output)

    def _widen(self, panels: Panels, place: int, output: Index) -> None:
        """Packed 16-bit weights as floats."""
        assert self.detail.packed is not None
        with self.over("k", self.shape.inputs // panels.per) as word:
            for inner in range(panels.per):
                input = word * panels.per + inner
                self._hold(place, input, panels.weight(self.detail.packed, output, input))

    def _gather(self, place: int, output: Index) -> None:
        """Weights of any kind, brought into panels."""
        shape = self.shape
        output = limited(output, shape.outputs)
        sizes = (*shape.taps, shape.own[1])
        with ExitStack() as loops:
            inner = [loops.enter_context(self.over(f"g{n}", size)) for n, size in enumerate(sizes)]
            weight = self.plain_weight(output, inner[:3], inner[3])
            self._hold(place, ravel_index(inner, sizes), weight)

    def _hold(self, place: int, input: Index, weight: Expr) -> None:
        at = (self.item * self.cut.panels + place) * self.shape.inputs + input
        self.writer.store(self.held, F32, at * LANES + axis("lane", LANES), weight)
