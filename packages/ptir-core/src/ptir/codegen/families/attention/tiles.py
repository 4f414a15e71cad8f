"""Attention of many queries: a tile is a vector of queries against blocks of keys.

A lane is a query, so scores, maxima, sums and results of 16 queries grow side by side without any
sum across lanes: keys and values are read as scalars that meet all queries at once. Blocks that
every query of the tile sees whole need no mask; in the others a lane takes part only where it sees
the key, so that what a query does not see cannot reach it, not even as a NaN.
"""

from __future__ import annotations

from typing import Final

from ptir.codegen.expressions.expr import (
    Apply,
    Cell,
    Coordinate,
    Expr,
    Var,
    as_index,
    constant,
    select,
)
from ptir.codegen.expressions.index import Index, axis, number
from ptir.codegen.families.attention import softmax
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
J: Final = axis("j", 1 << 30)
"""Where a block begins; ``_element`` knows the range of positions."""
MOST, TOTAL, NOW, KEEP = (Var(F32, name, True) for name in ("most", "total", "now", "keep"))
LOW, HIGH = (Var(I32, name, True) for name in ("low", "high"))


def emit(fusion: Fusion, context: EmitContext) -> Kernel:
    """Tiles of queries where one is full and no workgroup appends, else queries one by one."""
    made = TiledAttention(fusion, context)
    return (Attention(fusion, context) if made.updates or not made.tiles else made).kernel()


