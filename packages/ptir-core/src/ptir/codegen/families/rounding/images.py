"""The kernel that rounds images to unsigned bytes, with what is padded around them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

from ptir.codegen.expressions.expr import Apply, Coordinate, Expr, compare, constant, select
from ptir.codegen.expressions.index import ZERO, Axis, Index, axis, unravel_index
from ptir.codegen.families.rounding.serial import BITS, HALVES, NAN, WORK
from ptir.codegen.fusion.graph import Graph
from ptir.codegen.kernel_ir.conditions import less
from ptir.codegen.schedules.epilogue import HeroKernel
from ptir.codegen.schedules.kernel import EmitContext, Fusion, Kernel, alone, finish_kernel
from ptir.codegen.weights.panels import LANES
from ptir.ops.rounded import LEAST, MOST_UNSIGNED
from ptir.types import F32, I32, U8

LANE: Final = Axis("lane", LANES)
MOST: Final = int(MOST_UNSIGNED)


def match(graph: Graph, position: int) -> Fusion | None:
    """The fusion of one rounding."""
    return alone("image_rounding", graph, position)


def emit(fusion: Fusion, context: EmitContext) -> Kernel:
    """A workgroup rounds a run of rows."""
    return ImageRounding(fusion, context).kernel()


class ImageRounding(HeroKernel):
    """One rounding while its kernel is written."""

    def __init__(self, fusion: Fusion, context: EmitContext) -> None:
        super().__init__(fusion, context)
        self.x, self.least, self.span = self.made.operands
        self.values, self.zeros, self.scales = fusion.outputs
        self.low: tuple[int, int, int] = self.made.attributes["low"]
        self.images, self.height, self.width, self.own = self.graph.type(self.x).shape
        _, self.rows, self.columns, self.channels = self.graph.type(self.values).shape

    def kernel(self) -> Kernel:
        """A loop over the rows of all images, those that are padded among them."""
        writer, count = self.writer, self.images * self.rows
        workgroups = self.context.workgroups(count, count * self.columns * self.channels * WORK)
        with writer.each("q", count, *writer.work_range(count, workgroups), no_unroll=True) as q:
            sizes = self.images, self.rows
            self._row(*map(self._named, unravel_index(q, sizes), sizes))
        return finish_kernel(self.fusion, writer, workgroups)

    def _row(self, image: Index, row: Index) -> None:
        """What an image's bytes are made with, and one row of them."""
        writer = self.writer
        span = writer.let(writer.scalar(self.builder.at(self.span, (image,))))
        above = compare("gt", span, LEAST)
        steps = constant(F32, MOST_UNSIGNED) / span
        factor = writer.let(writer.scalar(select(above, steps, constant(F32, 0.0))))
        lowest = self.builder.at(self.least, (image,))
        below = -lowest * factor
        zero = writer.let(writer.scalar(_nearest(below)))
        with writer.when(less(row, 1)):
            finite = compare("lt", span, math.inf)
            scale = select(finite, span * (1 / MOST_UNSIGNED), NAN)
            writer.store(self.scales, F32, image, scale)
            writer.store(self.zeros, I32, image, zero)
        begin = (image * self.rows + row) * (self.columns * self.channels)
        seen = self._named(row - self.low[0], self.height) if self.rows > self.height else row
        inside = None
        if self.rows > self.height:
            before = compare("ge", Coordinate(I32, row), self.low[0])
            behind = less(row, self.low[0] + self.height)
            inside = writer.scalar(before & behind)
        with writer.when(inside):
            self._line(image, seen, begin, factor, zero)
        if inside is not None:
            with writer.otherwise():
                self._fill(begin, self.columns * self.channels, zero)

    def _line(self, image: Index, row: Index, begin: Index, factor: Expr, zero: Expr) -> None:
        """Padding, elements, padding."""
        left, channels = self.low[1] * self.channels, self.channels
        self._fill(begin, left, zero)
        begin = begin + left
        if self.own == channels and not self.low[2]:

            def flat(place: Index) -> None:
                at = unravel_index(place, (self.width, channels))
                self._put(begin + place, self._byte((image, row, *at), factor, zero))

            self._each(self.width * channels, flat)
        else:
            with self.writer.each("j", self.width) as j:
                self._pixel((image, row, j), begin, factor, zero)
        right = (self.columns - self.width - self.low[1]) * channels
        self._fill(begin + self.width * channels, right, zero)

    def _pixel(
        self, at: tuple[Index, Index, Index], begin: Index, factor: Expr, zero: Expr
    ) -> None:
        """The channels of one element, those that are padded among them."""
        begin = begin + at[2] * self.channels
        self._fill(begin, self.low[2], zero)
        first = begin + self.low[2]

        def one(channel: Index) -> None:
            self._put(first + channel, self._byte((*at, channel), factor, zero))

        self._each(self.own, one)
        self._fill(first + self.own, self.channels - self.own - self.low[2], zero)

    def _byte(self, at: tuple[Index, ...], factor: Expr, zero: Expr) -> Expr:
        """The byte of an element as a whole number; two halves may come to one step too many."""
        found = _nearest(self.builder.at(self.x, at) * factor)
        return Apply(I32, "min", found + zero, constant(I32, MOST))

    def _fill(self, begin: Index, count: int, zero: Expr) -> None:
        """``count`` bytes that stand for 0."""
        with self.writer.scope():
            self._each(count, lambda place: self._put(begin + place, zero))

    def _each(self, count: int, body: Callable[[Index], None]) -> None:
        """Call ``body`` with every place below ``count``: whole vectors, then single ones."""
        whole, left = divmod(count, LANES)
        if whole:
            with self._over("w", whole) as vector, self.writer.lanes(LANE):
                body(vector * LANES + axis("lane", LANES))
        if left:
            with self._over("u", left) as one:
                body(one + whole * LANES)

    @contextmanager
    def _over(self, name: str, size: int) -> Iterator[Index]:
        """A loop, or nothing but its only value."""
        with ExitStack() as loops:
            if size > 1:
                loops.enter_context(self.writer.loop(Axis(name, size), 0, size))
            yield axis(name, size) if size > 1 else ZERO

    def _put(self, place: Index, whole: Expr) -> None:
        self.writer.store(self.values, U8, place, Apply(U8, "convert", whole))

    def _named(self, index: Index, size: int) -> Index:
        if index.is_constant:
            return index
        return self.writer.let_index(self.writer.index(index), size)


def _nearest(value: Expr) -> Expr:
    """The nearest whole number of one that is small, half to even."""
    moved = value + HALVES
    return Apply(I32, "bits", moved) - BITS
