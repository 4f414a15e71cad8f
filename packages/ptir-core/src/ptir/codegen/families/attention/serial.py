"""The attention family: softmax of masked query-key products, applied to the values.

Keys are visited in blocks of 16 with a running maximum and sum (Dao et al. 2022), only those that
a query sees, so that nothing beyond a row's length is ever read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
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
from ptir.codegen.expressions.index import Axis, Index, axis, number, ravel_index, unravel_index
from ptir.codegen.families.attention import softmax
from ptir.codegen.families.cache.serial import is_update
from ptir.codegen.fusion.graph import Graph
from ptir.codegen.fusion.renumber import Position
from ptir.codegen.kernel_ir.conditions import less
from ptir.codegen.kernel_ir.nodes import Store
from ptir.codegen.kernel_ir.values import Read
from ptir.codegen.kernel_ir.writer import Writer
from ptir.codegen.schedules.accumulators import pairwise
from ptir.codegen.schedules.kernel import EmitContext, Fusion, Kernel, finish_kernel
from ptir.types import F32, I32, I64

SUMS: Final = 2
"""Sums of a product of query and key that take turns, as one addition waits for the last."""
NEARER: Final = 4
"""How much nearer than those of products keys and values are fetched: a head's are few."""
MOST, TOTAL, NOW = (Var(F32, name) for name in ("most", "total", "now"))
"""The greatest score so far, the sum of weights, and the greatest score with those at hand."""


@dataclass(frozen=True)
class AttentionDetail:
    """One attention call and the cache updates that run in its kernel, by result."""

    position: Position
    updates: tuple[Position, ...] = ()


def match(graph: Graph, position: int) -> Fusion:
    """The fusion of an attention composite."""
    made = graph.block.instructions[position]
    stored = tuple(_stored(graph, position, value) for value in made.operands[1:3])
    updates = _updates(graph, position, stored)
    attention = AttentionDetail(position, updates)
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
    outputs = (exit, *results)
    exact = tuple(shares.values()) if updates else stored
    return Fusion("attention", members, tuple(sorted(reads)), outputs, attention, exact, shares)


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
    """The updates that make its keys and values, where one workgroup can own what they write."""
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


