"""The cooperative schedules of convolutions: a tile of pixels and outputs, or a result a thread.

A convolution is a contraction whose rows are pixels and whose depth is taps and channels: what a
tap sees is found while it is brought into shared memory. Depthwise ones have nothing to share: a
thread sums one result.
"""

from __future__ import annotations

import math

from ptir.codegen.expressions.expr import Coordinate, Expr, constant, select
from ptir.codegen.expressions.index import Axis, Index, axis, unravel_index
from ptir.codegen.expressions.movement import tapped
from ptir.codegen.families.convolution.convolving import Convolving
from ptir.codegen.kernel_ir.conditions import less
from ptir.codegen.schedules.kernel import EmitContext, Fusion, Kernel, finish_kernel
from ptir.codegen.schedules.tile import Operand, Tile
from ptir.types import F32, I32


def emit_cooperative(fusion: Fusion, context: EmitContext) -> Kernel:
    """The schedule for depthwise convolutions, or the one for all others."""
    made = CooperativeConvolution(fusion, context)
    return made.single() if made.shape.is_depthwise else made.tiled()


class CooperativeConvolution(Convolving):
    """One convolution while its cooperative kernel is written."""

    def __init__(self, fusion: Fusion, context: EmitContext) -> None:
        super().__init__(fusion, context)
        self.pixels = self.shape.batch * math.prod(self.shape.places)

    def tiled(self) -> Kernel:
        """A workgroup per tile of pixels and outputs; no tile has outputs of two groups."""
        shape, writer = self.shape, self.writer
        own, channels = shape.own
        tile = Tile(self.context, writer, F32, (self.pixels, own, shape.inputs))
        workgroups = axis("item", shape.groups * tile.count)
        which = self.named(workgroups // tile.count, shape.groups)
        panels, packed = self.detail.panels, self.detail.packed

        def weights(output: Index, k: Index) -> list[Expr]:
            output = which * own + output
            if panels is None or packed is None:
                return [self._weight(output, k)]
            return [panels.weight(packed, output, k + n) for n in range(panels.per)]

        tile.write(
            workgroups % tile.count,
            Operand(lambda pixel, k: [self._seen(pixel, k, which * channels)], deep=True),
            Operand(weights, deep=panels is None, per=panels.per if panels else 1),
            lambda pixel, output, sum: self.finish(pixel, which * own + output, sum),
        )
        return finish_kernel(
            self.fusion, writer, shape.groups * tile.count, workgroup_size=tile.workgroup_size
        )

    def single(self) -> Kernel:
        """A result for each thread."""
        shape, writer, count = self.shape, self.writer, self.pixels * self.shape.outputs
        threads = min(
            self.context.tiles.independent_workgroup_size, self.context.traits.max_workgroup_size
        )
        groups = -(-count // threads)
        place = Index({Axis("item", groups): threads}) + axis("member", threads)
        own = writer.let(Coordinate(I32, place), "result")
        with writer.when(less(own, count)):
            result = axis(own.name, count)
            pixel, output = self.named_digits(result, (self.pixels, shape.outputs))
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
            self.finish(pixel, output, sum)
        return finish_kernel(self.fusion, writer, groups, workgroup_size=threads)

    def _taps(self, k: Index) -> tuple[Index, ...]:
        """The taps and the channel of a place along the depth."""
        return unravel_index(k, (*self.shape.taps, self.shape.own[1]))

    def _seen(self, pixel: Index, k: Index, channel: Index) -> Expr:
        """What a tap sees from a pixel: an element, or the zero of padding and gaps."""
        shape = self.shape
        batch, *places = unravel_index(pixel, (shape.batch, *shape.places))
        *taps, own = self._taps(k)
        inside, found = tapped(places, taps, shape.dimensions)
        element = self.builder.at(shape.x, shape.x_at(batch, found, channel + own))
        return select(inside, element, constant(F32, 0.0))

    def _weight(self, output: Index, k: Index) -> Expr:
        """A weight as the program knows it."""
        *taps, channel = self._taps(k)
        return self.plain_weight(output, taps, channel)
