"""Attention of many queries: a tile is vectors of queries against blocks of keys.

A lane is a query, so scores, maxima, sums and results of 16 queries grow side by side without any
sum across lanes: keys and values are read as scalars that meet all queries at once. Two vectors
share what is read (``Tiles.attention_vectors``): with one, a product waits for its load. Blocks
that every query of the tile sees whole need no mask; in the others a lane takes part only where it
sees the key, so that what a query does not see cannot reach it, not even as a NaN. Keys and values
of 16 bits become floats block by block, in vectors, before they are read one by one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ptir.codegen.expressions.expr import (
    Apply,
    Cell,
    Coordinate,
    Expr,
    Load,
    Var,
    as_index,
    constant,
    select,
)
from ptir.codegen.expressions.index import Index, axis, number
from ptir.codegen.families.attention import softmax
from ptir.codegen.families.attention.appending import AppendingAttention
from ptir.codegen.families.attention.serial import Attention
from ptir.codegen.kernel_ir.conditions import all_of, less
from ptir.codegen.kernel_ir.nodes import Store
from ptir.codegen.kernel_ir.values import Hoisted, Read
from ptir.codegen.schedules.kernel import EmitContext, Fusion, Kernel
from ptir.types import BOOL, F32, I32

KEYS: Final = 32
"""Keys of a block: results are rescaled once per block."""
STRIP: Final = 8
"""Scores, or results, that grow in registers at once."""
FLOATS: Final = {1: "ks", 2: "vs"}
"""By operand: the array of a block's keys or values as floats, where they are not stored so."""
J: Final = axis("j", 1 << 30)
"""Where a block begins; ``_element`` knows the range of positions."""
BOUNDS: Final = "lows", "highs"
"""The arrays of the first key that each query sees and of the one after the last."""
LEAST_TILES: Final = 2
"""Tiles of several vectors that a prompt has at least: fewer would leave processors idle."""


@dataclass(frozen=True)
class QueryVector:
    """What is kept of a vector of a tile's queries, and where in the tile they begin."""

    begin: int
    most: Var
    total: Var
    now: Var
    keep: Var
    low: Var
    high: Var


def query_vector(number: int, lanes: int) -> QueryVector:
    """The variables of a tile's vector."""
    floats = (Var(F32, f"{name}{number}", True) for name in ("most", "total", "now", "keep"))
    bounds = (Var(I32, f"{name}{number}", True) for name in ("low", "high"))
    return QueryVector(number * lanes, *floats, *bounds)


def emit(fusion: Fusion, context: EmitContext) -> Kernel:
    """Tiles of queries where one is full, else queries one by one, or those of a key head."""
    if fusion.detail.updates:
        return AppendingAttention(fusion, context).kernel()
    made = TiledAttention(fusion, context)
    return (made if made.tiles else Attention(fusion, context)).kernel()


