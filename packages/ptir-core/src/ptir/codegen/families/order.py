"""The order family: stable sorts of lines along an axis, and the best few elements of lines.

An element's *rank* is an unsigned integer that is smaller the earlier the element comes; so one
order serves every type, NaN comes last in both directions, and the zeros are equal. Serial
schedules, an item owns whole lines. Few best elements are kept in order while the line streams by,
many vectors for one comparison; everything else is sorted (``sorting``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from ptir.codegen.expr import Apply, Expr, Load, Var, as_index, compare, constant, select
from ptir.codegen.graph import Graph
from ptir.codegen.index import Axis, Index, axis, digits
from ptir.codegen.kernel import Group, Kernel, Site, finished, scratch_value
from ptir.codegen.writer import Writer
from ptir.ir.program import Instruction
from ptir.types import F32, F64, I32, I64, U32, U64, DType, TensorType

FEW: Final = 128
"""Most elements of a line that are kept in order while it streams by."""
VECTORS: Final = 8
"""Vectors whose best element decides whether any of theirs is looked at."""


def match(graph: Graph, position: int) -> Group | None:
    """Every sort, and every choice of the greatest."""
    made = graph.block.instructions[position]
    if made.op not in ("sort", "top_k"):
        return None
    exact = () if is_few(made) else made.operands
    exits = graph.results[position]
    return Group("order", frozenset((position,)), made.operands, exits, position, exact)


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
        bits = Apply(of, "bits", Apply(carried, "add", _carried(x, carried), constant(carried, 0)))
        sign = Apply(signed, "shift_right", Apply(signed, "bits", bits), _last(signed))
        flip = Apply(of, "or", Apply(of, "bits", sign), top)
        ordered = Apply(of, "xor", bits, flip)
    elif dtype.kind == "int":
        signed = I64 if dtype.bits == 64 else I32
        wide = x if dtype == signed else Apply(signed, "convert", x)
        own = constant(of, 1 << (dtype.bits - 1))
        ordered = Apply(of, "xor", Apply(of, "bits", wide), own)
        if dtype.bits < of.bits:  # without the copies of the sign above it
            ordered = Apply(of, "and", ordered, constant(of, (1 << dtype.bits) - 1))
    else:
        ordered = x if dtype == of else Apply(of, "convert", x)
    if descending:
        ordered = Apply(of, "not", ordered)
    return select(compare("eq", x, x), ordered, ones) if dtype.is_float else ordered


def _last(signed: DType) -> Expr:
    return constant(signed, signed.bits - 1)


def _carried(x: Expr, carried: DType) -> Expr:
    """An element as what it is computed with: f16 and bf16 are f32 already, by another name."""
    return x if x.dtype == carried else Apply(carried, "convert", x)


class Lines:
    """The lines of one sort or choice while their kernel is written."""

    def __init__(self, group: Group, site: Site) -> None:
        self.group, self.site = group, site
        self.made = site.graph.block.instructions[group.detail]
        self.shape = site.graph.type(self.made.operands[0]).shape
        self.dtype = self.made.types[0].dtype
        self.rank_type = rank_type(self.dtype)
        top = self.made.op == "top_k"
        self.descending = bool(top or self.made.attributes["descending"])
        self.along = len(self.shape) - 1 if top else self.made.attributes["axis"] % len(self.shape)
        self.size = self.shape[self.along]
        self.wanted = self.made.attributes["k"] if top else self.size
        self.inner = math.prod(self.shape[self.along + 1 :])
        self.lines = math.prod(self.shape) // self.size
        self.values, self.indices = group.exits
        self.writer: Writer = site.writer()
        self.builder = site.builder()
        self.line = axis("line", self.lines)

    def finish(self, work: int, body: Callable[[], None], *scratch: tuple[DType, int]) -> Kernel:
        """The kernel that runs ``body`` for every line; scratch is given for one item."""
        items = self.site.items(self.lines, work)
        self.writer.share(self.lines, items)
        with self.writer.loop(Axis("line", self.lines), "first", "last"):
            body()
        types = tuple(TensorType(dtype, (items * size,)) for dtype, size in scratch)
        return finished(self.group, self.writer, items, types)

    def element(self, place: Index) -> Expr:
        """The element at a place of the line."""
        flat = self._at(place, self.size)
        return self.builder.at(self.made.operands[0], digits(flat, self.shape))

    def _at(self, place: Index, size: int) -> Index:
        block, inside = self.line // self.inner, self.line % self.inner
        return block * (size * self.inner) + inside + place * self.inner

    def rank(self, place: Index) -> Expr:
        """The rank of the element at a place of the line."""
        return rank(self.dtype, self.element(place), self.descending)

    def named(self, name: str, size: int | None = None) -> Index:
        """A place that a variable holds."""
        return as_index(Var(I32, name), 0, (self.size if size is None else size) - 1)

    def result(self, place: Index) -> Index:
        """Where the element that comes at ``place`` is in the results."""
        return self._at(place, self.wanted)

    def own(self, number: int, size: int) -> tuple[int, Index]:
        """A scratch memory of the kernel, and where the item's part of it begins."""
        return scratch_value(self.group, number), Index({Axis("item", self.lines): 1}) * size

    def put(self, value: int, dtype: DType, at: Index, text: str) -> None:
        """Store the text of a number."""
        writer = self.writer
        buffer = writer.buffer(value, dtype, written=True)
        writer.line(writer.dialect.store(dtype, 1, buffer, writer.index_text(at), text))

    def write_results(self, index: Callable[[Index], Expr]) -> None:
        """Every index that is wanted, given by place, and the element it stands for."""
        writer = self.writer
        with writer.loop(Axis("o", self.wanted), "0", str(self.wanted)):
            place = axis("o", self.wanted)
            found = index(place)
            writer.store(self.indices, I32, self.result(place), found)
            element = self.element(as_index(found, 0, self.size - 1))
            writer.store(self.values, self.dtype, self.result(place), element)


