"""The cumulative family: reductions of everything up to each element of a line.

Serial schedule: a workgroup owns whole lines, a vector of neighbouring ones at a time where the
axis is not the last. Along a single line, 16 elements at a time are combined in four steps (each
lane takes in the one 1, 2, 4 and 8 lanes before it), and the total so far comes in last.
"""

from __future__ import annotations

import math
from typing import Final

from ptir.codegen.expressions.elementwise import rounded
from ptir.codegen.expressions.expr import (
    Const,
    Coordinate,
    Expr,
    Var,
    as_index,
    compare,
    constant,
    whole_word,
)
from ptir.codegen.expressions.index import Axis, Index, axis, number, unravel_index
from ptir.codegen.fusion.graph import Graph
from ptir.codegen.kernel_ir.conditions import less
from ptir.codegen.kernel_ir.values import Gather, Lane, Read
from ptir.codegen.schedules.accumulators import COMBINERS, identity
from ptir.codegen.schedules.epilogue import HeroKernel
from ptir.codegen.schedules.kernel import EmitContext, Fusion, Kernel, alone, finish_kernel
from ptir.codegen.schedules.workgroup import Workgroup, independent
from ptir.types import I32

ALONE: Final = 128
"""Elements up to which a line belongs to one thread of a workgroup."""


def match(graph: Graph, position: int) -> Fusion:
    """Every cumulative reduction."""
    return alone("cumulative", graph, position)


def emit(fusion: Fusion, context: EmitContext) -> Kernel:
    """A loop over lines, or over vectors of neighbouring lines, inside it one along the line."""
    return _Running(fusion, context).kernel()


class _Running(HeroKernel):
    def __init__(self, fusion: Fusion, context: EmitContext) -> None:
        super().__init__(fusion, context)
        self.dtype, self.shape = self.made.types[0].dtype, self.made.types[0].shape
        along: int = self.made.attributes["axis"] % len(self.shape)
        self.kind = self.made.attributes["kind"]
        self.size, self.inner = self.shape[along], math.prod(self.shape[along + 1 :])
        self.lanes = context.dialect.lanes
        self.lane = Axis("lane", self.lanes)

    def kernel(self) -> Kernel:
        """Lines are shared out, or vectors of them."""
        writer, lines = self.writer, math.prod(self.shape) // self.size
        beside = self.inner % self.lanes == 0  # a vector of lines must not cross into the next
        pieces = lines // self.lanes if beside else lines
        workgroups = self.context.workgroups(pieces, math.prod(self.shape) * 4)
        with writer.each("p", pieces, *writer.work_range(pieces, workgroups)) as p:
            if beside:
                with writer.lanes(self.lane):
                    lane = axis("lane", self.lanes)
                    self._line(p * self.lanes + lane, self.start(), 0)
            elif self.inner == 1:
                self._long(p)
            else:
                self._line(p, self.start(), 0)
        return finish_kernel(self.fusion, writer, workgroups)

    def start(self) -> Const:
        """What nothing comes to; for sums of floats -0, so that a first -0 stays."""
        if self.kind == "sum" and self.dtype.is_float:
            return constant(self.dtype, -0.0)
        return identity(self.kind, self.dtype)

    def _at(self, line: Index, place: Index) -> Index:
        begin = (line // self.inner) * (self.size * self.inner) + line % self.inner
        return begin + place * self.inner

    def _element(self, flat: Index) -> Expr:
        return self.builder.at(self.made.operands[0], unravel_index(flat, self.shape))

    def _combined(self, a: Expr, b: Expr) -> Expr:
        return COMBINERS[self.kind](self.dtype, a, b)

    def _held(self, start: Expr) -> Var:
        """A variable that grows, one per lane while there are lanes."""
        writer = self.writer
        return writer.declare(writer.widened(start) if writer.lane else start)

    def _line(self, line: Index, start: Expr, begin: int) -> None:
        """One line, or one per lane, element by element from ``begin`` on."""
        writer, held, left = self.writer, self._held(start), self.size - begin
        with writer.each("j", left) as j:
            flat = self._at(line, j + begin)
            writer.assign(held, writer.value(self._combined(held, self._element(flat))))
            total = writer.let(held)  # a new one each time: what expressions hold never changes
            self.store(flat, rounded(self.dtype, total))

    def _long(self, line: Index) -> None:
        """One line whose elements lie side by side, a vector at a time."""
        writer, whole = self.writer, self.size // self.lanes
        start: Expr = self.start()
        if whole:
            held = self._held(start)
            with writer.each("v", whole) as v, writer.lanes(self.lane):
                place = v * self.lanes + axis("lane", self.lanes)
                flat = self._at(line, place)
                before = writer.let(held)
                found = self._combined(before, self._prefix(writer.wide(self._element(flat))))
                total = writer.let(writer.wide(found))
                self.store(flat, rounded(self.dtype, total))
                writer.assign(held, Lane(total, self.lanes - 1))
            start = writer.let(held)
        if self.size % self.lanes:
            self._line(line, start, whole * self.lanes)

    def scanned(self) -> Kernel:
        """A workgroup goes along a line, an element of each thread at a time.

        Each takes in the one 1, 2, 4, ... threads before it; the total so far comes in last.
        """
        writer, dtype, size = self.writer, self.dtype, self.size
        lines = math.prod(self.shape) // size
        threads = min(
            self.context.tiles.sort_workgroup_size, self.context.traits.max_workgroup_size
        )
        workgroup = Workgroup(writer, threads)
        array, count = writer.shared(dtype, workgroup.size), workgroup.size
        held, line, member = self._held(self.start()), axis("item", lines), workgroup.local_id
        with writer.each("j", size, step=count) as j:
            place = writer.let_index(j + member, size)
            own = self._held(self.start())
            with writer.when(less(place, size)):
                writer.assign(own, writer.scalar(self._element(self._at(line, place))))
            step = 1
            while step < count:
                writer.put(array, member, own, whole_word(dtype))
                writer.barrier()
                with writer.when(compare("ge", Coordinate(I32, member), step)):
                    other = as_index(Coordinate(I32, member - step), 0, count - step - 1)
                    before = writer.let(Read(dtype, array, other))
                    writer.assign(own, writer.scalar(self._combined(before, own)))
                writer.barrier()
                step *= 2
            with writer.scope():
                total = writer.let(writer.scalar(self._combined(held, own)))
                with writer.when(less(place, size)):
                    self.store(self._at(line, place), rounded(dtype, total))
                writer.put(array, member, total, whole_word(dtype))
            writer.barrier()
            writer.assign(held, Read(dtype, array, number(count - 1)))
            writer.barrier()
        return finish_kernel(self.fusion, writer, lines, workgroup_size=count)

    def _prefix(self, found: Expr) -> Expr:
        """The reduction of each lane with all lanes before it."""
        writer, step = self.writer, 1
        while step < self.lanes:
            held = writer.let(found)
            lanes = [Lane(held, n) for n in range(self.lanes - step)]
            earlier = writer.let(Gather(*(self.start(),) * step, *lanes))
            found, step = writer.wide(self._combined(earlier, held)), step * 2
        return writer.let(found)


def emit_cooperative(fusion: Fusion, context: EmitContext) -> Kernel:
    """A thread per line, or a workgroup per line where a line lies in one piece and is long."""
    running = _Running(fusion, context)
    if running.inner > 1 or running.size <= ALONE:
        return independent(emit)(fusion, context)
    return running.scanned()