class TiledAttention(Attention):
    """One attention call whose queries are attended to as vectors, while its kernel is written."""

    def __init__(self, fusion: Fusion, context: EmitContext) -> None:
        super().__init__(fusion, context)
        count = self._vectors(context.tiles.attention_vectors)
        self.vectors = [query_vector(number, self.lanes) for number in range(count)]
        self.queries = count * self.lanes
        self.tiles, self.left = divmod(self.T, self.queries)
        self.floats = {n: name for n, name in FLOATS.items() if self._is_converted(n)}

    def _is_converted(self, operand: int) -> bool:
        """Whether keys or values become floats when they are read, and there are vectors."""
        value = self.made.operands[operand]
        stored = self.builder.at(value, (number(0),) * self.graph.type(value).rank)
        return self.lanes > 1 and not isinstance(stored, Load)

    def _vectors(self, most: int) -> int:
        """Vectors of a tile: several, where there are enough tiles and no more queries are left."""
        queries = most * self.lanes
        several = LEAST_TILES * queries <= self.T and self.T % queries < self.lanes
        return most if several else 1

    def kernel(self) -> Kernel:
        """A loop over tiles of queries; those of a head that fill no tile are one entry more."""
        return self._shared_out(self.H, self.tiles + (self.left > 0))

    def _declare_arrays(self) -> None:
        if self.left:
            super()._declare_arrays()
        elif self.whole:
            self.writer.array("q", self.D, F32)
        for name, count in (("qs", self.D), ("os", self.D), ("ps", KEYS)):
            self.writer.array(name, count * self.queries, F32)
        for name in self.floats.values():
            self.writer.array(name, KEYS * self.D, F32)
        for name in BOUNDS:
            self.writer.array(name, self.queries, I32)

    def _entry(self, row: Index, head: Index, entry: Index) -> None:
        writer, left = self.writer, self.left
        at = writer.let(Coordinate(I32, entry))
        self.row, self.head, self.query_head = row, head // self.share, head
        with writer.when(less(at, self.tiles) if left else None):
            self.first = axis(at.name, self.tiles) * self.queries
            self._tile()
        if left:
            with writer.otherwise(), writer.each("t", left) as t:
                self._query(row, head, t + self.tiles * self.queries)

    def _tile(self) -> None:
        """The queries from ``first`` on."""
        writer = self.writer
        self._load_queries()
        low, high = self._ranges()
        begun = [writer.widened(value) for value in self._before_keys(self.query_head)]
        for one in self.vectors:
            writer.declare_all(*zip((one.most, one.total), begun, strict=True))
        with writer.each("j", 1 << 30, low[0], high[1], KEYS):
            after = Apply(BOOL, "ge", Coordinate(I32, J), low[1])
            before = Apply(BOOL, "le", Coordinate(I32, J + KEYS), high[0])
            with writer.when(all_of([after, before])):
                self._block(None)
            with writer.otherwise():
                furthest = as_index(high[1], 0, J.high) - 1
                self._block(writer.let(Coordinate(I32, furthest), "last"))
        self._finish()

    def _load_queries(self) -> None:
        """Queries transposed: vectors of queries for each place; results start at zero.

        What a query is computed from (a rope) is computed in vectors along its places, where they
        fill vectors, and only then transposed.
        """
        writer, size = self.writer, self.D
        d, query = axis("d", size), self.made.operands[0]
        with writer.each("t", self.queries) as t:
            at = self.row, self.query_head, self.first + t
            for part in range(self.whole):
                place = self._place(part)
                with writer.lanes(self.lane):
                    writer.put("q", place, self.builder.at(query, (*at, place)))
            with writer.each("d", size):
                found = Cell(F32, "q", d) if self.whole else self.builder.at(query, (*at, d))
                writer.put("qs", d * self.queries + t, found)
        zero = self.writer.widened(constant(F32, 0.0))
        with writer.each("d", size):
            for one in self.vectors:
                writer.emit(Store(F32, "os", self._line(d, one), zero))

    def _line(self, line: Index, one: QueryVector) -> Index:
        """Where a vector's part of a line begins: of queries, of weights or of results."""
        return line * self.queries + one.begin

    def _ranges(self) -> tuple[tuple[Expr, Expr], tuple[Expr, Expr]]:
        """What the first and the last query see; what each sees is in ``low`` and ``high``."""
        writer = self.writer
        ends = [self._seen(self.row, self.first + place) for place in (0, self.queries - 1)]
        (low, high), (later, furthest) = [[writer.scalar(bound) for bound in end] for end in ends]
        # one by one: of vectors of numbers of 64 bits compilers make hundreds of moves
        with writer.each("t", self.queries) as t:
            for name, bound in zip(BOUNDS, self._seen(self.row, self.first + t), strict=True):
                writer.put(name, t, bound, I32)
        for one in self.vectors:
            for name, variable in zip(BOUNDS, (one.low, one.high), strict=True):
                writer.let(Read(I32, name, number(one.begin), True), variable.name)
        return (low, later), (high, furthest)

    def _block(self, last: Var | None) -> None:
        """A block of keys; with ``last``, the furthest key of all, lanes see some of them only.

        Of those behind the last one nothing is computed.
        """
        writer, count = self.writer, self._count(last)
        writer.declare_all(*((one.now, one.most) for one in self.vectors))
        self._convert(1, last, KEYS)
        for start in range(0, KEYS, STRIP):
            some = None if last is None else less(number(start), count)
            with writer.scope() if some is None else writer.when(some):
                self._strip_of_scores(start, last)
        shifts = [self._follow(one) for one in self.vectors]
        with writer.each("i", KEYS, 0, count) as i:
            for one, less_by in zip(self.vectors, shifts, strict=True):
                self._weigh_key(i, one, less_by)
        self._convert(2, last, count)
        for start in range(0, self.D, STRIP):
            with writer.scope():
                self._strip_of_values(range(start, min(start + STRIP, self.D)), last, count)

    def _convert(self, operand: int, last: Var | None, count: int | Expr) -> None:
        """A block's first keys or values become floats, where they are not stored so."""
        if operand not in self.floats:
            return
        writer, name = self.writer, self.floats[operand]
        with writer.each("i", KEYS, 0, count) as i:
            here = self._position(i, last)
            writer.each_element(
                self.D,
                lambda d: writer.put(name, i * self.D + d, self._element(operand, here, d)),
                written_out=True,
            )

    def _of_block(self, operand: int, offset: Index, last: Var | None, d: Index) -> Expr:
        """Element ``d`` of a key or value of the block."""
        if operand in self.floats:
            return Cell(F32, self.floats[operand], offset * self.D + d)
        return self._element(operand, self._position(offset, last), d)

    def _follow(self, one: QueryVector) -> Expr:
        """Take the greatest scores so far, and what is left of sums; gives what is subtracted."""
        writer = self.writer
        with writer.lanes(self.lane):
            less_by = writer.let(writer.wide(softmax.shift(one.now)), writer.name("shift"))
            writer.let(writer.wide(softmax.weight(one.most, less_by)), one.keep.name)
        writer.assign(one.most, one.now)
        writer.assign(one.total, writer.apply("mul", F32, one.total, one.keep))
        return less_by

    def _weigh_key(self, i: Index, one: QueryVector, less_by: Expr) -> None:
        """A key's scores become weights, which are summed."""
        writer, at = self.writer, self._line(i, one)
        score = writer.let(Read(F32, "ps", at, True), writer.name("score"))
        with writer.lanes(self.lane):
            held = writer.let(writer.wide(softmax.weight(score, less_by)))
        writer.emit(Store(F32, "ps", at, held))
        writer.assign(one.total, writer.total([one.total, held]))

    def _count(self, last: Var | None) -> int | Expr:
        """The keys of a block up to the last one."""
        if last is None:
            return KEYS
        left = Coordinate(I32, as_index(last, 0, J.high) - J + 1)
        return self.writer.let(Apply(I32, "min", left, constant(I32, KEYS)), "count")

    def _position(self, offset: Index, last: Var | None) -> Expr:
        """A position of the block; none that no query sees."""
        here = Coordinate(I32, J + offset)
        return here if last is None else Hoisted(Apply(I32, "min", here, last))

    def _sees(self, offset: Index, one: QueryVector) -> Expr:
        """Whether a lane's query sees a key of the block."""
        return softmax.within(Coordinate(I32, J + offset), one.low, one.high)

    def _strip_of_scores(self, start: int, last: Var | None) -> None:
        """The scores of ``STRIP`` keys, put into ``ps``; ``now`` becomes their maximum."""
        writer, size = self.writer, self.D
        sums = [
            [Var(F32, f"s{n}_{v}", True) for v in range(len(self.vectors))] for n in range(STRIP)
        ]
        zero = writer.widened(constant(F32, 0.0))
        writer.declare_all(*((one, zero) for key in sums for one in key))
        with writer.each("d", size) as d:
            queries = [
                writer.let(Read(F32, "qs", self._line(d, one), True), writer.name("query"))
                for one in self.vectors
            ]
            for n, sums_of_key in enumerate(sums):
                key = writer.scalar(self._of_block(1, number(start + n), last, d))
                for one, query in zip(sums_of_key, queries, strict=True):
                    writer.add_product(one, key, query)
        for n, sums_of_key in enumerate(sums):
            for vector, one in zip(self.vectors, sums_of_key, strict=True):
                self._keep_score(number(start + n), vector, one, masked=last is not None)

    def _keep_score(self, offset: Index, vector: QueryVector, sum: Var, *, masked: bool) -> None:
        """The scores of a key, of which ``now`` is the greatest so far."""
        writer = self.writer
        with writer.lanes(self.lane):
            score = self._score(sum)
            if masked:
                score = select(self._sees(offset, vector), score, softmax.NOTHING)
            held = writer.let(writer.wide(score))
            writer.assign(vector.now, writer.wide(softmax.greater(held, vector.now)))
        writer.emit(Store(F32, "ps", self._line(offset, vector), held))

    def _strip_of_values(self, places: range, last: Var | None, count: int | Expr) -> None:
        """Rescale a strip of results and add the block's values, weighed."""
        writer = self.writer
        sums = [[Var(F32, f"o{d}_{v}", True) for v in range(len(self.vectors))] for d in places]
        results = [
            (self._line(number(place), vector), one, vector)
            for place, of_place in zip(places, sums, strict=True)
            for vector, one in zip(self.vectors, of_place, strict=True)
        ]
        for at, one, vector in results:
            held = Read(F32, "os", at, True)
            writer.declare(writer.apply("mul", F32, held, vector.keep), one.name)
        with writer.each("i", KEYS, 0, count) as i:
            weights = [
                writer.let(Read(F32, "ps", self._line(i, one), True), writer.name("weight"))
                for one in self.vectors
            ]
            for place, of_place in zip(places, sums, strict=True):
                value = writer.scalar(self._of_block(2, i, last, number(place)))
                for vector, weight, one in zip(self.vectors, weights, of_place, strict=True):
                    made = writer.apply("fma", F32, value, weight, one)
                    if last is not None:
                        with writer.lanes(self.lane):
                            seen = self._sees(i, vector)
                            made = writer.wide(select(seen, writer.let(made), one))
                    writer.assign(one, made)
        for at, one, _ in results:
            writer.emit(Store(F32, "os", at, one))

    def _finish(self) -> None:
        """Results divided by the sums of their weights; a query that sees nothing gives zero."""
        writer, size = self.writer, self.D
        for one in self.vectors:
            with writer.lanes(self.lane):
                by = writer.let(writer.wide(softmax.divisor(one.total)))
            with writer.each("d", size) as d:
                held, at = Read(F32, "os", self._line(d, one), True), self._line(d, one)
                writer.emit(Store(F32, "os", at, writer.apply("div", F32, held, by)))
        with writer.each("t", self.queries) as t, writer.each("d", size) as d:
            found = Cell(F32, "os", d * self.queries + t)
            self._store((self.row, self.query_head, self.first + t, d), found)