class Best(Lines):
    """The few best elements of each line, kept in order while the line streams by."""

    def kernel(self) -> Kernel:
        """A loop over lines."""
        self.ranks, self.begin = self.own(0, self.wanted)
        work = self.lines * (self.size // 4 + self.wanted * self.wanted)
        return self.finish(work, self._line, (self.rank_type, self.wanted))

    def _line(self) -> None:
        writer, lanes, k = self.writer, self.site.dialect.lanes, self.wanted
        with writer.loop(Axis("i", k), "0", str(k)):
            self._insert(axis("i", k), "i")
        step = lanes * VECTORS
        blocks = (self.size - k) // step
        if blocks:
            with writer.loop(Axis("v", blocks), "0", str(blocks)):
                self._block(axis("v", blocks) * step + k, step)
        left = self.size - k - blocks * step
        if left:
            with writer.loop(Axis("u", left), "0", str(left)):
                self._consider(axis("u", left) + (k + blocks * step))
        with writer.loop(Axis("o", k), "0", str(k)):
            place = axis("o", k)
            found = self.element(
                as_index(Load(I32, self.indices, self.result(place)), 0, self.size - 1)
            )
            writer.store(self.values, self.dtype, self.result(place), found)

    def _block(self, begin: Index, step: int) -> None:
        """Some vectors: only if their best belongs among the best are they looked at singly."""
        writer, lanes, of = self.writer, self.site.dialect.lanes, self.rank_type
        lane = Axis("lane", lanes)
        best: Expr | None = None
        with writer.lanes(lane):
            for n in range(VECTORS):
                one = self.rank(begin + n * lanes + axis("lane", lanes))
                least = None if best is None else select(compare("lt", one, best), one, best)
                best = Var(of, writer.let_text(of, True, writer.wide_text(least or one)), True)
        assert isinstance(best, Var)
        parts: list[Expr] = [Var(of, writer.dialect.lane(best.name, n)) for n in range(lanes)]
        while len(parts) > 1:
            half = len(parts) // 2
            pairs = zip(parts[:half], parts[half:], strict=True)
            parts = [select(compare("lt", a, b), a, b) for a, b in pairs]
        within = writer.block(f"if ({writer.scalar_text(compare('lt', parts[0], self._worst()))})")
        with within, writer.loop(Axis("w", step), "0", str(step)):
            self._consider(begin + axis("w", step))

    def _worst(self) -> Expr:
        """The rank of the last of the best, read anew: it changes."""
        writer, of = self.writer, self.rank_type
        at = writer.index_text(self.begin + (self.wanted - 1))
        text = writer.dialect.load(of, 1, writer.buffer(self.ranks, of), at)
        return Var(of, writer.let_text(of, False, text))

    def _consider(self, place: Index) -> None:
        """Insert an element that comes before the worst of the best."""
        mask = compare("lt", self.rank(place), self._worst())
        with self.writer.block(f"if ({self.writer.scalar_text(mask)})"):
            self._insert(place, str(self.wanted - 1))

    def _insert(self, place: Index, last: str) -> None:
        """Move what comes later by one, the place ``last`` being free, and put the element in."""
        writer, of = self.writer, self.rank_type
        found = Var(of, writer.let_text(of, False, writer.scalar_text(self.rank(place))))
        writer.line(f"int at = {last};")
        at = self.named("at", self.wanted + 1)
        before = Load(of, self.ranks, self.begin + at - 1)
        with writer.block("for (; at > 0; --at)"):
            with writer.block(f"if ({writer.scalar_text(compare('ge', found, before))})"):
                writer.line("break;")
            self.put(self.ranks, of, self.begin + at, writer.scalar_text(before))
            index = Load(I32, self.indices, self.result(at) - self.inner)
            self.put(self.indices, I32, self.result(at), writer.scalar_text(index))
        self.put(self.ranks, of, self.begin + at, found.name)
        self.put(self.indices, I32, self.result(at), writer.index_text(place))
