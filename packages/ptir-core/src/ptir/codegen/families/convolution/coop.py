"""The coop schedules of convolutions: tiles of a group over pixels and outputs, or a result each.

A convolution is a contraction whose rows are pixels and whose depth is taps and channels: what a
tap sees is found while it is brought into shared memory. Depthwise ones have nothing to share: a
member sums one result.
"""

from __future__ import annotations

import math

from ptir.codegen.expressions.elementwise import cast
from ptir.codegen.expressions.expr import Apply, Coordinate, Expr, Var, constant, select
from ptir.codegen.expressions.index import ZERO, Axis, Index, axis, digits
from ptir.codegen.expressions.movement import spread
from ptir.codegen.families.convolution.match import Detail
from ptir.codegen.kernel_ir.conditions import less
from ptir.codegen.schedules.epilogue import builder_of, store
from ptir.codegen.schedules.kernel import Group, Kernel, Site, finished
from ptir.codegen.schedules.tile import Operand, Tile
from ptir.types import F32, I32


def coop(group: Group, site: Site) -> Kernel:
    """The schedule for depthwise convolutions, or the one for all others."""
    made = TeamConvolution(group, site)
    return made.single() if made.shape.is_depthwise else made.tiled()


class TeamConvolution:
    """One convolution while its kernel of groups is written."""

    def __init__(self, group: Group, site: Site) -> None:
        self.group, self.site, self.writer = group, site, site.writer()
        detail: Detail = group.detail
        self.detail, self.shape = detail, detail.shape
        self.builder = builder_of(group, site)
        self.hero = site.graph.results[detail.position][0]
        self.pixels = self.shape.batch * math.prod(self.shape.places)

    def tiled(self) -> Kernel:
        """A group per tile of pixels and outputs; no tile has outputs of two groups."""
        shape, writer = self.shape, self.writer
        own, channels = shape.own
        tile = Tile(self.site, writer, F32, (self.pixels, own, shape.inputs))
        items = axis("item", shape.groups * tile.count)
        which = self._named(items // tile.count, shape.groups)
        panels, packed = self.detail.panels, self.detail.packed

        def weights(output: Index, k: Index) -> list[Expr]:
            output = which * own + output
            if panels is None or packed is None:
                return [self._weight(output, k)]
            return [panels.weight(packed, output, k + n) for n in range(panels.per)]

        tile.write(
            items % tile.count,
            Operand(lambda pixel, k: [self._seen(pixel, k, which * channels)], deep=True),
            Operand(weights, deep=panels is None, per=panels.per if panels else 1),
            lambda pixel, output, sum: self._finish(pixel, which * own + output, sum),
        )
        return finished(self.group, writer, shape.groups * tile.count, members=tile.members)

    def single(self) -> Kernel:
        """A result for each member."""
        shape, writer, count = self.shape, self.writer, self.pixels * self.shape.outputs
        members = min(self.site.tiles.threads, self.site.traits.group)
        groups = -(-count // members)
        place = Index({Axis("item", groups): members}) + axis("member", members)
        own = writer.let(Coordinate(I32, place), "result")
        with writer.when(less(own, count)):
            result = axis(own.name, count)
            pixel = self._named(result // shape.outputs, self.pixels)
            output = self._named(result % shape.outputs, shape.outputs)
            sum = writer.declare(constant(F32, 0.0), "sum")
            with writer.loop(Axis("k", shape.inputs), 0, shape.inputs):
                k = axis("k", shape.inputs)
                panels, packed = self.detail.panels, self.detail.packed
                if panels is None or packed is None or panels.per > 1:
                    weight = self._weight(output, k)
                else:
                    weight = panels.weight(packed, output, k)
                factors = map(writer.scalar, (self._seen(pixel, k, output), weight))
                writer.assign(sum, writer.apply("fma", F32, *factors, sum))
            self._finish(pixel, output, sum)
        return finished(self.group, writer, groups, members=members)

    def _named(self, at: Index, size: int) -> Index:
        """A number as a variable of its own."""
        return ZERO if size == 1 else self.writer.let_index(at, size)

    def _taps(self, k: Index) -> tuple[Index, ...]:
        """The taps and the channel of a place along the depth."""
        return digits(k, (*self.shape.taps, self.shape.own[1]))

    def _seen(self, pixel: Index, k: Index, channel: Index) -> Expr:
        """What a tap sees from a pixel: an element, or the zero of padding and gaps."""
        shape = self.shape
        batch, *places = digits(pixel, (shape.batch, *shape.places))
        *taps, own = self._taps(k)
        at = [
            place * dimension.stride + tap * dimension.window_dilation - dimension.low
            for place, tap, dimension in zip(places, taps, shape.dimensions, strict=True)
        ]
        sizes = [dimension.size for dimension in shape.dimensions]
        gaps = [dimension.base_dilation - 1 for dimension in shape.dimensions]
        inside, found = spread(at, sizes, gaps)
        element = self.builder.at(shape.x, shape.x_at(batch, found, channel + own))
        return select(inside, element, constant(F32, 0.0))

    def _weight(self, output: Index, k: Index) -> Expr:
        """A weight as the program knows it."""
        *taps, channel = self._taps(k)
        at = self.shape.weight_at(output, taps, channel)
        return cast(F32, self.builder.at(self.shape.weight, at))

    def _finish(self, pixel: Index, output: Index, sum: Var) -> None:
        (exit,) = self.group.exits
        total: Expr = sum
        if self.shape.bias is not None:
            total = Apply(F32, "add", total, self.builder.at(self.shape.bias, (output,)))
        flat = pixel * self.shape.outputs + output
        store(self.writer, self.builder, (self.hero, total), exit, flat)
