"""The recurrence family: the gated delta rule, whose state is read once and written in place.

Columns of a head's matrix S know nothing of each other, so work is cut along them. Of a chunk of
tokens all products with S are taken at once; what the tokens of a chunk do to each other is a
triangle of scalars (Yang, Kautz and Hatamizadeh 2025), and S changes once a chunk. A chunk of one
token is the rule as it is written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ptir.codegen.expressions.expr import Apply, Coordinate, Expr, Var, as_index, constant, select
from ptir.codegen.expressions.index import Index, number
from ptir.codegen.fusion.graph import Graph
from ptir.codegen.kernel_ir.conditions import all_of, less
from ptir.codegen.kernel_ir.values import Read
from ptir.codegen.schedules.epilogue import HeroKernel
from ptir.codegen.schedules.kernel import EmitContext, Fusion
from ptir.types import F32, I32

CHUNK: Final = 8
"""Tokens that change the state together: their keys and queries are the lanes of a vector."""


def match(graph: Graph, position: int) -> Fusion:
    """Every rule on its own, its new state written over the old one.

    Queries and keys lie in memory: every head of values, and every part of its columns, reads them.
    """
    made, results = graph.block.instructions[position], graph.results[position]
    q, k, *_, state, _ = made.operands
    own, exact, over = frozenset((position,)), (q, k, state), {results[1]: state}
    return Fusion("recurrence", own, made.operands, results, position, exact, over)


class Rule(HeroKernel):
    """One rule while its kernel is written: its operands by token, and how much there is."""

    def __init__(self, fusion: Fusion, context: EmitContext) -> None:
        super().__init__(fusion, context)
        self.q, self.k, self.v, self.g, self.beta, _, self.count = self.made.operands
        self.seen, self.state = fusion.outputs
        self.B, H, self.T, self.K = self.graph.type(self.q).shape
        _, self.heads, _, self.V = self.graph.type(self.v).shape
        self.shared = self.heads // H
        self.lanes = context.dialect.lanes

    first: Index
    """The first token of the chunk at hand."""
    size = CHUNK
    """Tokens of a chunk."""
    near, far, remains, since, rates = "near", "far", "left", "since", "rate"
    """Arrays of a chunk: what an error takes from a later one and gives a query, and what of it
    stays at the end; what is left of the matrix at each token; the tokens' rates."""

    @property
    def work(self) -> int:
        """Elementary operations."""
        return self.B * self.heads * self.T * self.K * self.V * 4

    def find_head(self, row: Index, head: Index) -> None:
        """Remember which head is at hand, and how many of its tokens are real."""
        self.row, self.head = row, head
        count = self.writer.scalar(self.builder.at(self.count, (row,)))
        least = Apply(I32, "min", count, constant(I32, self.T))
        self.real = self.writer.let(Apply(I32, "max", least, constant(I32, 0)), "real")

    def token(self, place: Index) -> Index:
        """A token that there is: the one at a place, or the last."""
        return self.existing(place, self.T)

    def existing(self, place: Index, size: int) -> Index:
        """A place below ``size``: the one at hand, or the last."""
        if place.high < size:
            return place
        found = Apply(I32, "min", Coordinate(I32, place), constant(I32, size - 1))
        return as_index(self.writer.let(found), 0, size - 1)

    def query_and_key(self, place: Index, i: Index) -> tuple[Expr, Expr]:
        """Element ``i`` of a token's query and key; the key of a token that is not real is 0."""
        at = self.row, self.head // self.shared, self.token(place), i
        key = select(less(place, self.real), self.builder.at(self.k, at), constant(F32, 0.0))
        return self.builder.at(self.q, at), key

    def decay(self, place: Index) -> Expr:
        """By what a token multiplies the state: by 1 where it is not real."""
        g = self.builder.at(self.g, (self.row, self.head, self.token(place)))
        power = select(less(place, self.real), g, constant(F32, 0.0))
        return Apply(F32, "exp", power)

    def rate(self, place: Index) -> Expr:
        """How much of its error a real token takes out."""
        return self.builder.at(self.beta, (self.row, self.head, self.token(place)))

    def value(self, place: Index, column: Index) -> Expr:
        """A token's value in a column."""
        return self.builder.at(self.v, (self.row, self.head, self.token(place), column))

    def give(self, place: Index, column: Index, found: Expr) -> None:
        """Store what a token sees in a column, or in one per lane."""
        at = self.token(place)
        flat = ((self.row * self.heads + self.head) * self.T + at) * self.V + column
        self.writer.store(self.seen, F32, flat, found)

    def array(self, name: str, at: Index, wide: bool = False) -> Expr:
        """An element of an array, or one per lane, as it is now."""
        return self.writer.let(Read(F32, name, at, wide and self.lanes > 1))

    def widened(self, value: Expr) -> Expr:
        """A scalar in every lane, where there are lanes."""
        return value if self.writer.lane is None else self.writer.widened(value)

    def valued(self, expr: Expr) -> Expr:
        """The value of an expression, in every lane where there are lanes."""
        return self.writer.scalar(expr) if self.writer.lane is None else self.writer.wide(expr)

    def errors(self, column: Index, product: Callable[[int], Expr]) -> list[Var]:
        """The errors of the chunk's tokens, each behind those before; stores what is seen.

        ``product`` gives those of the matrix with the chunk's keys, then with its queries.
        """
        writer, errors = self.writer, list[Var]()
        for t in range(self.size):
            place = self.first + t
            error = writer.declare(self.widened(constant(F32, 0.0)), f"error{t}")
            with writer.when(less(place, self.real)):
                known = self._sum(t, product(t), self.near, errors)
                off = self.value(place, column) - known
                writer.assign(error, self.valued(off * self.array(self.rates, number(t))))
            errors.append(error)
            seen = self._sum(t, product(self.size + t), self.far, errors)
            ragged = [less(place, self.T)] if place.high >= self.T else []
            with writer.when(self.gives(*ragged)):
                self.give(place, column, seen)
        return errors

    def gives(self, *conditions: Expr) -> Expr | None:
        """Where the thread stores what a token sees, under conditions."""
        return all_of(conditions)

    def _sum(self, t: int, product: Expr, weights: str, errors: list[Var]) -> Var:
        """A product with what is left of the matrix, and what the errors so far add to it."""
        writer, since = self.writer, self.array(self.since, number(t))
        sum = writer.declare(writer.apply("mul", F32, product, since))
        for s, error in enumerate(errors):
            writer.add_product(sum, error, self.array(weights, number(t * self.size + s)))
        return sum

    def change(self, errors: list[Var]) -> Callable[[Expr, Callable[[int], Expr]], Var]:
        """What gives an element of the matrix behind the chunk: of the one before, and of the keys.

        The matrix decays, and the keys' parts of all errors are added.
        """
        writer, kept = self.writer, self.array(self.since, number(self.size - 1))
        added = [
            writer.let(writer.apply("mul", F32, error, self.array(self.remains, number(s))))
            for s, error in enumerate(errors)
        ]

        def changed(held: Expr, key: Callable[[int], Expr]) -> Var:
            sum = writer.declare(writer.apply("mul", F32, held, kept))
            for s, error in enumerate(added):
                writer.add_product(sum, error, key(s))
            return sum

        return changed

    def in_state(self, i: Index, column: Index) -> Index:
        """Where an element of the head's matrix lies in memory."""
        return ((self.row * self.heads + self.head) * self.K + i) * self.V + column
