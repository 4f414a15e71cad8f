"""The attention family: softmax of masked query-key products, applied to the values.

Keys are visited in blocks of 16 with a running maximum and sum (Dao et al. 2022), only those that
a query sees, so that nothing beyond a row's length is ever read. With a single query position the
new keys and values are appended by the item that owns their head, in the same kernel.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from ptir.codegen.expressions.expr import (
    Apply,
    Cell,
    Coordinate,
    Expr,
    Var,
    as_index,
    compare,
    constant,
    select,
)
from ptir.codegen.expressions.index import Axis, Index, axis, digits, flatten, number
from ptir.codegen.families.attention.tiles import Parts, QueryTile
from ptir.codegen.families.cache.serial import append, is_update
from ptir.codegen.fusion.graph import Graph
from ptir.codegen.fusion.renumber import Position
from ptir.codegen.kernel_ir.conditions import less
from ptir.codegen.kernel_ir.nodes import Store
from ptir.codegen.kernel_ir.values import Lane, Read
from ptir.codegen.kernel_ir.writer import Writer
from ptir.codegen.schedules.kernel import Group, Kernel, Site, finished
from ptir.types import F32, I32, I64

NEARER: Final = 4
"""How much nearer than those of products keys and values are fetched: a head's are few."""
MOST, TOTAL, NOW = (Var(F32, name) for name in ("most", "total", "now"))
"""The greatest score so far, the sum of weights, and the greatest score with those at hand."""


@dataclass(frozen=True)
class Attending:
    """One attention call and the cache updates that run in its kernel, by result."""

    position: Position
    updates: tuple[Position, ...] = ()


def match(graph: Graph, position: int) -> Group:
    """The group of an attention composite."""
    made = graph.block.instructions[position]
    stored = tuple(_stored(graph, position, value) for value in made.operands[1:3])
    updates = _updates(graph, position, stored)
    attention = Attending(position, updates)
    results = [graph.results[p][0] for p in updates]
    shares = {
        result: graph.block.instructions[p].operands[0]
        for p, result in zip(updates, results, strict=True)
    }
    heroes = frozenset((position, *updates))
    exit = graph.last_view(graph.results[position][0])
    operands = (made.operands[0], *stored, *made.operands[3:])
    members = heroes | _between(graph, graph.results[position][0], exit)
    for value, behind in zip(made.operands[1:3], stored, strict=True):
        members |= _between(graph, behind, value)
    written = {v for p in updates for v in graph.block.instructions[p].operands}
    reads = (set(operands) | written) - set(results)
    exits = (exit, *results)
    exact = tuple(shares.values()) if updates else stored
    return Group("attention", members, tuple(sorted(reads)), exits, attention, exact, shares)


def _stored(graph: Graph, position: int, value: int) -> int:
    """What lies in memory of keys or values: where they are a cast for this call, what is cast."""
    maker = graph.maker.get(value, -1)
    made = graph.block.instructions[maker] if maker >= 0 else None
    cast = made is not None and made.op == "cast" and graph.readers[value] == [position]
    return made.operands[0] if made is not None and cast else value


def _between(graph: Graph, value: int, view: int) -> set[int]:
    """The positions of the views, or the cast, between two values."""
    found: set[int] = set()
    while view != value:
        found.add(graph.maker[view])
        view = graph.block.instructions[graph.maker[view]].operands[0]
    return found


def _updates(graph: Graph, position: int, stored: tuple[int, ...]) -> tuple[int, ...]:
    """The updates that make its keys and values, where one item can own all that they write."""
    q, k, v = graph.block.instructions[position].operands[:3]
    positions = [graph.maker.get(value, -1) for value in stored]
    readers = [
        [position] if behind == value else [graph.maker[value]]
        for behind, value in zip(stored, (k, v), strict=True)
    ]
    owned = all(
        p >= 0
        and is_update(graph.block.instructions[p])
        and graph.readers[value] == only
        and graph.type(graph.block.instructions[p].operands[1]).shape[2] == 1
        for p, value, only in zip(positions, stored, readers, strict=True)
    )
    distinct = stored[0] != stored[1]
    return tuple(positions) if owned and distinct and graph.type(q).shape[2] == 1 else ()


