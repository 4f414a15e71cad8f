"""The sort family: stable sorts of lines along an axis, and the best few elements of lines.

An element's *rank* is an unsigned integer that is smaller the earlier the element comes; so one
order serves every type, NaN comes last in both directions, and the zeros are equal. Serial
schedules, a workgroup owns whole lines. Few best elements are kept in order while the line is read,
many vectors for one comparison; everything else is sorted (``sorting``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from ptir.codegen.expressions.expr import (
    Apply,
    Const,
    Coordinate,
    Expr,
    Load,
    Var,
    as_index,
    compare,
    constant,
    select,
)
from ptir.codegen.expressions.index import Axis, Index, axis, unravel_index
from ptir.codegen.fusion.graph import Graph
from ptir.codegen.schedules.accumulators import pairwise
from ptir.codegen.schedules.epilogue import HeroKernel
from ptir.codegen.schedules.kernel import (
    EmitContext,
    Fusion,
    Kernel,
    alone,
    finish_kernel,
    scratch_value,
)
from ptir.ir.program import Instruction
from ptir.types import F32, F64, I32, I64, U32, U64, DType, TensorType

FEW: Final = 128
"""Most elements of a line that are kept in order while it is read."""
VECTORS: Final = 8
"""Vectors whose best element decides whether any of theirs is looked at."""


def match(graph: Graph, position: int) -> Fusion:
    """Every sort, and every choice of the greatest."""
    made = graph.block.instructions[position]
    return alone("sort", graph, position, () if is_few(made) else made.operands)


def is_few(made: Instruction) -> bool:
    """Whether only few elements of each line are wanted."""
    return made.op == "top_k" and made.attributes["k"] <= FEW


def rank_type(dtype: DType) -> DType:
    """The type of the ranks of elements of ``dtype``."""
    return U64 if dtype.bits == 64 else U32


def rank(dtype: DType, x: Expr, descending: bool) -> Expr:
    """The rank of an element: the smaller, the earlier it comes."""
    of = rank_type(dtype)
    ordered: Expr
    ones = constant(of, (1 << of.bits) - 1)
    top = constant(of, 1 << (of.bits - 1))
    if dtype.is_float:
        carried, signed = (F64, I64) if dtype == F64 else (F32, I32)
        bits = Apply(of, "bits", _carried(x, carried) + 0)
        sign = Apply(signed, "bits", bits) >> _last(signed)
        flip = Apply(of, "bits", sign) | top
        ordered = bits ^ flip
    elif dtype.kind == "int":
        signed = I64 if dtype.bits == 64 else I32
        wide = x if dtype == signed else Apply(signed, "convert", x)
        own = constant(of, 1 << (dtype.bits - 1))
        ordered = Apply(of, "bits", wide) ^ own
        if dtype.bits < of.bits:  # without the copies of the sign above it
            ordered = ordered & ((1 << dtype.bits) - 1)
    else:
        ordered = x if dtype == of else Apply(of, "convert", x)
    if descending:
        ordered = ~ordered
    return select(compare("eq", x, x), ordered, ones) if dtype.is_float else ordered


def _last(signed: DType) -> Expr:
    return constant(signed, signed.bits - 1)


def _carried(x: Expr, carried: DType) -> Expr:
    """An element as what it is computed with: f16 and bf16 are f32 already, by another name."""
    return x if x.dtype == carried else Apply(carried, "convert", x)


class SortEmitter(HeroKernel):
    """The lines of one sort or choice while their kernel is written."""

    workgroups: int
    ranks: int
    places: int
    begin: Index
    """Where the workgroup's part of ranks begins."""

    def __init__(self, fusion: Fusion, context: EmitContext) -> None:
        super().__init__(fusion, context)
        self.shape = context.graph.type(self.made.operands[0]).shape
        self.dtype = self.made.types[0].dtype
        self.rank_type = rank_type(self.dtype)
        top = self.made.op == "top_k"
        self.descending = bool(top or self.made.attributes["descending"])
        self.along = len(self.shape) - 1 if top else self.made.attributes["axis"] % len(self.shape)
        self.size = self.shape[self.along]
        self.wanted = self.made.attributes["k"] if top else self.size
        self.inner = math.prod(self.shape[self.along + 1 :])
        self.lines = math.prod(self.shape) // self.size
        self.values, self.indices = fusion.outputs
        self.line = axis("line", self.lines)

    def finish(self, body: Callable[[], None], *scratch: tuple[DType, int]) -> Kernel:
        """The kernel that runs ``body`` for every line; scratch is given for one workgroup."""
        part = self.writer.work_range(self.lines, self.workgroups)
        with self.writer.each("line", self.lines, *part):
            body()
        types = tuple(TensorType(dtype, (self.workgroups * size,)) for dtype, size in scratch)
        return finish_kernel(self.fusion, self.writer, self.workgroups, types)

    def element(self, place: Index) -> Expr:
        """The element at a place of the line."""
        flat = self._at(place, self.size)
        return self.builder.at(self.made.operands[0], unravel_index(flat, self.shape))

    def _at(self, place: Index, size: int) -> Index:
        block, inside = self.line // self.inner, self.line % self.inner
        return block * (size * self.inner) + inside + place * self.inner

    def rank(self, place: Index) -> Expr:
        """The rank of the element at a place of the line."""
        return rank(self.dtype, self.element(place), self.descending)

    def result(self, place: Index) -> Index:
        """Where the element that comes at ``place`` is in the results."""
        return self._at(place, self.wanted)

    def own(self, number: int, size: int) -> tuple[int, Index]:
        """A scratch memory of the kernel, and where the workgroup's part of it begins."""
        return scratch_value(self.fusion, number), Index({Axis("item", self.workgroups): 1}) * size

    def insert(self, place: Index, last: Expr, to: Callable[[Index], Index]) -> None:
        """Move what comes later by one, the place ``last`` being free, and put the element in.

        ``to`` says where a place of the order is in ``places``.
        """
        writer, of = self.writer, self.rank_type
        found = writer.let(writer.scalar(self.rank(place)))
        held, at = writer.declare(last, "at"), Index({Axis("at", self.wanted): 1})
        earlier = as_index(Coordinate(I32, at - 1), 0, self.wanted - 1)
        before = Load(of, self.ranks, self.begin + earlier)
        with writer.while_true(held, compare("gt", held, 0), Coordinate(I32, at - 1)):
            with writer.when(writer.scalar(compare("ge", found, before))):
                writer.leave()
            writer.store(self.ranks, of, self.begin + at, before)
            writer.store(self.places, I32, to(at), Load(I32, self.places, to(earlier)))
        writer.store(self.ranks, of, self.begin + at, found)
        writer.store(self.places, I32, to(at), Coordinate(I32, place))

    def write_results(self, index: Callable[[Index], Expr]) -> None:
        """Every index that is wanted, given by place, and the element it stands for."""
        with self.writer.each("o", self.wanted) as place:
            self.give(place, index(place))

    def give(self, place: Index, found: Expr) -> None:
        """Store the element that comes at ``place``, whose number in the line is ``found``."""
        self.writer.store(self.indices, I32, self.result(place), found)
        self.give_value(place, found)

    def give_value(self, place: Index, found: Expr) -> None:
        """Store the element where its number is stored already."""
        element = self.element(as_index(found, 0, self.size - 1))
        self.writer.store(self.values, self.dtype, self.result(place), element)