class TiledAttention(Attention):
    """One attention call whose queries are attended to as vectors, while its kernel is written."""

    def __init__(self, fusion: Fusion, context: EmitContext) -> None:
        super().__init__(fusion, context)
        self.tiles, self.left = divmod(self.T, self.lanes)

    def kernel(self) -> Kernel:
        """A loop over tiles of queries; those of a head that fill no tile are one entry more."""
        return self._shared_out(self.H, self.tiles + (self.left > 0))

    def _declare_arrays(self) -> None:
        if self.left:
            super()._declare_arrays()
        elif self.whole:
            self.writer.array("q", self.D, F32)
        for name, count in (("qs", self.D), ("os", self.D), ("ps", KEYS)):
            self.writer.array(name, count * self.lanes, F32)

    def _entry(self, row: Index, head: Index, entry: Index) -> None:
        writer, left = self.writer, self.left
        at = writer.let(Coordinate(I32, entry))
        self.row, self.head, self.query_head = row, head // self.share, head
        with writer.when(less(at, self.tiles) if left else None):
            self.first = axis(at.name, self.tiles) * self.lanes
            self._tile()
        if left:
            with writer.otherwise(), writer.each("t", left) as t:
                self._query(row, head, t + self.tiles * self.lanes)

    def _tile(self) -> None:
        """The queries from ``first`` on."""
        writer = self.writer
        self._load_queries()
        low, high = self._ranges()
        begun = zip((MOST, TOTAL), self._before_keys(self.query_head), strict=True)
        writer.declare_all(*((one, writer.widened(value)) for one, value in begun))
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
        """Queries transposed: a vector of queries for each place; results start at zero.

        What a query is computed from (a rope) is computed in vectors along its places, where they
        fill vectors, and only then transposed.
        """
        writer, size = self.writer, self.D
        d, query = axis("d", size), self.made.operands[0]
        with writer.each("t", self.lanes) as t:
            at = self.row, self.query_head, self.first + t
            for part in range(self.whole):
                place = self._place(part)
                with writer.lanes(self.lane):
                    writer.put("q", place, self.builder.at(query, (*at, place)))
            with writer.each("d", size):
                found = Cell(F32, "q", d) if self.whole else self.builder.at(query, (*at, d))
                writer.put("qs", d * self.lanes + t, found)
        with writer.each("d", size):
            writer.emit(Store(F32, "os", d * self.lanes, self.writer.widened(constant(F32, 0.0))))

    def _ranges(self) -> tuple[tuple[Expr, Expr], tuple[Expr, Expr]]:
        """What the first and the last query see; what each sees is in ``low`` and ``high``."""
        writer = self.writer
        ends = [self._seen(self.row, self.first + place) for place in (0, self.lanes - 1)]
        (low, high), (later, furthest) = [[writer.scalar(bound) for bound in end] for end in ends]
        with writer.lanes(self.lane):
            bounds = self._seen(self.row, self.first + axis("lane", self.lanes))
            for variable, bound in zip((LOW, HIGH), bounds, strict=True):
                writer.let(writer.wide(bound), variable.name)
        return (low, later), (high, furthest)

    def _block(self, last: Var | None) -> None:
        """A block of keys; with ``last``, the furthest key of all, lanes see some of them only.

        Of those behind the last one nothing is computed.
        """
        writer, count = self.writer, self._count(last)
        writer.declare(MOST, NOW.name)
        for start in range(0, KEYS, STRIP):
            some = None if last is None else less(number(start), count)
            with writer.scope() if some is None else writer.when(some):
                self._strip_of_scores(start, last)
        with writer.lanes(self.lane):
            less_by = writer.let(writer.wide(softmax.shift(NOW)), "shift")
            writer.let(writer.wide(softmax.weight(MOST, less_by)), KEEP.name)
        writer.assign(MOST, NOW)
        writer.assign(TOTAL, writer.apply("mul", F32, TOTAL, KEEP))
        with writer.each("i", KEYS, 0, count) as i:
            at = i * self.lanes
            score = writer.let(Read(F32, "ps", at, True), "score")
            with writer.lanes(self.lane):
                held = writer.let(writer.wide(softmax.weight(score, less_by)))
            writer.emit(Store(F32, "ps", at, held))
            writer.assign(TOTAL, writer.total([TOTAL, held]))
        for start in range(0, self.D, STRIP):
            with writer.scope():
                self._strip_of_values(range(start, min(start + STRIP, self.D)), last, count)

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

    def _sees(self, offset: Index) -> Expr:
        """Whether a lane's query sees a key of the block."""
        return softmax.within(Coordinate(I32, J + offset), LOW, HIGH)

    def _strip_of_scores(self, start: int, last: Var | None) -> None:
        """The scores of ``STRIP`` keys, put into ``ps``; ``now`` becomes their maximum."""
        writer, size = self.writer, self.D
        sums = [Var(F32, f"s{n}", True) for n in range(STRIP)]
        writer.declare_all(*((one, writer.widened(constant(F32, 0.0))) for one in sums))
        with writer.each("d", size) as d:
            query = writer.let(Read(F32, "qs", d * self.lanes, True), "query")
            for n, one in enumerate(sums):
                key = writer.scalar(self._element(1, self._position(number(start + n), last), d))
                writer.add_product(one, key, query)
        for n, one in enumerate(sums):
            with writer.lanes(self.lane):
                score = self._score(one)
                if last is not None:
                    seen = self._sees(number(start + n))
                    score = select(seen, score, softmax.NOTHING)
                held = writer.let(writer.wide(score))
                writer.assign(NOW, writer.wide(softmax.greater(held, NOW)))
            writer.emit(Store(F32, "ps", number((start + n) * self.lanes), held))

    def _strip_of_values(self, places: range, last: Var | None, count: int | Expr) -> None:
        """Rescale a strip of results and add the block's values, weighed."""
        writer = self.writer
        sums = [Var(F32, f"o{place}", True) for place in places]
        for place, one in zip(places, sums, strict=True):
            held = Read(F32, "os", number(place * self.lanes), True)
            writer.declare(writer.apply("mul", F32, held, KEEP), one.name)
        with writer.each("i", KEYS, 0, count) as i:
            weight = writer.let(Read(F32, "ps", i * self.lanes, True), "weight")
            for place, one in zip(places, sums, strict=True):
                value = writer.scalar(self._element(2, self._position(i, last), number(place)))
                made = writer.apply("fma", F32, value, weight, one)
                if last is not None:
                    with writer.lanes(self.lane):
                        made = writer.wide(select(self._sees(i), writer.let(made), one))
                writer.assign(one, made)
        for place, one in zip(places, sums, strict=True):
            writer.emit(Store(F32, "os", number(place * self.lanes), one))

    def _finish(self) -> None:
        """Results divided by the sums of their weights; a query that sees nothing gives zero."""
        writer, size = self.writer, self.D
        with writer.lanes(self.lane):
            by = writer.wide(softmax.divisor(TOTAL))
            by = writer.let(by)
        with writer.each("d", size) as d:
            held = Read(F32, "os", d * self.lanes, True)
            writer.emit(Store(F32, "os", d * self.lanes, writer.apply("div", F32, held, by)))
        with writer.each("t", self.lanes) as t, writer.each("d", size) as d:
            found = Cell(F32, "os", d * self.lanes + t)
            self._store((self.row, self.query_head, self.first + t, d), found)