def write(group: Group, site: Site) -> Kernel:
    """An item owns whole key heads of a row, or runs of queries."""
    attention = Attention(group, site)
    return attention.kernel()


def shift(now: Expr) -> Expr:
    """What is subtracted from scores: the greatest, where a key was seen."""
    none = compare("eq", now, constant(F32, -math.inf))
    return select(none, constant(F32, 0.0), now)


def divisor(total: Expr) -> Expr:
    """What results are divided by: the sum of weights, where a key was seen."""
    return select(compare("eq", total, constant(F32, 0.0)), constant(F32, 1.0), total)


def greater(a: Expr, b: Expr) -> Expr:
    """``a`` where it is above ``b``, else ``b``, which a NaN in ``a`` leaves alone."""
    return select(compare("gt", a, b), a, b)


class Attention:
    """One attention call while its kernel is written."""

    def __init__(self, group: Group, site: Site) -> None:
        self.group, self.site = group, site
        self.graph = site.graph
        detail: Attending = group.detail
        self.made = self.graph.block.instructions[detail.position]
        self.updates = detail.updates
        self.writer: Writer = site.writer()
        self.builder = site.builder()
        self.B, self.H, self.T, self.D = self.graph.type(self.made.operands[0]).shape
        self.G, self.C = self.graph.type(self.made.operands[1]).shape[1:3]
        self.lanes = site.dialect.lanes
        self.keys = site.tiles.keys
        self.whole = self.D // self.lanes if self.D % self.lanes == 0 else 0
        self.lane = Axis("lane", self.lanes)
        self.j = Index({Axis("j", self.C): 1})

    def __getitem__(self, name: str) -> Any:
        return self.made.attributes[name]

    def kernel(self) -> Kernel:
        """A loop over heads, or over tiles of queries, in order."""
        assert self.keys == self.lanes, "scores are held one per lane"
        writer = self.writer
        tiles, left = (0, self.T) if self.updates else divmod(self.T, self.lanes)
        entries = 1 if self.updates else tiles + (left > 0 if tiles else left)
        heads = self.G if self.updates else self.H
        outer = self.B * heads * entries
        work = self.B * self.H * self.T * self.C * self.D // 2
        items = self.site.items(outer, work)
        if not tiles:
            for operand in self.made.operands[1:3]:
                stored = self.graph.behind_views(operand)
                writer.fetch_ahead(stored, self.site.tiles.ahead // NEARER)
        first, last = writer.share(outer, items)
        if left:
            writer.array("s", self.keys, F32)
            writer.array("q", self.D, F32)
        if tiles:
            QueryTile.declare(writer, self.D)
        with writer.loop(Axis("e", outer), first, last):
            row, head, entry = digits(axis("e", outer), (self.B, heads, entries))
            if self.updates:
                self._owned(axis("e", outer))
            elif tiles:
                self._tiles(row, head, entry, tiles, left)
            else:
                self._query(row, head, entry)
        return finished(self.group, writer, items)

    def _tiles(self, row: Index, head: Index, entry: Index, tiles: int, left: int) -> None:
        """A tile of queries; the last entry is the queries that fill no tile, one by one."""
        writer = self.writer
        at = writer.let(Coordinate(I32, entry))
        with writer.when(less(at, tiles) if left else None):
            first = axis(at.name, tiles) * self.lanes
            QueryTile(writer, self._parts(row, head), first).write(
                lambda step, place, found: self._store((row, head, step, place), found)
            )
        if left:
            with writer.otherwise(), writer.loop(Axis("t", left), 0, left):
                self._query(row, head, axis("t", left) + tiles * self.lanes)

    def _parts(self, row: Index, head: Index) -> Parts:
        """What a tile needs to know."""
        q, k, v = self.made.operands[:3]
        group = head // (self.H // self.G)

        def element(operand: int) -> Callable[[Expr, Index], Expr]:
            def at(position: Expr, place: Index) -> Expr:
                where = as_index(position, 0, self.C - 1)
                return self.builder.at(operand, (row, group, where, place))

            return at

        return Parts(
            self.D,
            lambda step, place: self.builder.at(q, (row, head, step, place)),
            element(k),
            element(v),
            lambda step: self._seen(row, step),
            self._score,
        )

    def _score(self, product: Expr) -> Expr:
        """A product of query and key, scaled and bent."""
        score: Expr = Apply(F32, "mul", product, constant(F32, self["scale"]))
        if self["soft_cap"] is None:
            return score
        cap = constant(F32, self["soft_cap"])
        return Apply(F32, "mul", Apply(F32, "tanh", Apply(F32, "div", score, cap)), cap)

    def _owned(self, entry: Index) -> None:
        """Append a key head's new entries, then attend with every query head that uses it."""
        row, head = digits(entry, (self.B, self.G))
        for position, result in zip(self.updates, self.group.exits[1:], strict=True):
            made = self.graph.block.instructions[position]
            with self.writer.scope():
                append(self.writer, self.builder, made, result, (row, head, number(0)))
        share = self.H // self.G
        with self.writer.loop(Axis("g", share), 0, share):
            self._query(row, head * share + axis("g", share), number(0))

    def _query(self, row: Index, head: Index, step: Index) -> None:
        """One query: its scores block by block, and the values weighed by them."""
        writer = self.writer
        low, high = (writer.scalar(bound) for bound in self._seen(row, step))
        at = (row, head, step)
        self._each(
            lambda place: self.writer.put(
                "q", place, self.builder.at(self.made.operands[0], (*at, place))
            )
        )
        wide, zero = bool(self.whole), constant(F32, 0.0)
        held = [Var(F32, writer.name("o"), wide) for _ in range(self.whole or self.D)]
        writer.declare_all(*((one, self._zero()) for one in held))
        writer.declare_all((MOST, constant(F32, -math.inf)), (TOTAL, zero))
        group = head // (self.H // self.G)
        with writer.loop(Axis("j", self.C), low, high, self.keys):
            left = Coordinate(I32, self._beyond(high))
            count = writer.let(Apply(I32, "min", left, constant(I32, self.keys)), "n")
            self._scores(row, group, count)
            self._weigh(row, group, count, held)
        by = writer.let(divisor(TOTAL), "by")
        for place, one in enumerate(held):
            with writer.lanes(self.lane if wide else None):
                self._store((*at, self._place(place)), Apply(F32, "div", one, by))

    def _zero(self) -> Expr:
        """What a sum begins with, per lane where heads are whole vectors."""
        zero = constant(F32, 0.0)
        return self.writer.widened(zero) if self.whole else zero

    def _beyond(self, one: Expr) -> Index:
        """How far a position, or the end, lies behind the block at hand."""
        return as_index(one, 0, self.C) - self.j

    def _seen(self, row: Index, step: Index) -> tuple[Expr, Expr]:
        """The first key that a query sees and the one after the last."""
        start, length = (self.builder.at(v, (row,)) for v in self.made.operands[3:5])
        long = [Apply(I64, "convert", x) for x in (start, length)]
        here = Apply(I64, "add", long[0], Coordinate(I64, step))
        one, capacity = constant(I64, 1), constant(I64, self.C)
        high = select(compare("lt", long[1], capacity), long[1], capacity)
        if self["causal"]:
            after = Apply(I64, "add", here, one)
            high = select(compare("lt", after, high), after, high)
        low: Expr = constant(I64, 0)
        if self["window"] is not None:
            first = Apply(I64, "sub", here, constant(I64, self["window"] - 1))
            low = select(compare("gt", first, low), first, low)
            low = select(compare("lt", low, capacity), low, capacity)
        high = select(compare("gt", high, constant(I64, 0)), high, constant(I64, 0))
        return Apply(I32, "convert", low), Apply(I32, "convert", high)

    def _key(self, row: Index, group: Index, operand: int, place: Index) -> Expr:
        """Element ``place`` of the key or value at position ``j + jj``."""
        here = Coordinate(I32, self.j + axis("jj", self.keys))
        position = as_index(here, 0, self.C - 1)
        return self.builder.at(self.made.operands[operand], (row, group, position, place))

    def _scores(self, row: Index, group: Index, count: Var) -> None:
        """The scores of ``count`` keys into ``s``; what is left of the block is -inf."""
        writer, jj = self.writer, axis("jj", self.keys)
        with writer.loop(Axis("jj", self.keys), 0, self.keys):
            with writer.when(less(jj, count)):
                writer.put("s", jj, self._dot(row, group))
            with writer.otherwise():
                writer.put("s", jj, constant(F32, -math.inf))

    def _dot(self, row: Index, group: Index) -> Expr:
        """The query times one key."""
        writer = self.writer
        held = writer.declare(self._zero(), writer.name("d"))

        def body(place: Index) -> None:
            factors = (Cell(F32, "q", place), self._key(row, group, 1, place))
            writer.assign(held, writer.apply("fma", F32, *map(writer.value, factors), held))

        self._each(body)
        return writer.folded("add", held) if self.whole else held

    def _weigh(self, row: Index, group: Index, count: Var, held: list[Var]) -> None:
        """Turn the scores of a block into weights and add the values, rescaling what was there."""
        writer, lane = self.writer, axis("lane", self.lanes)
        with writer.lanes(self.lane):
            inside = compare("lt", Coordinate(I32, lane), count)
            score = select(inside, self._score(Cell(F32, "s", lane)), constant(F32, -math.inf))
            scores = writer.let(writer.wide(score))
        writer.let(greater(self._greatest(scores), MOST), NOW.name)
        less_by = shift(NOW)
        kept = writer.scalar(Apply(F32, "exp", Apply(F32, "sub", MOST, less_by)))
        keep = writer.let(kept, "keep")
        with writer.lanes(self.lane):
            weight = Apply(F32, "exp", Apply(F32, "sub", scores, less_by))
            weights = writer.let(writer.wide(weight))
        writer.emit(Store(F32, "s", number(0), weights))
        added = writer.folded("add", weights)
        writer.assign(TOTAL, writer.total([writer.apply("mul", F32, TOTAL, keep), added]))
        writer.assign(MOST, NOW)
        self._add_values(row, group, count, held, keep)

    def _greatest(self, scores: Var) -> Expr:
        """The greatest score of a block; NaN shows up in the sum instead."""
        parts: list[Expr] = [Lane(scores, i) for i in range(self.lanes)]
        while len(parts) > 1:
            half = len(parts) // 2
            parts = [greater(parts[i], parts[i + half]) for i in range(half)]
        return self.writer.scalar(parts[0])

    def _add_values(self, row: Index, group: Index, count: Var, held: list[Var], keep: Var) -> None:
        writer = self.writer
        for one in held:
            writer.assign(one, writer.apply("mul", F32, one, keep))
        with writer.loop(Axis("jj", self.keys), 0, count):
            weight = writer.let(Read(F32, "s", axis("jj", self.keys)))
            for place, one in enumerate(held):
                with writer.lanes(self.lane if self.whole else None):
                    value = writer.value(self._key(row, group, 2, self._place(place)))
                writer.assign(one, writer.apply("fma", F32, weight, value, one))

    def _place(self, number_: int) -> Index:
        if not self.whole:
            return number(number_)
        return axis("lane", self.lanes) + number_ * self.lanes

    def _store(self, at: tuple[Index, ...], found: Expr) -> None:
        """Write one element, or one per lane, where the views behind the call put it."""
        value = self.group.exits[0]
        detail: Attending = self.group.detail
        hero, shape = self.graph.results[detail.position][0], self.graph.type(value).shape
        here = self.graph.through(hero, value, at)
        self.writer.store(value, F32, flatten(here, shape), found)

    def _each(self, body: Any) -> None:
        """Call ``body`` with every place of a head: whole vectors, or single elements."""
        writer = self.writer
        if self.whole:
            with writer.loop(Axis("v", self.whole), 0, self.whole), writer.lanes(self.lane):
                body(axis("v", self.whole) * self.lanes + axis("lane", self.lanes))
            return
        with writer.loop(Axis("u", self.D), 0, self.D):
            body(axis("u", self.D))
