"""The kernels of convolutions: pieces, tiles of pixels and panels, products, the epilogue."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from ptir.codegen.epilogue import store
from ptir.codegen.expr import Apply, Expr, Load, Var
from ptir.codegen.families.convolution import Detail
from ptir.codegen.families.convolution_parts import LANE, Parts
from ptir.codegen.index import ZERO, Axis, Index, axis, digits, flatten, number, replaced
from ptir.codegen.kernel import Group, Kernel, Site, finished
from ptir.codegen.panels import LANES
from ptir.types import F32, I32, TensorType


class _Convolving(Parts, ABC):
    """What both schedules share."""

    def kernel(self) -> Kernel:
        """A loop over pieces."""
        writer, cut = self.writer, self.cut
        writer.share(self.pieces, self.items)
        with writer.loop(Axis("q", self.pieces), "first", "last", rolled=True):
            split = digits(axis("q", self.pieces), (self.slabs, cut.row_pieces, cut.tile_pieces))
            self.slab, self.row_piece, self.tile_piece = (
                self.named(index, size)
                for index, size in zip(
                    split, (self.slabs, cut.row_pieces, cut.tile_pieces), strict=True
                )
            )
            if not self.direct:
                self.copy()
            self._panels()
        block = 1 if self.direct else self.items * self.block
        kept = self.items * self.kept if self.keeps else 1
        scratch = tuple(TensorType(F32, (size,)) for size in (block, kept))
        return finished(self.group, writer, self.items, scratch)

    def _panels(self) -> None:
        """Every tile of panels of the piece, and for each every tile of pixels."""
        writer, cut = self.writer, self.cut
        count = cut.groups * cut.across
        if cut.tile_pieces == 1:
            ends = "0", str(count)
        else:
            begin = self.tile_piece * cut.tiles
            first = writer.let_text(I32, False, writer.index_text(begin))
            ends = first, f"min({first} + {cut.tiles}, {count})"
        with writer.loop(Axis("p", count), *ends, rolled=True):
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
        whole, left = divmod(-(-self.each // LANES), cut.panels)
        if whole:
            guard = f"if ({writer.index_text(tile)} < {whole})" if left else ""
            with writer.block(guard):
                self._rows(group, _below(tile, whole) * cut.panels, cut.panels)
        if left:
            with writer.block("else" if whole else ""):
                self._rows(group, number(whole * cut.panels), left)

    def _rows(self, group: Index, panel: Index, panels: int) -> None:
        """Every tile of pixels of the piece."""
        if self.keeps:
            self.keep(group, panel, panels)
        writer, cut, height = self.writer, self.cut, self.shape.places[1]
        rows = self.row_piece * cut.rows
        end = str(cut.rows)
        if height % cut.rows:
            end = f"min({cut.rows}, {height} - {writer.index_text(rows)})"
        if cut.high == 1:
            with writer.loop(Axis("y", cut.rows), "0", end, rolled=True):
                self._columns(group, panel, panels, axis("y", cut.rows), 1)
            return
        writer.line(f"const int end = {end};")
        writer.line("int at = 0;")
        for header, high in (
            (f"for (; at + {cut.high} <= end; at += {cut.high})", cut.high),
            ("for (; at < end; ++at)", 1),
        ):
            with writer.block(f"{writer.dialect.rolled} {header}".strip()):
                row = axis(writer.let_text(I32, False, "at"), cut.rows)
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
            pixels = [self.pixel(row + i, at[1] + j) for i, j in places]
            for p in range(panels):
                with writer.block(""):
                    self._finish(group, panel + p, pixels, [line[p] for line in names])

    @abstractmethod
    def sums(
        self,
        group: Index,
        panel: Index,
        names: Sequence[Sequence[str]],
        places: Sequence[tuple[Index, Index]],
    ) -> None:
        """Add every product to the tile's sums."""

    # --- the epilogue ---

    def pixel(self, row: Index, column: Index) -> Index:
        """A pixel's number in the result, as a variable."""
        _, height, width = self.shape.places
        flat = (self.slab * height + row) * width + column
        return self.named(flat, self.slabs * height * width)

    def _finish(
        self, group: Index, panel: Index, pixels: Sequence[Index], names: Sequence[str]
    ) -> None:
        """The epilogue and the store of 16 outputs of every pixel; the last panel may have less."""
        writer, own = self.writer, self.each
        whole, left = divmod(own, LANES)
        panel = self.named(panel, -(-own // LANES))
        is_whole, is_left = panel.low < whole, panel.high >= whole
        if is_whole:
            guard = f"if ({writer.index_text(panel)} < {whole})" if is_left else ""
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
        store(self.writer, self.builder, (self.hero, total), exit, flat)

    def ahead(self, expr: Expr, width: int, known: dict[Index, str]) -> str:
        """A load, in a loop over ``k`` or not, a short distance from a place that is known before.

        Compilers do not find that out by themselves where places are sums of many variables.
        """
        assert isinstance(expr, Load)
        index = replaced(expr.index, {LANE: ZERO})
        run = next(
            (atom for atom in index.terms if isinstance(atom, Axis) and atom.name == "k"), None
        )
        near = Index({run: index.terms[run]} if run is not None else {}, index.constant)
        writer, far = self.writer, index - near
        if far not in known:
            known[far] = writer.let_text(I32, False, writer.index_text(far))
        buffer = f"({writer.buffer(expr.source, F32)} + {known[far]})"
        return writer.dialect.load(F32, width, buffer, writer.index_text(near))

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
        together = shape.groups == 1 and self.cut.pitch == channels and not self.direct
        together = together and shape.dimensions[2].window_dilation == 1
        along, lines = shape.taps[2], 1 if together else shape.taps[2]
        run = along // lines * channels
        with (
            self.over("k0", shape.taps[0]) as a,
            self.over("k1", shape.taps[1]) as b,
            self.over("k2", lines) as c,
        ):
            k = axis("k", run)
            channel = group * channels + k
            input = flatten((a, b, c, k), (*shape.taps[:2], lines, run))
            xs = [self.element(*place, (a, b, c), channel) for place in places]
            weights = [self.weight(group, panel, p, input) for p in range(len(names[0]))]
            known: dict[Index, str] = {}
            self._run(
                run,
                names,
                [self.ahead(x, 1, known) for x in xs],
                [self.ahead(weight, LANES, known) for weight in weights],
            )

    def _run(
        self, size: int, names: Sequence[Sequence[str]], xs: Sequence[str], weights: Sequence[str]
    ) -> None:
        """The innermost loop: every pixel of the tile times the weights of its panels."""
        writer = self.writer
        with self.over("k", size):
            factors = [writer.let_text(F32, True, text) for text in weights]
            for text, line in zip(xs, names, strict=True):
                x = writer.dialect.splat(F32, LANES, writer.let_text(F32, False, text))
                for name, factor in zip(line, factors, strict=True):
                    self.add(name, x, factor)


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
                guard = f"if ({writer.index_text(panel)} < {whole})" if panel.high >= whole else ""
                with writer.block(guard), writer.lanes(LANE):
                    lane = axis("lane", LANES)
                    one(_below(panel, whole) * LANES + lane, begin + vector * LANES + lane)
            if left and panel.high >= whole:
                last = writer.block(f"if ({writer.index_text(panel)} == {whole})")
                with last, self.over("u", left) as place:
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
        with (
            self.over("k0", shape.taps[0]) as a,
            self.over("k1", shape.taps[1]) as b,
            writer.block(""),
            writer.lanes(LANE),
        ):
            known: dict[Index, str] = {}
            loaded: dict[str, str] = {}

            def load(expr: Expr) -> str:
                text = self.ahead(expr, LANES, known)
                if text not in loaded:
                    loaded[text] = writer.let_text(F32, True, text)
                return loaded[text]

            for c in range(shape.taps[2]):
                taps = (a, b, number(c))
                weight = load(self.weight(group, panel, 0, flatten(taps, shape.taps)))
                for (row, column), (name,) in zip(places, names, strict=True):
                    self.add(name, load(self.element(row, column, taps, channel)), weight)


def write(group: Group, site: Site) -> Kernel:
    """The schedule for depthwise convolutions, or the one for all others."""
    detail: Detail = group.detail
    return (Depthwise if detail.shape.is_depthwise else Dense)(group, site).kernel()