class Attention:
    """One attention call while its kernel is written.

    The schedule here is that of few queries, which are attended to one by one.
    """

    row: Index
    head: Index
    """The batch and the key head at hand."""
    together = 1
    """Queries that are held at once."""

    def __init__(self, fusion: Fusion, context: EmitContext) -> None:
        self.fusion, self.context = fusion, context
        self.graph = context.graph
        detail: AttentionDetail = fusion.detail
        self.made = self.graph.block.instructions[detail.position]
        self.updates = detail.updates
        self.writer: Writer = context.writer()
        self.builder = context.builder()
        self.B, self.H, self.T, self.D = self.graph.type(self.made.operands[0]).shape
        self.G, self.C = self.graph.type(self.made.operands[1]).shape[1:3]
        self.share = self.H // self.G
        self.sinks = self.made.operands[5] if len(self.made.operands) > 5 else None
        self.lanes = context.dialect.lanes
        self.keys = context.tiles.attention_keys
        self.whole = self.D // self.lanes if self.D % self.lanes == 0 else 0
        self.lane = Axis("lane", self.lanes)
        self.j = Index({Axis("j", self.C): 1})

    def __getitem__(self, name: str) -> Any:
        return self.made.attributes[name]

    def kernel(self) -> Kernel:
        """A loop over queries."""
        return self._of_entries(self.H, self.T)

    def _of_entries(self, heads: int, entries: int) -> Kernel:
        """The kernel of so many entries of so many heads, which fetches keys and values ahead."""
        for operand in self.made.operands[1:3]:
            stored = self.graph.behind_views(operand)
            self.writer.prefetch(stored, self.context.tiles.prefetch_bytes // NEARER)
        return self._shared_out(heads, entries)

    def _shared_out(self, heads: int, entries: int) -> Kernel:
        """The kernel whose workgroups have runs of so many entries of so many heads."""
        assert self.keys == self.lanes, "scores are held one per lane"
        writer, outer = self.writer, self.B * heads * entries
        workgroups = self.context.workgroups(outer, self.B * self.H * self.T * self.C * self.D // 2)
        first, last = writer.work_range(outer, workgroups)
        self._declare_arrays()
        with writer.each("e", outer, first, last) as e:
            self._entry(*unravel_index(e, (self.B, heads, entries)))
        return finish_kernel(self.fusion, writer, workgroups)

    def _declare_arrays(self) -> None:
        """The private arrays: scores of a block, and the query, or those that share keys."""
        self.writer.array("s", self.keys, F32)
        self.writer.array("q", self.together * self.D, F32)

    def _entry(self, row: Index, head: Index, entry: Index) -> None:
        """A query."""
        self._query(row, head, entry)

    def _score(self, product: Expr) -> Expr:
        """A product of query and key, scaled and bent."""
        score: Expr = product * self["scale"]
        if self["soft_cap"] is None:
            return score
        cap = constant(F32, self["soft_cap"])
        return Apply(F32, "tanh", score / cap) * cap

    def _masked(self, product: Expr, here: Expr, low: Expr, high: Expr) -> Expr:
        """The score of a product with the key at a position, where that is seen."""
        return select(softmax.within(here, low, high), self._score(product), softmax.NOTHING)

    def _query(self, row: Index, head: Index, step: Index) -> None:
        """One query: its scores block by block, and the values weighed by them."""
        writer, at = self.writer, (row, head, step)
        self.row, self.head = row, head // self.share
        low, high = (writer.scalar(bound) for bound in self._seen(row, step))
        self._hold_query(at, number(0))
        wide, (most, total) = bool(self.whole), self._before_keys(head)
        held = [Var(F32, writer.name("o"), wide) for _ in range(self.whole or self.D)]
        writer.declare_all(*((one, self._zero()) for one in held))
        writer.declare_all((MOST, most), (TOTAL, total))
        with writer.each("j", self.C, low, high, self.keys):
            count = self._block_count(high)
            self._scores(count, number(0))
            self._weigh(count, held)
        self._finish_query(at, held)

    def _hold_query(self, at: tuple[Index, ...], g: Index) -> None:
        """A query's elements into the array ``q``, as number ``g`` there."""
        query = self.made.operands[0]
        self._each(lambda d: self.writer.put("q", g * self.D + d, self.builder.at(query, (*at, d))))

    def _block_count(self, high: Expr) -> Var:
        """The keys of the block at hand."""
        left = Coordinate(I32, self._beyond(high))
        return self.writer.let(Apply(I32, "min", left, constant(I32, self.keys)), "n")

    def _finish_query(self, at: tuple[Index, ...], held: Sequence[Var]) -> None:
        """Results divided by the sum of weights, and stored."""
        by = self.writer.let(softmax.divisor(TOTAL), "by")
        for place, one in enumerate(held):
            with self.writer.lanes(self.lane if self.whole else None):
                self._store((*at, self._place(place)), one / by)

    def _before_keys(self, head: Index) -> tuple[Expr, Expr]:
        """A query's greatest score and sum of weights before the first key: those of its sink."""
        if self.sinks is None:
            return softmax.NOTHING, constant(F32, 0.0)
        sink = self.writer.scalar(self.builder.at(self.sinks, (head,)))
        return sink, self.writer.scalar(softmax.weight(sink, softmax.shift(sink)))

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
        here = long[0] + Coordinate(I64, step)
        one, capacity = constant(I64, 1), constant(I64, self.C)
        high = select(compare("lt", long[1], capacity), long[1], capacity)
        if self["causal"]:
            after = here + one
            high = select(compare("lt", after, high), after, high)
        low: Expr = constant(I64, 0)
        if self["window"] is not None:
            first = here - (self["window"] - 1)
            low = select(compare("gt", first, low), first, low)
            low = select(compare("lt", low, capacity), low, capacity)
        high = select(compare("gt", high, 0), high, constant(I64, 0))
        return Apply(I32, "convert", low), Apply(I32, "convert", high)

    def _element(self, operand: int, position: Expr, place: Index) -> Expr:
        """Element ``place`` of the key (operand 1) or the value (2) at a position."""
        at = self.row, self.head, as_index(position, 0, self.C - 1), place
        return self.builder.at(self.made.operands[operand], at)

    @property
    def _here(self) -> Expr:
        """The position of the key at hand, of those of a block."""
        return Coordinate(I32, self.j + axis("jj", self.keys))

    def _scores(self, count: Var, g: Index) -> None:
        """The scores of query ``g`` with ``count`` keys into ``s``; what is left is -inf."""
        writer, jj = self.writer, axis("jj", self.keys)
        with writer.each("jj", self.keys):
            with writer.when(less(jj, count)):
                writer.put("s", jj, self._dot(g))
            with writer.otherwise():
                writer.put("s", jj, softmax.NOTHING)

    def _dot(self, g: Index) -> Expr:
        """Query ``g`` times one key."""
        writer = self.writer
        held = [
            writer.declare(self._zero(), writer.name("d"))
            for _ in range(min(self.whole, SUMS) or 1)
        ]
        sums = cycle(held)

        def body(place: Index) -> None:
            factors = (Cell(F32, "q", g * self.D + place), self._element(1, self._here, place))
            writer.add_product(next(sums), *map(writer.value, factors))

        self._each(body)
        first, *others = held
        if others:
            writer.assign(first, writer.total(held))
        return writer.reduce_lanes("add", first) if self.whole else first

    def _weigh(self, count: Var, held: list[Var]) -> None:
        """Turn the scores of a block into weights and add the values, rescaling what was there."""
        writer, lane = self.writer, axis("lane", self.lanes)
        with writer.lanes(self.lane):
            inside = compare("lt", Coordinate(I32, lane), count)
            score = select(inside, self._score(Cell(F32, "s", lane)), softmax.NOTHING)
            scores = writer.let(writer.wide(score))
        # A NaN is left alone here: it shows up in the sum instead.
        greatest = writer.scalar(pairwise(writer, scores, softmax.greater))
        writer.let(softmax.greater(greatest, MOST), NOW.name)
        less_by = softmax.shift(NOW)
        keep = writer.let(writer.scalar(softmax.weight(MOST, less_by)), "keep")
        with writer.lanes(self.lane):
            weights = writer.let(writer.wide(softmax.weight(scores, less_by)))
        writer.emit(Store(F32, "s", number(0), weights))
        added = writer.reduce_lanes("add", weights)
        writer.assign(TOTAL, writer.total([writer.apply("mul", F32, TOTAL, keep), added]))
        writer.assign(MOST, NOW)
        self._add_values(count, held, keep)

    def _add_values(self, count: Var, held: list[Var], keep: Var) -> None:
        writer = self.writer
        for one in held:
            writer.assign(one, writer.apply("mul", F32, one, keep))
        with writer.each("jj", self.keys, 0, count) as jj:
            weight = writer.let(Read(F32, "s", jj))
            for place, one in enumerate(held):
                with writer.lanes(self.lane if self.whole else None):
                    value = writer.value(self._element(2, self._here, self._place(place)))
                writer.add_product(one, weight, value)

    def _place(self, number_: int) -> Index:
        if not self.whole:
            return number(number_)
        return axis("lane", self.lanes) + number_ * self.lanes

    def _store(self, at: tuple[Index, ...], found: Expr) -> None:
        """Write one element, or one per lane, where the views behind the call put it."""
        value = self.fusion.outputs[0]
        detail: AttentionDetail = self.fusion.detail
        hero, shape = self.graph.results[detail.position][0], self.graph.type(value).shape
        here = self.graph.through(hero, value, at)
        self.writer.store(value, F32, ravel_index(here, shape), found)

    def _each(self, body: Any) -> None:
        """Call ``body`` with every place of a head: whole vectors, or single elements."""
        writer = self.writer
        if self.whole:
            writer.each_vector(self.whole, body)
            return
        with writer.each("u", self.D) as u:
            body(u)
