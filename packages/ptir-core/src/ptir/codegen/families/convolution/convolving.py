"""What the kernels of convolutions share: the schedules of threads, and those of one thread."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import NamedTuple, TypeAlias

from ptir.codegen.expressions.elementwise import cast
from ptir.codegen.expressions.expr import Apply, Const, Coordinate, Expr, Load, Var
from ptir.codegen.expressions.index import (
    ZERO,
    Axis,
    Index,
    axis,
    ravel_index,
    replaced,
    unravel_index,
)
from ptir.codegen.expressions.movement import limited
from ptir.codegen.families.convolution.match import Detail
from ptir.codegen.kernel_ir.conditions import less
from ptir.codegen.kernel_ir.nodes import Prefetch
from ptir.codegen.kernel_ir.values import Lane, Read
from ptir.codegen.kernel_ir.writer import Writer
from ptir.codegen.schedules.epilogue import builder_of, result, store
from ptir.codegen.schedules.kernel import EmitContext, Fusion, scratch_value
from ptir.codegen.weights.filters import Convolution
from ptir.codegen.weights.panels import LANES, Panels
from ptir.types import F32, I32

LANE = Axis("lane", LANES)

Sums: TypeAlias = Sequence[Sequence[Var]]
"""The sums of a tile, by pixel and panel."""


class Ahead(NamedTuple):
    """What the cache fetches beside products: for every channel ``each`` elements more.

    The first of them lies ``elements`` behind what ``read`` reads for channel 0, and ``further``.
    """

    read: Read
    elements: int
    each: int
    further: Index = ZERO


class Convolving:
    """One convolution while a kernel of either schedule is written."""

    def __init__(self, fusion: Fusion, context: EmitContext) -> None:
        self.fusion, self.context = fusion, context
        self.detail: Detail = fusion.detail
        self.shape: Convolution = self.geometry()
        self.writer: Writer = context.writer()
        self.builder = builder_of(fusion, context)
        self.hero = context.graph.results[self.detail.position][0]

    def geometry(self) -> Convolution:
        """What the kernel computes: windows of the operand, and sums for each."""
        return self.detail.shape

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

    def pixels_ahead(self, first: Read, pixels: int) -> list[Ahead]:
        """The tile behind one of ``pixels``, of which ``first`` reads the first one in memory.

        Processors find out by themselves what comes next in one long stream, not in several short
        ones. Nothing where pixels do not follow one another.
        """
        shape, tiles = self.shape, self.context.tiles.convolution_tiles_ahead
        apart = shape.groups > 1 or shape.dimensions[2].stride > 1
        if not tiles or apart or math.prod(shape.taps) > 1:
            return []
        return [Ahead(first, tiles * pixels * shape.channels, pixels)]

    def finish(self, pixel: Index, output: Index, total: Expr) -> None:
        """Add the bias to a result, and store what follows it."""
        flat = pixel * self.shape.outputs + output
        store(self.writer, self.builder, self._held(output, total), self.fusion.outputs[0], flat)

    def finished(self, pixel: Index, output: Index, total: Expr) -> Expr:
        """What ``finish`` stores."""
        flat = pixel * self.shape.outputs + output
        return result(self.builder, self._held(output, total), self.fusion.outputs[0], flat)

    def _held(self, output: Index, total: Expr) -> tuple[int, Expr]:
        if self.shape.bias is not None:
            total = Apply(F32, "add", total, self.builder.at(self.shape.bias, (output,)))
        return self.hero, total


class SerialConvolution(Convolving, ABC):
    """A convolution of one thread: its loops, the weights of a tile, products, the epilogue.

    Whoever extends it says how many ``workgroups`` there are.
    """

    def __init__(self, fusion: Fusion, context: EmitContext) -> None:
        super().__init__(fusion, context)
        self.source, self.held = scratch_value(fusion, 0), scratch_value(fusion, 1)
        self.workgroups = 1

    @property
    @abstractmethod
    def each(self) -> int:
        """Outputs of a group."""

    @property
    @abstractmethod
    def panels(self) -> int:
        """Panels of a tile."""

    @contextmanager
    def over(self, name: str, size: int) -> Iterator[Index]:
        """A loop, or nothing but its only value."""
        with ExitStack() as loops:
            if size > 1:
                loops.enter_context(self.writer.loop(Axis(name, size), 0, size, no_unroll=True))
            yield axis(name, size)

    @property
    def item(self) -> Index:
        """The workgroup's number."""
        return Index({Axis("item", self.workgroups): 1})

    def channels(self, body: Callable[[Index], None], begin: Index, size: int) -> None:
        """Call ``body`` with every place from ``begin`` on, whole vectors, then single ones."""
        whole, left = divmod(size, LANES)
        if whole:
            with self.over("w", whole) as vector, self.writer.lanes(LANE):
                body(begin + vector * LANES + axis("lane", LANES))
        if left:
            with self.over("u", left) as one:
                body(begin + whole * LANES + one)

    # --- the weights ---

    @property
    def keeps(self) -> bool:
        """Whether a workgroup makes the panels that it needs itself."""
        return self.detail.panels is None or self.detail.panels.dtype != F32

    @property
    def kept(self) -> int:
        """Floats of the panels that a workgroup makes itself."""
        return self.panels * self.shape.inputs * LANES

    def weight(self, group: Index, panel: Index, number_: int, input: Index) -> Expr:
        """The weights of the 16 outputs of a panel of the tile, for one input."""
        if self.keeps:
            place = (self.item * self.panels + number_) * self.shape.inputs + input
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
        at = (self.item * self.panels + place) * self.shape.inputs + input
        self.writer.store(self.held, F32, at * LANES + axis("lane", LANES), weight)

    # --- products ---

    def ahead(self, expr: Expr, wide: bool, known: dict[Index, Var], beyond: int = 0) -> Read:
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
            known[far] = writer.let(Coordinate(I32, writer.index(far)))
        base = variable(known[far], far.high + 1 - beyond)
        return Read(expr.dtype, writer.memory(expr.source, expr.dtype), near, wide, base)

    def add(self, total: Var, x: Expr, weight: Expr) -> None:
        """One product more, in every lane."""
        self.writer.assign(total, self.writer.apply("fma", F32, x, weight, total))

    def broadcast(self, x: Read) -> Expr:
        """An element of a pixel, as it is multiplied with the weights of several panels."""
        return self.writer.let(x)

    def fetch(self, ahead: Sequence[Ahead], size: int) -> None:
        """Have the cache fetch a part of what comes next, in the loop over ``size`` channels."""
        for read, elements, each, further in ahead:
            first = replaced(read.place, {Axis("k", size): ZERO})
            at = first + further + axis("k", size) * each
            self.writer.emit(Prefetch(read.dtype, read.memory, at, elements))

    def multiply(
        self,
        size: int,
        sums: Sums,
        xs: Sequence[Read],
        weights: Sequence[Read],
        ahead: Sequence[Ahead] = (),
    ) -> None:
        """The innermost loop: every pixel of the tile times the weights of its panels."""
        writer = self.writer
        with self.over("k", size):
            self.fetch(ahead, size)
            factors = [writer.let(weight) for weight in weights]
            for x, line in zip(xs, sums, strict=True):
                held = self.broadcast(x)
                for total, factor in zip(line, factors, strict=True):
                    self.add(total, held, factor)

    # --- the epilogue ---

    def results(
        self, group: Index, panel: Index, pixels: Sequence[Index], sums: Sequence[Var]
    ) -> None:
        """The epilogue and the store of 16 outputs of every pixel; the last panel may have less."""
        writer, own = self.writer, self.each
        whole, left = divmod(own, LANES)
        panel = self.named(panel, -(-own // LANES))
        is_whole, is_left = panel.low < whole, panel.high >= whole
        if is_whole:
            with writer.when(less(panel, whole) if is_left else None), writer.lanes(LANE):
                output = group * own + below(panel, whole) * LANES + axis("lane", LANES)
                for pixel, total in zip(pixels, sums, strict=True):
                    self.finish(pixel, output, total)
        if is_left:
            with writer.otherwise() if is_whole else writer.scope():
                for place in range(left):
                    output = group * own + (whole * LANES + place)
                    for pixel, total in zip(pixels, sums, strict=True):
                        self.finish(pixel, output, Lane(total, place))


def variable(held: Var, size: int) -> Index:
    """A variable that is below ``size``, by its name even where it can only be 0."""
    return Index({Axis(held.name, size): 1})


def least(a: Index, b: Index | int) -> Expr:
    """The lesser of two whole numbers."""
    least = Const(I32, b) if isinstance(b, int) else Coordinate(I32, b)
    return Apply(I32, "min", Coordinate(I32, a), least)


def below(named: Index, size: int) -> Index:
    """A variable that is known to be below ``size`` here."""
    if named.is_constant:
        return named
    ((variable, _),) = named.terms.items()
    assert isinstance(variable, Axis)
    return axis(variable.name, size)
