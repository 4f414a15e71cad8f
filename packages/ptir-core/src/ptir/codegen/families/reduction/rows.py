"""The row family: reductions along the last axes with everything elementwise around them.

Softmax, norms, arg-max and their like are one kernel: a workgroup owns whole rows, and a row goes
through *stages* (one reduction each) and then gives the outputs. Costly elements that several
stages need are kept in a private array. A gemv runs the same stages as its prologue.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Final

from ptir.codegen.expressions.elementwise import NARROW, rounded
from ptir.codegen.expressions.expr import Cell, Coordinate, Expr, Var, constant
from ptir.codegen.expressions.index import Axis, Index, axis, number, unravel_index
from ptir.codegen.fusion.graph import CHEAP, Builder, Graph, Register, Unfusible, follows, weight
from ptir.codegen.fusion.regions import region_outputs
from ptir.codegen.fusion.renumber import Position, Value
from ptir.codegen.kernel_ir.values import Lane
from ptir.codegen.kernel_ir.writer import Writer
from ptir.codegen.schedules.accumulators import COMBINERS, accumulator, identity, take_better
from ptir.codegen.schedules.epilogue import builder_of
from ptir.codegen.schedules.kernel import EmitContext, Fusion, Kernel, finish_kernel
from ptir.ir.program import Instruction
from ptir.types import F32, I32, TensorType

KEPT: Final = 8192
"""Most elements of a row that are kept in a private array."""

WIDEST: Final = 16
"""Lanes of the vectors in which rows are visited."""


@dataclass(frozen=True)
class RowReduction:
    """Rows of ``size`` elements: the reductions over them and the values that come out."""

    count: int
    size: int
    stages: tuple[Position, ...]
    outputs: tuple[Value, ...]
    cached: tuple[Value, ...] = field(default=())


def match(graph: Graph, position: int) -> Fusion | None:
    """The fusion of a reduction over the last axes and what can follow it row by row."""
    instruction = graph.block.instructions[position]
    split = _split(graph, instruction)
    if split is None:
        return None
    count, size = split

    def joins(reader: int) -> bool:
        made = graph.block.instructions[reader]
        if made.op in ("reduce", "arg_max"):
            return _split(graph, made) == split
        return follows(made) and made.types[0].size in (count, count * size)

    found = graph.results[position][0]
    regions = [(found, frozenset[int]()), *region_outputs(graph, (found,), joins)]
    for exit, behind in reversed(regions):  # the longest that fits
        members = behind | {position}
        rows = _rows(graph, split, tuple(members), exit)
        if rows is not None:
            reads = {v for p in members for v in graph.block.instructions[p].operands}
            inner = {v for p in members for v in graph.results[p]}
            return Fusion("row_reduction", members, tuple(sorted(reads - inner)), (exit,), rows)
    return None


def _split(graph: Graph, instruction: Instruction) -> tuple[int, int] | None:
    """``(rows, elements of a row)`` where an instruction reduces along the last axes."""
    if instruction.op not in ("reduce", "arg_max"):
        return None
    shape = graph.type(instruction.operands[0]).shape
    if instruction.op == "arg_max":
        axes = {instruction.attributes["axis"]}
    else:
        axes = set(instruction.attributes["axes"])
    long = [a for a, n in enumerate(shape) if n != 1]
    inner = [a for a in long if a in axes]
    if inner != long[len(long) - len(inner) :]:
        return None
    size = math.prod(shape[a] for a in inner)
    return (math.prod(shape) // size, size) if math.prod(shape) else None


def _rows(
    graph: Graph, split: tuple[int, int], members: tuple[int, ...], exit: int
) -> RowReduction | None:
    """The description of a region, or None where its values do not line up row by row."""
    ops = graph.block.instructions
    stages = tuple(p for p in sorted(members) if ops[p].op in ("reduce", "arg_max"))
    rows = RowReduction(*split, stages, (exit,), _kept(graph, split, members, stages, exit))
    inside = {v for p in members for v in graph.results[p]}
    try:
        _Trial(graph, rows, inside).run()
    except Unfusible:
        return None
    return rows


def _kept(
    graph: Graph,
    split: tuple[int, int],
    members: tuple[int, ...],
    stages: tuple[int, ...],
    exit: int,
) -> tuple[int, ...]:
    """Costly elements that more than one stage needs."""
    if split[1] > KEPT or split[1] == 1:
        return ()
    needed: dict[int, int] = {}
    ops, between = graph.block.instructions, {*members} - {*stages}

    def inside(value: int) -> bool:
        return graph.maker.get(value) in between

    for root in [*(ops[s].operands[0] for s in stages), exit]:
        for value in filter(inside, graph.walk(root, enters=inside)):
            needed[value] = needed.get(value, 0) + 1
    full = split[0] * split[1]
    return tuple(
        value
        for value, count in sorted(needed.items())
        if count > 1
        and weight(ops[graph.maker[value]]) > CHEAP
        and graph.type(value).size == full
        and graph.type(value).dtype == F32
    )


class _Trial:
    """Builds every expression of a region without writing it, to see whether it can be."""

    def __init__(self, graph: Graph, rows: RowReduction, inside: set[int]) -> None:
        self.graph, self.rows = graph, rows
        self.builder = Builder(graph, lambda v: v not in inside)

    def run(self) -> None:
        """Every place that is written: whole vectors, and what is left over."""
        whole, left = divmod(self.rows.size, WIDEST)
        if whole:
            self._at(axis("v", whole) * WIDEST + axis("lane", WIDEST))
        if left:
            self._at(axis("u", left) + whole * WIDEST)
            self._at(number(whole * WIDEST))

    def _at(self, place: Index) -> None:
        row = axis("r", self.rows.count)
        registers: dict[int, Register] = {}
        for position in self.rows.stages:
            made = self.graph.block.instructions[position]
            value = self.graph.results[position][0]
            builder = self.builder.holding(registers)
            shape = self.graph.type(made.operands[0]).shape
            builder.at(made.operands[0], unravel_index(row * self.rows.size + place, shape))
            held = unravel_index(row, self.graph.type(value).shape)
            registers[value] = (held, Var(made.types[0].dtype, f"r{value}"))
        builder = self.builder.holding(registers)
        for value in self.rows.outputs:
            if value not in registers:
                builder.at(value, coordinates(self.graph.type(value), self.rows, row, place))


def coordinates(
    type: TensorType, rows: RowReduction, row: Index, place: Index
) -> tuple[Index, ...]:
    """Where a value of the region is, at a place of a row."""
    flat = row if type.size == rows.count and rows.size > 1 else row * rows.size + place
    return unravel_index(flat, type.shape)


# --- writing ---


class RowEmitter:
    """Writes the stages of one row, then hands out expressions for its outputs."""

    def __init__(self, writer: Writer, builder: Builder, rows: RowReduction, row: Index) -> None:
        self.writer, self.graph = writer, builder.graph
        self.rows, self.row = rows, row
        self._base = builder
        self._results: dict[int, Expr] = {}
        self._kept: dict[int, str] = {}
        self._arrays = {value: f"kept{place}" for place, value in enumerate(rows.cached)}
        self.lanes = writer.dialect.lanes
        self.lane = Axis("lane", self.lanes)
        self._whole = rows.size // self.lanes if self.lanes > 1 else 0

    def builder(self, place: Index) -> Builder:
        """Expressions at a place of the row."""
        held = {
            value: (unravel_index(self.row, self.graph.type(value).shape), expr)
            for value, expr in self._results.items()
        }
        for value, array in self._kept.items():
            at = unravel_index(self.row * self.rows.size + place, self.graph.type(value).shape)
            held[value] = (at, Cell(F32, array, place))
        return self._base.holding(held)

    def stages(self) -> None:
        """Write every stage; afterwards ``exit`` may be asked."""
        for value in self.rows.cached:
            self._arrays[value] = self._array(self._arrays[value])
        for position in self.rows.stages:
            made = self.graph.block.instructions[position]
            value = self.graph.results[position][0]
            ready = self._ready(made.operands[0])
            if made.op == "reduce":
                self._results[value] = self._reduce(made)
            else:
                self._results[value] = self._arg(made)
            self._kept |= ready

    def write(self) -> None:
        """Write the stages, and store the outputs."""
        self.stages()
        for value in self.rows.outputs:
            self._store(value)

    def _store(self, value: int) -> None:
        """Store an output: one element a row, or all of them."""
        writer, row, size = self.writer, self.row, self.rows.size
        type = self.graph.type(value)
        if (type.size == self.rows.count and size > 1) or value in self._results:
            with self._once():
                writer.store(value, type.dtype, row, self.exit(value, number(0)))
            return
        self.each(lambda at: writer.store(value, type.dtype, row * size + at, self.exit(value, at)))

    def _once(self) -> AbstractContextManager[None]:
        """A block for what is done once a row."""
        return nullcontext()

    def _array(self, name: str) -> str:
        """Declare an array for the elements of a row; gives its name."""
        return self.writer.array(name, self.rows.size, F32)

    def exit(self, value: int, place: Index) -> Expr:
        """An output's element at a place of the row."""
        if value in self._results:
            return self._results[value]
        at = coordinates(self.graph.type(value), self.rows, self.row, place)
        return self.builder(place).at(value, at)

    def each(self, body: Callable[[Index], None]) -> None:
        """Call ``body`` with every place of the row: whole vectors, then single elements."""
        whole = self.rows.size // self.lanes
        if whole:
            with self.writer.vectors(whole) as places:
                body(places)
        left = self.rows.size - whole * self.lanes
        if left:
            with self.writer.each("u", left) as u:
                body(u + whole * self.lanes)

    def _ready(self, operand: int) -> dict[int, str]:
        """Kept values that the coming stage computes first."""
        waiting = [value for value in self.rows.cached if value not in self._kept]
        graph = self.graph
        needed = {*graph.walk(operand, enters=graph.is_map)} if waiting else set[int]()
        return {v: self._arrays[v] for v in waiting if v in needed}

    def _element(self, operand: int, place: Index) -> Expr:
        """The operand's element; kept values met for the first time are put away."""
        shape = self.graph.type(operand).shape
        builder = self.builder(place)
        for value, array in self._ready(operand).items():
            at = unravel_index(self.row * self.rows.size + place, self.graph.type(value).shape)
            made = builder.at(value, at)
            self.writer.put(array, place, made)
            builder = builder.holding({value: (at, made)})  # reading it back would wait for it
        return builder.at(operand, unravel_index(self.row * self.rows.size + place, shape))

    def _reduce(self, made: Instruction) -> Expr:
        writer, dtype = self.writer, made.types[0].dtype
        kind = made.attributes["kind"]
        total = writer.declare(identity(kind, dtype), writer.name("r"))
        lanes = accumulator(writer, kind, dtype, True) if self._whole else None

        def body(place: Index) -> None:
            element = self._element(made.operands[0], place)
            if writer.lane and lanes:
                lanes.add(element)
                return
            writer.assign(total, writer.scalar(COMBINERS[kind](dtype, total, element)))

        def fold() -> None:
            if lanes:
                with writer.scope():
                    writer.assign(total, writer.scalar(lanes.reduce_lanes()))

        self._each_then_fold(body, fold)
        return self._rounded(total)

    def _rounded(self, total: Expr) -> Expr:
        """A 16-bit total, held as f32 while it grew, rounded once."""
        if total.dtype not in NARROW:
            return total
        return self.writer.scalar(rounded(total.dtype, total))

    def _each_then_fold(self, body: Callable[[Index], None], fold: Callable[[], None]) -> None:
        """The vectors of the row, their lanes combined, then the elements left over."""
        whole = self._whole
        if whole:
            with self.writer.vectors(whole) as places:
                body(places)
            fold()
        for place in range(whole * self.lanes, self.rows.size):
            with self.writer.scope():
                body(number(place))

    def _arg(self, made: Instruction) -> Expr:
        """The first NaN, else the first greatest element's place."""
        writer, dtype = self.writer, self.graph.type(made.operands[0]).dtype
        least = identity("max", dtype)
        best = writer.declare(least, writer.name("best"))
        where = writer.declare(constant(I32, 0), writer.name("place"))
        lanes: tuple[Var, ...] = ()
        if self._whole:
            with writer.lanes(self.lane):
                places = writer.wide(Coordinate(I32, axis("lane", self.lanes)))
            starts = (best, writer.widened(least)), (where, places)
            lanes = tuple(writer.declare(start, f"{one.name}w") for one, start in starts)

        def body(place: Index) -> None:
            held, its_place = lanes if writer.lane else (best, where)
            found = self._element(made.operands[0], place)
            take_better(writer, held, its_place, found, Coordinate(I32, place))

        def fold() -> None:
            for place in range(self.lanes):
                found, index = (Lane(one, place) for one in lanes)
                with writer.scope():
                    if place == 0:
                        writer.assign(best, found)
                        writer.assign(where, index)
                    else:
                        take_better(writer, best, where, found, index)

        self._each_then_fold(body, fold)
        return where


def emit(fusion: Fusion, context: EmitContext) -> Kernel:
    """A workgroup runs a block of rows."""
    rows: RowReduction = fusion.detail
    writer = context.writer()
    workgroups = context.workgroups(rows.count, rows.count * rows.size * 4 * (1 + len(rows.stages)))
    builder = builder_of(fusion, context)
    with writer.each("r", rows.count, *writer.work_range(rows.count, workgroups)) as r:
        RowEmitter(writer, builder, rows, r).write()
    return finish_kernel(fusion, writer, workgroups)