class TopK(SortEmitter):
    """The few best elements of each line, kept in order while the line is read."""

    def kernel(self) -> Kernel:
        """A loop over lines."""
        work = self.lines * (self.size // 4 + self.wanted * self.wanted)
        self.workgroups = self.context.workgroups(self.lines, work)
        (self.ranks, self.begin), self.places = self.own(0, self.wanted), self.indices
        return self.finish(self._line, (self.rank_type, self.wanted))

    def _line(self) -> None:
        writer, lanes, k = self.writer, self.context.dialect.lanes, self.wanted
        with writer.each("i", k) as i:
            self._insert(i, Var(I32, "i"))
        step = lanes * VECTORS
        blocks = (self.size - k) // step
        if blocks:
            with writer.each("v", blocks) as v:
                self._block(v * step + k, step)
        left = self.size - k - blocks * step
        if left:
            with writer.each("u", left) as u:
                self._consider(u + (k + blocks * step))
        with writer.each("o", k) as place:
            self.give_value(place, Load(I32, self.indices, self.result(place)))

    def _block(self, begin: Index, step: int) -> None:
        """Some vectors: only if their best belongs among the best are they looked at singly."""
        writer, lanes = self.writer, self.context.dialect.lanes
        best: Var | None = None
        with writer.lanes(Axis("lane", lanes)):
            for n in range(VECTORS):
                one = self.rank(begin + n * lanes + axis("lane", lanes))
                best = writer.let(writer.wide(one if best is None else _earlier(one, best)))
        assert best is not None
        first = pairwise(writer, best, _earlier)
        within = writer.when(writer.scalar(compare("lt", first, self._worst())))
        with within, writer.each("w", step) as w:
            self._consider(begin + w)

    def _worst(self) -> Expr:
        """The rank of the last of the best, read anew: it changes."""
        last = Load(self.rank_type, self.ranks, self.begin + (self.wanted - 1))
        return self.writer.let(self.writer.element(last))

    def _consider(self, place: Index) -> None:
        """Insert an element that comes before the worst of the best."""
        mask = compare("lt", self.rank(place), self._worst())
        with self.writer.when(self.writer.scalar(mask)):
            self._insert(place, Const(I32, self.wanted - 1))

    def _insert(self, place: Index, last: Expr) -> None:
        self.insert(place, last, self.result)


def _earlier(a: Expr, b: Expr) -> Expr:
    """The lesser of two ranks."""
    return select(compare("lt", a, b), a, b)
