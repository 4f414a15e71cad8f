"""Attention of many queries: a tile is a vector of queries against blocks of keys.

A lane is a query, so scores, maxima, sums and results of 16 queries grow side by side without any
sum across lanes: keys and values are read as scalars that meet all queries at once. Blocks that
every query of the tile sees whole need no mask; in the others a lane takes part only where it sees
the key, so that what a query does not see cannot reach it, not even as a NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ptir.codegen.expr import Apply, Cell, Expr, Var, compare, constant, select
from ptir.codegen.index import Axis, Index, axis, number
from ptir.codegen.writer import Writer
from ptir.types import BOOL, F32, I32

KEYS: Final = 32
"""Keys of a block: results are rescaled once per block."""
STRIP: Final = 8
"""Scores, or results, that grow in registers at once."""


@dataclass(frozen=True)
class Parts:
    """What a tile needs to know of its attention call, for one row and head.

    ``query(step, place)``, ``key(position, place)`` and ``value(position, place)`` are elements,
    ``seen(step)`` the first position that a query sees and the one after the last, i32, and
    ``score(product)`` what is left to do to a product of query and key.
    """

    size: int
    query: Callable[[Index, Index], Expr]
    key: Callable[[Expr, Index], Expr]
    value: Callable[[Expr, Index], Expr]
    seen: Callable[[Index], tuple[Expr, Expr]]
    score: Callable[[Expr], Expr]


class QueryTile:
    """Writes the attention of ``lanes`` queries from ``first`` on."""

    def __init__(self, writer: Writer, parts: Parts, first: Index) -> None:
        self.writer, self.parts, self.first = writer, parts, first
        self.lanes = writer.dialect.lanes
        self.lane = Axis("lane", self.lanes)

    @staticmethod
    def declare(writer: Writer, size: int) -> None:
        """The private arrays of tiles of heads of ``size`` elements."""
        lanes = writer.dialect.lanes
        for name, count in (("qs", size), ("os", size), ("ps", KEYS), ("by", 1)):
            writer.line(writer.dialect.private(name, count * lanes))

    def write(self, store: Callable[[Index, Index, Expr], None]) -> None:
        """The whole tile; ``store(step, place, result)`` is called for single elements."""
        writer = self.writer
        self._load_queries()
        low, high = self._ranges()
        splat = self._splat
        writer.line(f"{writer.type(F32, True)} most = {splat(-math.inf)}, total = {splat(0.0)};")
        with writer.block(f"for (int j = {low[0]}; j < {high[1]}; j += {KEYS})"):
            whole = f"j >= {low[1]} && j + {KEYS} <= {high[0]}"
            with writer.block(f"if ({whole})"):
                self._block("")
            with writer.block("else"):
                writer.line(f"const int last = {high[1]} - 1;")
                self._block("last")
        self._finish(store)

    def _splat(self, value: float) -> str:
        dialect = self.writer.dialect
        return dialect.splat(F32, self.lanes, dialect.literal(F32, value))

    def _load_queries(self) -> None:
        """Queries transposed: a vector of queries for each place; results start at zero."""
        writer, dialect, size = self.writer, self.writer.dialect, self.parts.size
        with writer.loop(self.lane, "0", str(self.lanes)):
            step = self.first + axis("lane", self.lanes)
            with writer.loop(Axis("d", size), "0", str(size)):
                found = writer.scalar_text(self.parts.query(step, axis("d", size)))
                at = writer.index_text(axis("d", size) * self.lanes + axis("lane", self.lanes))
                writer.line(dialect.private_store(1, "qs", at, found))
        with writer.loop(Axis("d", size), "0", str(size)):
            at = writer.index_text(axis("d", size) * self.lanes)
            writer.line(dialect.private_store(self.lanes, "os", at, self._splat(0.0)))

    def _ranges(self) -> tuple[tuple[str, str], tuple[str, str]]:
        """What the first and the last query see; what each sees is in ``low`` and ``high``."""
        writer = self.writer
        ends = [self.parts.seen(self.first + place) for place in (0, self.lanes - 1)]
        texts = [[writer.scalar_text(bound) for bound in end] for end in ends]
        with writer.lanes(self.lane):
            bounds = self.parts.seen(self.first + axis("lane", self.lanes))
            for name, bound in zip(("low", "high"), bounds, strict=True):
                writer.line(f"const {writer.type(I32, True)} {name} = {writer.wide_text(bound)};")
        (low, high), (later, furthest) = texts
        return (low, later), (high, furthest)

    def _block(self, last: str) -> None:
        """A block of keys; with ``last`` the furthest key of all, lanes see some of them only."""
        writer, dialect = self.writer, self.writer.dialect
        vector = writer.type(F32, True)
        writer.line(f"{vector} now = most;")
        for start in range(0, KEYS, STRIP):
            with writer.block(""):
                self._scores(start, last)
        with writer.lanes(self.lane):
            now, most = Var(F32, "now", True), Var(F32, "most", True)
            nothing = compare("eq", now, constant(F32, -math.inf))
            shift = select(nothing, constant(F32, 0.0), now)
            writer.line(f"const {vector} shift = {writer.wide_text(shift)};")
            keep = Apply(F32, "exp", Apply(F32, "sub", most, Var(F32, "shift", True)))
            writer.line(f"const {vector} keep = {writer.wide_text(keep)};")
        writer.line("most = now;")
        writer.line(f"total = {writer.product_text('total', 'keep')};")
        with writer.block(f"for (int i = 0; i < {KEYS}; ++i)"):
            at = f"i * {self.lanes}"
            score = dialect.private_load(self.lanes, "ps", at)
            writer.line(f"const {vector} score = {score};")
            with writer.lanes(self.lane):
                shifted = Apply(F32, "sub", Var(F32, "score", True), Var(F32, "shift", True))
                weight = writer.let_text(F32, True, writer.wide_text(Apply(F32, "exp", shifted)))
            writer.line(dialect.private_store(self.lanes, "ps", at, weight))
            writer.line(f"total = {writer.total_text(['total', weight])};")
        for start in range(0, self.parts.size, STRIP):
            with writer.block(""):
                self._values(range(start, min(start + STRIP, self.parts.size)), last)

    def _position(self, offset: str, last: str) -> Expr:
        """A position of the block; none that no query sees."""
        return Var(I32, f"min(j + {offset}, {last})" if last else f"(j + {offset})")

    def _sees(self, offset: str) -> Expr:
        """Whether a lane's query sees a key of the block."""
        at = Var(I32, f"(j + {offset})")
        after = compare("ge", at, Var(I32, "low", True))
        return Apply(BOOL, "and", after, compare("lt", at, Var(I32, "high", True)))

    def _scores(self, start: int, last: str) -> None:
        """The scores of ``STRIP`` keys, put into ``ps``; ``now`` becomes their maximum."""
        writer, dialect, size = self.writer, self.writer.dialect, self.parts.size
        names = [f"s{n}" for n in range(STRIP)]
        vector = writer.type(F32, True)
        writer.line(f"{vector} {', '.join(f'{name} = {self._splat(0.0)}' for name in names)};")
        with writer.loop(Axis("d", size), "0", str(size)):
            query = dialect.private_load(self.lanes, "qs", f"d * {self.lanes}")
            writer.line(f"const {vector} query = {query};")
            for n, name in enumerate(names):
                key = self.parts.key(self._position(str(start + n), last), axis("d", size))
                factor = dialect.splat(F32, self.lanes, writer.scalar_text(key))
                writer.line(f"{name} = {self._fma(factor, 'query', name)};")
        for n, name in enumerate(names):
            with writer.lanes(self.lane):
                score = self.parts.score(Var(F32, name, True))
                if last:
                    score = select(self._sees(str(start + n)), score, constant(F32, -math.inf))
                text = writer.let_text(F32, True, writer.wide_text(score))
                greater = compare("gt", Var(F32, text, True), Var(F32, "now", True))
                best = select(greater, Var(F32, text, True), Var(F32, "now", True))
                writer.line(f"now = {writer.wide_text(best)};")
            at = str((start + n) * self.lanes)
            writer.line(dialect.private_store(self.lanes, "ps", at, text))

    def _values(self, places: range, last: str) -> None:
        """Rescale a strip of results and add the block's values, weighed."""
        writer, dialect = self.writer, self.writer.dialect
        vector = writer.type(F32, True)
        for place in places:
            held = dialect.private_load(self.lanes, "os", str(place * self.lanes))
            writer.line(f"{vector} o{place} = {writer.product_text(held, 'keep')};")
        with writer.block(f"for (int i = 0; i < {KEYS}; ++i)"):
            weight = dialect.private_load(self.lanes, "ps", f"i * {self.lanes}")
            writer.line(f"const {vector} weight = {weight};")
            position = self._position("i", last)
            for place in places:
                value = self.parts.value(position, number(place))
                name = f"o{place}"
                factor = dialect.splat(F32, self.lanes, writer.scalar_text(value))
                text = self._fma(factor, "weight", name)
                if last:
                    with writer.lanes(self.lane):
                        added = Var(F32, writer.let_text(F32, True, text), True)
                        text = writer.wide_text(
                            select(self._sees("i"), added, Var(F32, name, True))
                        )
                writer.line(f"{name} = {text};")
        for place in places:
            at = str(place * self.lanes)
            writer.line(dialect.private_store(self.lanes, "os", at, f"o{place}"))

    def _fma(self, a: str, b: str, c: str) -> str:
        return self.writer.dialect.apply("fma", F32, F32, self.lanes, [a, b, c])

    def _finish(self, store: Callable[[Index, Index, Expr], None]) -> None:
        """Results divided by the sums of their weights; a query that sees nothing gives zero."""
        writer, dialect, size = self.writer, self.writer.dialect, self.parts.size
        with writer.lanes(self.lane):
            total = Var(F32, "total", True)
            none = compare("eq", total, constant(F32, 0.0))
            by = writer.wide_text(select(none, constant(F32, 1.0), total))
        writer.line(dialect.private_store(self.lanes, "by", "0", by))
        with writer.loop(self.lane, "0", str(self.lanes)):
            place = axis("lane", self.lanes)
            with writer.loop(Axis("d", size), "0", str(size)):
                held = Cell(F32, "os", axis("d", size) * self.lanes + place)
                found = Apply(F32, "div", held, Cell(F32, "by", place))
                store(self.first + place, axis("d", size), found)
