"""The kernels of convolutions: the copy of the operand, the weights, the tiles, the epilogue."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext

from ptir.codegen.elementwise import cast
from ptir.codegen.expr import Apply, Const, Expr, Load, Var, constant
from ptir.codegen.families.convolution import Cut, Detail, columns_in, cut
from ptir.codegen.index import ZERO, Axis, Index, axis, digits, flatten, number
from ptir.codegen.kernel import Group, Kernel, Site, finished, scratch_value
from ptir.codegen.movement import limited, spread
from ptir.codegen.panels import LANES, Panels
from ptir.codegen.writer import Writer
from ptir.types import F32, I32, TensorType

LANE = Axis("lane", LANES)
SHARED = 1 << 16
"""More than any number of items."""


class _Convolving:
    """What both schedules share."""

    def __init__(self, group: Group, site: Site) -> None:
        self.group, self.site, self.graph = group, site, site.graph
        self.detail: Detail = group.detail
        self.shape = self.detail.shape
        self.writer: Writer = site.writer()
        inside = {v for p in group.members for v in self.graph.results[p]}
        self.builder = site.builder()
        self.builder.stored = lambda v: v not in inside and site.stored(v)
        self.hero = self.graph.results[self.detail.position][0]
        self.slabs = self.shape.batch * self.shape.places[0]
        work = math.prod(self.shape.places) * self.shape.batch
        self.work = work * self.shape.outputs * self.shape.inputs
        units = site.traits.units
        wanted = site.items(SHARED, self.work // LANES)
        self.cut: Cut = cut(self.shape, units, wanted, not self._is_direct())
        self.direct = not self.cut.copied
        self.pieces = self.slabs * self.cut.row_pieces * self.cut.tile_pieces
        self.items = site.items(self.pieces, self.work // LANES)
        self.source, self.held = scratch_value(group, 0), scratch_value(group, 1)

    # --- the piece ---

    def kernel(self) -> Kernel:
        """A loop over pieces."""
        writer, cut = self.writer, self.cut
        writer.share(self.pieces, self.items)
        with writer.loop(Axis("q", self.pieces), "first", "last"):
            split = digits(
                axis("q", self.pieces), (self.slabs, cut.row_pieces, cut.tile_pieces)
            )
            self.slab, self.row_piece, self.tile_piece = (
                self.named(index, size)
                for index, size in zip(
                    split, (self.slabs, cut.row_pieces, cut.tile_pieces), strict=True
                )
            )
            if not self.direct:
                self._copy()
            self._panels()
        block = 1 if self.direct else self.items * self._block
        kept = self.items * self._kept if self._keeps else 1
        scratch = tuple(TensorType(F32, (size,)) for size in (block, kept))
        return finished(self.group, writer, self.items, scratch)

    def named(self, index: Index, size: int) -> Index:
        """A place as a variable of its own, so that what is computed from it stays simple."""
        if index.is_constant:
            return index
        return axis(self.writer.let(I32, False, self.writer.index(index)), size)

    @contextmanager
    def over(self, name: str, size: int) -> Iterator[Index]:
        """A loop, or nothing but its only value."""
        many = size > 1
        with self.writer.loop(Axis(name, size), "0", str(size)) if many else nullcontext():
            yield axis(name, size)

    def _panels(self) -> None:
        """Every tile of panels of the piece, and for each every tile of pixels."""
        writer, cut = self.writer, self.cut
        count = cut.groups * cut.across
        if cut.tile_pieces == 1:
            ends = "0", str(count)
        else:
            begin = self.tile_piece * cut.tiles
            first = writer.let(I32, False, writer.index(begin))
            ends = first, f"min({first} + {cut.tiles}, {count})"
        with writer.loop(Axis("p", count), *ends):
            group, tile = (
                self.named(index, size)
                for index, size in zip(
                    digits(axis("p", count), (cut.groups, cut.across)),
                    (cut.groups, cut.across),
                    strict=True,
                )
            )
            self._tile_of_panels(group, tile)

    def _tile_of_panels(self, group: Index, tile: Index) -> None:
        """The whole tiles, and the last one where it has fewer panels."""
        writer, cut = self.writer, self.cut
        whole, left = divmod(-(-self._own // LANES), cut.panels)
        if whole:
            guard = f"if ({writer.index(tile)} < {whole})" if left else ""
            with writer.block(guard):
                self._rows(group, _below(tile, whole) * cut.panels, cut.panels)
        if left:
            with writer.block("else" if whole else ""):
                self._rows(group, number(whole * cut.panels), left)

    def _rows(self, group: Index, panel: Index, panels: int) -> None:
        """Every tile of pixels of the piece."""
        if self._keeps:
            self.keep(group, panel, panels)
        writer, cut, height = self.writer, self.cut, self.shape.places[1]
        rows = self.row_piece * cut.rows
        end = str(cut.rows)
        if height % cut.rows:
            end = f"min({cut.rows}, {height} - {writer.index(rows)})"
        if cut.high == 1:
            with writer.loop(Axis("y", cut.rows), "0", end):
                self._columns(group, panel, panels, axis("y", cut.rows), 1)
            return
        writer.line(f"const int end = {end};")
        writer.line("int at = 0;")
        for header, high in ((f"for (; at + {cut.high} <= end; at += {cut.high})", cut.high),
                             ("for (; at < end; ++at)", 1)):
            with writer.block(header):
                row = axis(writer.let(I32, False, "at"), cut.rows)
                self._columns(group, panel, panels, row, high)

    def _columns(self, group: Index, panel: Index, panels: int, row: Index, high: int) -> None:
        whole, left = divmod(self.shape.places[2], self.cut.wide)
        with self.over("x", whole) as column:
            self._tile(group, panel, panels, (row, column * self.cut.wide), (high, self.cut.wide))
        if left:
            with self.writer.block(""):
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
        zero = writer.dialect.splat(F32, LANES, writer.dialect.literal(F32, 0.0))
        names = [[writer.name("a") for _ in range(panels)] for _ in places]
        with writer.block(""):
            for name in (name for line in names for name in line):
                writer.line(f"{writer.type(F32, True)} {name} = {zero};")
            self.sums(group, panel, names, [(at[0] + i, at[1] + j) for i, j in places])
            row = self.row_piece * self.cut.rows + at[0]
            pixels = [
                self.pixel(row + i, at[1] + j) for i, j in places
            ]
            for p in range(panels):
                with writer.block(""):
                    self._finish(group, panel + p, pixels, [line[p] for line in names])

    def sums(
        self,
        group: Index,
        panel: Index,
        names: Sequence[Sequence[str]],
        places: Sequence[tuple[Index, Index]],
    ) -> None:
        """Add every product to the tile's sums."""
        raise NotImplementedError

    # --- the epilogue ---

    def pixel(self, row: Index, column: Index) -> Index:
        """A pixel's number in the result, as a variable."""
        _, height, width = self.shape.places
        flat = (self.slab * height + row) * width + column
        return self.named(flat, self.slabs * height * width)

    @property
    def _own(self) -> int:
        return self.shape.outputs // self.cut.groups

    def _finish(
        self, group: Index, panel: Index, pixels: Sequence[Index], names: Sequence[str]
    ) -> None:
        """The epilogue and the store of 16 outputs of every pixel; the last panel may have less."""
        writer, own = self.writer, self._own
        whole, left = divmod(own, LANES)
        panel = self.named(panel, -(-own // LANES))
        is_whole, is_left = panel.low < whole, panel.high >= whole
        if is_whole:
            guard = f"if ({writer.index(panel)} < {whole})" if is_left else ""
            with writer.block(guard), writer.lanes(LANE):
                output = group * own + _below(panel, whole) * LANES + axis("lane", LANES)
                for pixel, name in zip(pixels, names, strict=True):
                    self._store(pixel, output, name, True)
        if is_left:
            with writer.block("else" if is_whole else ""):
                for place in range(left):
                    output = group * own + (whole * LANES + place)
                    for pixel, name in zip(pixels, names, strict=True):
                        self._store(pixel, output, writer.dialect.lane(name, place), False)

    def _store(self, pixel: Index, output: Index, name: str, wide: bool) -> None:
        (exit,) = self.group.exits
        total: Expr = Var(F32, name, wide)
        if self.shape.bias is not None:
            total = Apply(F32, "add", total, self.builder.at(self.shape.bias, (output,)))
        flat = pixel * self.shape.outputs + output
        held = (digits(flat, self.graph.type(self.hero).shape), total)
        type = self.graph.type(exit)
        expr = self.builder.holding({self.hero: held}).at(exit, digits(flat, type.shape))
        self.writer.store(exit, type.dtype, flat, expr)

    # --- the operand ---

    def _is_direct(self) -> bool:
        """Whether the operand may be read where it is: nothing padded, channels side by side."""
        shape = self.shape
        if shape.is_depthwise and shape.channels % LANES:
            return False
        for slide in shape.slides:
            last = (slide.count - 1) * slide.stride + slide.span - slide.low
            if slide.low > 0 or last > slide.size or slide.base_dilation > 1:
                return False
        at = [axis(f"x{n}", slide.size) for n, slide in enumerate(shape.slides)]
        channel = axis("c", shape.channels)
        found = self.builder.at(shape.x, shape.x_at(axis("n", shape.batch), at, channel))
        wanted = flatten(
            (axis("n", shape.batch), *at, channel),
            (shape.batch, *(slide.size for slide in shape.slides), shape.channels),
        )
        return isinstance(found, Load) and found.index == wanted

    @property
    def _block(self) -> int:
        """Floats of an item's copy of the operand, whole lines of them."""
        return -(-self.cut.block(self.shape) // LANES) * LANES + LANES

    def element(self, row: Index, column: Index, taps: Sequence[Index], channel: Index) -> Expr:
        """What a tap sees from a pixel of the piece: ``row`` counts from the piece's first."""
        shape, cut = self.shape, self.cut
        depth, rows, columns = shape.slides
        down = row * rows.stride + taps[1] * rows.window_dilation
        along = column * columns.stride + taps[2] * columns.window_dilation
        if not self.direct:
            sizes = (shape.taps[0], cut.rows_in(shape), columns_in(shape), cut.pitch)
            place = flatten((taps[0], down, along, self.local(channel)), sizes)
            return Load(F32, self.source, self._item * self._block + place)
        batch, deep = digits(self.slab, (shape.batch, shape.places[0]))
        first = self.row_piece * cut.rows * rows.stride
        at = (
            deep * depth.stride + taps[0] * depth.window_dilation - depth.low,
            first + down - rows.low,
            along - columns.low,
        )
        return self.builder.at(shape.x, shape.x_at(batch, at, channel))

    @property
    def _item(self) -> Index:
        return Index({Axis("item", SHARED): 1})

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
        self.writer.store(self.source, F32, self._item * self._block + place, expr)

    def _copy(self) -> None:
        """The rows under the piece, spread and padded with zeros."""
        shape, writer, cut = self.shape, self.writer, self.cut
        depth, rows, _ = shape.slides
        batch, deep = digits(self.slab, (shape.batch, shape.places[0]))
        with self.over("d", shape.taps[0]) as tap, self.over("r", cut.rows_in(shape)) as row:
            at = (
                deep * depth.stride + tap * depth.window_dilation - depth.low,
                self.row_piece * (cut.rows * rows.stride) + row - rows.low,
            )
            sizes, gaps = zip(
                *((slide.size, slide.base_dilation - 1) for slide in (depth, rows)), strict=True
            )
            inside, found = spread(at, sizes, gaps)
            begin = (tap * cut.rows_in(shape) + row) * (columns_in(shape) * cut.pitch)
            always = isinstance(inside, Const) and inside.value
            with writer.block("" if always else f"if ({writer.scalar(inside)})"):
                self._line(batch, found, begin)
            if not always:
                with writer.block("else"):
                    self._zeros(begin, columns_in(shape))

    def _zeros(self, begin: Index, columns: int) -> None:
        zero = constant(F32, 0.0)
        self.channels(lambda place: self._put(place, zero), begin, columns * self.cut.pitch)

    def _line(self, batch: Index, found: Sequence[Index], begin: Index) -> None:
        """One row of the operand: padding, elements, padding."""
        slide, pitch = self.shape.slides[2], self.cut.pitch
        wide = columns_in(self.shape)
        first = min(wide, max(0, slide.low))
        end = max(first, min(wide, slide.size + slide.low))
        if slide.base_dilation > 1:
            self._spread_line(batch, found, begin)
            return
        for start, stop in ((0, first), (end, wide)):
            if start < stop:
                with self.writer.block(""):
                    self._zeros(begin + start * pitch, stop - start)
        if end > first:
            with self.writer.block(""):
                self._elements(batch, found, begin + first * pitch, (first - slide.low, end - first))

    def _elements(
        self, batch: Index, found: Sequence[Index], begin: Index, part: tuple[int, int]
    ) -> None:
        """Columns that hold elements, from the first one on, as many as there are."""
        shape, (first, count) = self.shape, part
        if not shape.is_depthwise and self.cut.pitch == shape.channels:

            def flat(place: Index) -> None:
                column, channel = digits(place, (count, shape.channels))
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
        slide = self.shape.slides[2]
        with self.over("j", columns_in(self.shape)) as column:
            inside, (at,) = spread((column - slide.low,), (slide.size,), (slide.base_dilation - 1,))
            begin = begin + column * self.cut.pitch
            with self.writer.block(f"if ({self.writer.scalar(inside)})"):
                self.pixel_of(batch, (*found, at), begin)
            with self.writer.block("else"):
                self._zeros(begin, 1)

    # --- the weights ---

    @property
    def _keeps(self) -> bool:
        """Whether an item makes the panels that it needs itself."""
        return self.detail.panels is None or self.detail.panels.dtype != F32

    @property
    def _kept(self) -> int:
        return self.cut.panels * self.shape.inputs * LANES

    def weight(self, group: Index, panel: Index, number_: int, input: Index) -> Expr:
        """The weights of the 16 outputs of a panel of the tile, for one input."""
        if self._keeps:
            place = (self._item * self.cut.panels + number_) * self.shape.inputs + input
            return Load(F32, self.held, place * LANES + axis("lane", LANES))
        panels, packed = self.detail.panels, self.detail.packed
        assert panels is not None and packed is not None
        output = group * self._own + (panel + number_) * LANES + axis("lane", LANES)
        return panels.weight(packed, output, input)

    def keep(self, group: Index, panel: Index, panels: int) -> None:
        """The panels of a tile as floats into scratch memory, once for all pixels."""
        for p in range(panels):
            output = group * self._own + (panel + p) * LANES + axis("lane", LANES)
            with self.writer.block(""), self.writer.lanes(LANE):
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
        with self.over("t0", shape.taps[0]) as a, self.over("t1", shape.taps[1]) as b:
            with self.over("t2", shape.taps[2]) as c, self.over("i", shape.own[1]) as channel:
                input = flatten((a, b, c, channel), (*shape.taps, shape.own[1]))
                at = shape.weight_at(output, (a, b, c), channel)
                self._hold(place, input, cast(F32, self.builder.at(shape.weight, at)))

    def _hold(self, place: int, input: Index, weight: Expr) -> None:
        at = (self._item * self.cut.panels + place) * self.shape.inputs + input
        self.writer.store(self.held, F32, at * LANES + axis("lane", LANES), weight)

    def add(self, name: str, x: str, weight: str) -> None:
        """One product more, in every lane."""
        text = self.writer.dialect.apply("fma", F32, F32, LANES, [x, weight, name])
        self.writer.line(f"{name} = {text};")


def _below(named: Index, size: int) -> Index:
    """A variable that is known to be below ``size`` here."""
    if named.is_constant:
        return named
    ((variable, _),) = named.terms.items()
    assert isinstance(variable, Axis)
    return axis(variable.name, size)


class Dense(_Convolving):
    """Every output sees every channel of its group: one input is broadcast to 16 outputs."""

    def sums(
        self,
        group: Index,
        panel: Index,
        names: Sequence[Sequence[str]],
        places: Sequence[tuple[Index, Index]],
    ) -> None:
        """Taps and channels, in the order of the weights."""
        shape, (_, channels) = self.shape, self.shape.own
        flat = shape.groups == 1 and self.cut.pitch == channels and not self.direct
        flat = flat and shape.slides[2].window_dilation == 1
        along = shape.taps[2]
        with self.over("k0", shape.taps[0]) as a, self.over("k1", shape.taps[1]) as b:
            above = flatten((a, b), shape.taps[:2]) * (along * channels)
            if flat:
                with self.over("k", along * channels) as k:
                    self._step(panel, group, names, places, ((a, b, ZERO), k, above + k))
                return
            with self.over("k2", along) as c, self.over("k", channels) as k:
                channel, input = group * channels + k, above + c * channels + k
                self._step(panel, group, names, places, ((a, b, c), channel, input))

    def _step(
        self,
        panel: Index,
        group: Index,
        names: Sequence[Sequence[str]],
        places: Sequence[tuple[Index, Index]],
        at: tuple[Sequence[Index], Index, Index],
    ) -> None:
        """One input of every pixel of the tile times the weights of its panels."""
        taps, channel, input = at
        writer = self.writer
        with writer.lanes(LANE):
            weights = [
                writer.wide(self.weight(group, panel, p, input)) for p in range(len(names[0]))
            ]
            for (row, column), line in zip(places, names, strict=True):
                x = writer.widened(writer.value(self.element(row, column, taps, channel)))
                for name, weight in zip(line, weights, strict=True):
                    self.add(name, x, weight)


class Depthwise(_Convolving):
    """Every output sees one channel: 16 neighbouring channels side by side."""

    def local(self, channel: Index) -> Index:
        """Only the piece's own channels are copied."""
        return channel - self.tile_piece * (self.cut.tiles * LANES)

    def pixel_of(self, batch: Index, at: Sequence[Index], begin: Index) -> None:
        """The piece's channels of one pixel."""
        shape, writer, cut = self.shape, self.writer, self.cut
        whole, left = divmod(shape.channels, LANES)
        with self.over("w", cut.tiles) as vector:
            panel = self.named(self.tile_piece * cut.tiles + vector, cut.tile_pieces * cut.tiles)

            def one(channel: Index, to: Index) -> None:
                self._put(to, self.builder.at(shape.x, shape.x_at(batch, at, channel)))

            if panel.low < whole:
                guard = f"if ({writer.index(panel)} < {whole})" if panel.high >= whole else ""
                with writer.block(guard), writer.lanes(LANE):
                    lane = axis("lane", LANES)
                    one(_below(panel, whole) * LANES + lane, begin + vector * LANES + lane)
            if left and panel.high >= whole:
                with writer.block(f"if ({writer.index(panel)} == {whole})"):
                    with self.over("u", left) as place:
                        one(place + whole * LANES, begin + vector * LANES + place)

    def sums(
        self,
        group: Index,
        panel: Index,
        names: Sequence[Sequence[str]],
        places: Sequence[tuple[Index, Index]],
    ) -> None:
        """Tap by tap; those of a row are written out, so that pixels share what they load."""
        shape, writer = self.shape, self.writer
        channel = panel * LANES + axis("lane", LANES)
        with self.over("k0", shape.taps[0]) as a, self.over("k1", shape.taps[1]) as b:
            with writer.block(""), writer.lanes(LANE):
                for c in range(shape.taps[2]):
                    taps = (a, b, number(c))
                    weight = self.weight(group, panel, 0, flatten(taps, shape.taps))
                    text = writer.wide(weight)
                    for (row, column), (name,) in zip(places, names, strict=True):
                        self.add(name, writer.wide(self.element(row, column, taps, channel)), text)
