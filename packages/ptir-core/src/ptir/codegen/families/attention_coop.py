"""The coop schedule of attention: a group per block of queries that share their keys.

The query heads of a key head and the steps of a prompt are *rows* of one block: they see the same
keys, which pass through shared memory block by block, then the values do. Scores are pairs of a row
and a key, results pairs of a row and a place in the head, and both are shared out among members.
A running maximum and sum are kept for each row (Dao et al. 2022). With cache updates a group owns a
key head, and appends to it first.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

from ptir.codegen.expr import Apply, Cell, Expr, Var, compare, constant, select
from ptir.codegen.families.attention import Attention, shift
from ptir.codegen.families.cache import written
from ptir.codegen.groups import Team, power_of_two
from ptir.codegen.index import Axis, Index, axis, digits, flatten, number
from ptir.codegen.kernel import Group, Kernel, Site, finished
from ptir.types import BOOL, F32, I32

RUN = 4


@dataclass(frozen=True)
class Block:
    """Rows and keys of a block, and the bytes of shared memory that it takes."""

    rows: int
    keys: int
    depth: int
    members: int

    @property
    def nbytes(self) -> int:
        """Queries, keys or values, scores, and what is kept of each row."""
        kept = 5 * self.rows + self.members
        floats = self.rows * self.depth + self.keys * (self.depth + 1) + self.rows * self.keys
        return (floats + kept) * F32.itemsize


def block_of(rows: int, depth: int, site: Site) -> Block | None:
    """The largest block of ``rows`` that fits into the memory that a group shares.

    None where none does, or where groups have fewer members.
    """
    tiles, traits = site.tiles, site.traits
    if traits.group < tiles.block_members:
        return None
    high, most = min(tiles.block_rows, power_of_two(rows)), tiles.block_keys
    sizes = [(r, k) for k in (most, most // 2, most // 4) for r in (high, high // 2, high // 4)]
    found = (Block(max(1, r), max(1, k), depth, tiles.block_members) for r, k in sizes)
    return next((block for block in found if block.nbytes <= traits.shared), None)


def divisor(total: Expr) -> Expr:
    """What results are divided by: the sum of weights, where a key was seen."""
    return select(compare("eq", total, constant(F32, 0.0)), constant(F32, 1.0), total)


class TeamAttention(Attention):
    """One attention call while its kernel of groups is written.

    A kernel may have several *parts*: groups with the same rows and other keys.
    """

    parts = 1

    def __init__(self, group: Group, site: Site) -> None:
        super().__init__(group, site)
        self.share = self.H // self.G
        self.rows = self.T * self.share
        self.team = Team(self.writer, site.tiles.block_members)

    def kernel_of_groups(self, block: Block) -> Kernel:
        """Blocks of rows, or whole key heads where the group appends to them."""
        self.block, writer = block, self.writer
        blocks = -(-self.rows // block.rows)
        entries = 1 if self.updates else blocks
        sizes = self.B, self.G, entries, self.parts
        items = math.prod(sizes)
        row, head, entry, part = digits(axis("item", items), sizes)
        self.row, self.head = self._named(row, self.B), self._named(head, self.G)
        self.part = self._named(part, self.parts)
        self._declare()
        if self.updates:
            self._append()
            with writer.loop(Axis("blocks", blocks), "0", str(blocks), rolled=True):
                self._rows_from(axis("blocks", blocks) * block.rows)
                writer.barrier()
        else:
            self._rows_from(self._named(entry, blocks) * block.rows)
        return finished(self.group, writer, items, members=block.members)

    def _named(self, at: Index, size: int) -> Index:
        """A number as a variable of its own."""
        if size == 1:
            return number(0)
        return axis(self.writer.let_text(I32, False, self.writer.index_text(at)), size)

    def _declare(self) -> None:
        """Shared memory, by what lies in it."""
        shared, block = self.writer.shared, self.block
        self.queries = shared(F32, block.rows * self.D)
        self.entries = shared(F32, block.keys * (self.D + 1))
        self.scores = shared(F32, block.rows * block.keys)
        self.lows, self.highs = shared(I32, block.rows), shared(I32, block.rows)
        self.mosts, self.keeps, self.totals = (shared(F32, block.rows) for _ in range(3))

    def _append(self) -> None:
        """The key head's new entries, element by element."""
        writer = self.writer
        for position, result in zip(self.updates, self.group.exits[1:], strict=True):
            _, new, start, count = self.graph.block.instructions[position].operands
            shape, type = self.graph.type(result).shape, self.graph.type(result).dtype
            bounds, step = (start, count), number(0)
            with writer.block(""):
                at = (writer, self.builder, bounds, self.row, step, shape[2])
                with written(*at) as place, self._mine(place), self.team.own(self.D, "d") as d:
                    found = self.builder.at(new, (self.row, self.head, step, d))
                    target = flatten((self.row, self.head, place, d), shape)
                    writer.store(result, type, target, found)
        writer.barrier()

    def _mine(self, place: Index) -> AbstractContextManager[None]:
        """A block for the one of the parts that writes a place of the cache."""
        return nullcontext()

    # --- a block of rows ---

    def _rows_from(self, first: Index) -> None:
        """The rows from ``first`` on, as many as a block has."""
        writer, block = self.writer, self.block
        self.first = first
        with self.team.own(block.rows, "r") as r:
            self._begin(r)
        self._load_queries()
        writer.barrier()
        low, high = self._stretch(*self._range(self.block.rows))
        self._start_results()
        with writer.block(f"for (int j = {low}; j < {high}; j += {block.keys})"):
            self._stage(1, high)
            writer.barrier()
            self._score_all()
            writer.barrier()
            with self.team.own(block.rows, "r") as r:
                self._follow(r)
            self._stage(2, high)
            writer.barrier()
            self._weigh_all()
            writer.barrier()
            self._gather()
            writer.barrier()
        self._store_results()

    @contextmanager
    def _inside(self, r: Index) -> Iterator[Index]:
        """What is done for a row of the block that there is; gives its number."""
        writer, at = self.writer, self.first + r
        with writer.block(f"if ({writer.index_text(at)} < {self.rows})"):
            yield self._named(at, self.rows)

    def _at(self, row: Index) -> tuple[Index, Index, Index]:
        """Batch, query head and step of a row."""
        step, within = row // self.share, row % self.share
        return self.row, self.head * self.share + within, step

    def _begin(self, r: Index) -> None:
        """What is kept of a row before the first key."""
        writer, place = self.writer, self.writer.index_text(r)
        infinity = writer.dialect.literal(F32, -math.inf)
        writer.line(f"{self.mosts}[{place}] = {infinity};")
        writer.line(f"{self.totals}[{place}] = {writer.dialect.literal(F32, 0.0)};")
        self._begin_bounds(r)

    def _begin_bounds(self, r: Index) -> None:
        """The keys that a row sees. A row that is none sees nothing."""
        writer, place = self.writer, self.writer.index_text(r)
        for array in (self.lows, self.highs):
            writer.line(f"{array}[{place}] = 0;")
        with self._inside(r) as row:
            bounds = self._seen(self.row, self._named(self._at(row)[2], self.T))
            for array, bound in zip((self.lows, self.highs), bounds, strict=True):
                writer.line(f"{array}[{place}] = {writer.scalar_text(bound)};")

    def _load_queries(self) -> None:
        writer = self.writer
        with self.team.own(self.block.rows * self.D, "e") as e:
            target = f"{self.queries}[{writer.index_text(e)}]"
            with self._inside(e // self.D) as row:
                at = (*self._at(row), self._named(e % self.D, self.D))
                query = writer.scalar_text(self.builder.at(self.made.operands[0], at))
                writer.line(f"{target} = {query};")
            with writer.block("else"):
                writer.line(f"{target} = {writer.dialect.literal(F32, 0.0)};")

    def _range(self, rows: int) -> tuple[str, str]:
        """The first key that any of so many rows sees, and the one after the last."""
        writer = self.writer
        low, high = writer.name("low"), writer.name("high")
        writer.line(f"int {low} = {self.C}, {high} = 0;")
        with writer.block(f"for (int r = 0; r < {rows}; r += 1)"):
            writer.line(f"const int a = {self.lows}[r], b = {self.highs}[r];")
            with writer.block("if (a < b)"):
                writer.line(f"{low} = min({low}, a); {high} = b > {high} ? b : {high};")
        return low, high

    def _stretch(self, low: str, high: str) -> tuple[str, str]:
        """The keys of the part, of those that any row sees."""
        return low, high

    def _stage(self, operand: int, high: str) -> None:
        """A block of keys or values into shared memory; zeros beyond the last that is seen."""
        writer = self.writer
        run = RUN if self.D % RUN == 0 else 1
        across = self.D // run
        with self.team.own(self.block.keys * across, "e") as e:
            jj = self._named(e // across, self.block.keys)
            d = self._named(e % across, across)
            places = [(d * run + n, n) for n in range(run)]
            targets = [writer.index_text(jj * (self.D + 1) + place) for place, _ in places]
            with writer.block(f"if (j + {writer.index_text(jj)} < {high})"):
                position = axis(writer.let_text(I32, False, f"j + {writer.index_text(jj)}"), self.C)
                for (place, n), target in zip(places, targets, strict=True):
                    with writer.running(d, run, n):
                        at = (self.row, self.head, position, place)
                        found = writer.scalar_text(self.builder.at(self.made.operands[operand], at))
                    writer.line(f"{self.entries}[{target}] = {found};")
            with writer.block("else"):
                for target in targets:
                    writer.line(f"{self.entries}[{target}] = {writer.dialect.literal(F32, 0.0)};")

    def _score_all(self) -> None:
        """Every row times every key of the block, masked; several members along a head if idle."""
        writer, block = self.writer, self.block
        pairs = block.rows * block.keys
        parts = max(1, block.members // pairs)
        with self._pairs(pairs, parts) as (pair, part):
            r, jj = self._named(pair // block.keys, block.rows), pair % block.keys
            jj = self._named(jj, block.keys)
            writer.line(f"float dot = {writer.dialect.literal(F32, 0.0)};")
            own = -(-self.D // parts)
            with writer.loop(Axis("d", own), "0", str(own)):
                d = axis("d", own) * parts + part
                guard = f"if ({writer.index_text(d)} < {self.D})" if self.D % parts else ""
                with writer.block(guard):
                    factors = (
                        writer.scalar_text(Cell(F32, self.queries, r * self.D + d)),
                        writer.scalar_text(Cell(F32, self.entries, jj * (self.D + 1) + d)),
                    )
                    fused = writer.dialect.apply("fma", F32, F32, 1, [*factors, "dot"])
                    writer.line(f"dot = {fused};")
            if parts > 1:
                self.team.sum([Var(F32, "dot")], pairs)
            here = Var(I32, writer.let_text(I32, False, f"j + {writer.index_text(jj)}"))
            low, high = (Cell(I32, array, r) for array in (self.lows, self.highs))
            seen = Apply(BOOL, "and", compare("ge", here, low), compare("lt", here, high))
            score = select(seen, self._score(Var(F32, "dot")), constant(F32, -math.inf))
            text = writer.scalar_text(score)
            writer.line(f"{self.scores}[{writer.index_text(r * block.keys + jj)}] = {text};")

    @contextmanager
    def _pairs(self, pairs: int, parts: int) -> Iterator[tuple[Index, Index]]:
        """A block for each pair of a row and a key; all members are there if they have parts."""
        if parts > 1:
            with self.writer.block(""):
                pair = self._named(self.team.member % pairs, pairs)
                yield pair, self._named(self.team.member // pairs, parts)
        else:
            with self.team.own(pairs, "p") as pair:
                yield pair, number(0)

    def _follow(self, r: Index) -> None:
        """A row's greatest score so far, and what is left of the sums before."""
        writer, at = self.writer, self.writer.index_text(r)
        most = writer.let_text(F32, False, f"{self.mosts}[{at}]")
        writer.line(f"float now = {most};")
        with writer.loop(Axis("jj", self.block.keys), "0", str(self.block.keys)):
            score = Cell(F32, self.scores, r * self.block.keys + axis("jj", self.block.keys))
            found = Var(F32, writer.scalar_text(score))
            greater = select(compare("gt", found, NOW), found, NOW)
            writer.line(f"now = {writer.scalar_text(greater)};")
        kept = Apply(F32, "exp", Apply(F32, "sub", Var(F32, most), shift(NOW)))
        writer.line(f"{self.keeps}[{at}] = {writer.scalar_text(kept)};")
        writer.line(f"{self.mosts}[{at}] = now;")

    def _weigh_all(self) -> None:
        """Scores become weights."""
        writer, block = self.writer, self.block
        with self.team.own(block.rows * block.keys, "p") as pair:
            most = Var(F32, writer.scalar_text(Cell(F32, self.mosts, pair // block.keys)))
            score = Cell(F32, self.scores, pair)
            weight = Apply(F32, "exp", Apply(F32, "sub", score, shift(most)))
            text = writer.scalar_text(weight)
            writer.line(f"{self.scores}[{writer.index_text(pair)}] = {text};")

    # --- results ---

    @property
    def _results(self) -> list[tuple[int, str]]:
        """The member's results: the number of the first member's, and the variable."""
        members = self.block.members
        each = -(-self.block.rows * self.D // members)
        return [(n * members, f"o{n}") for n in range(each)]

    def _start_results(self) -> None:
        zero = self.writer.dialect.literal(F32, 0.0)
        names = ", ".join(f"{name} = {zero}" for _, name in self._results)
        self.writer.line(f"float {names};")

    @contextmanager
    def _own_result(self, begin: int) -> Iterator[Index]:
        """What is done for a result of the member, where it has one."""
        writer, count = self.writer, self.block.rows * self.D
        at = self.team.member + begin
        broken = begin + self.block.members > count
        with writer.block(f"if ({writer.index_text(at)} < {count})" if broken else ""):
            yield axis(writer.let_text(I32, False, writer.index_text(at)), count)

    def _gather(self) -> None:
        """The values, weighed, into the results; and the weights into the rows' sums."""
        writer, keys = self.writer, self.block.keys
        for begin, name in self._results:
            with self._own_result(begin) as at:
                r = self._named(at // self.D, self.block.rows)
                writer.line(f"{name} = {name} * {writer.scalar_text(Cell(F32, self.keeps, r))};")
                d = self._named(at % self.D, self.D)
                with self._seen_keys(r) as jj:
                    weight = writer.scalar_text(Cell(F32, self.scores, r * keys + jj))
                    value = writer.scalar_text(Cell(F32, self.entries, jj * (self.D + 1) + d))
                    fused = writer.dialect.apply("fma", F32, F32, 1, [weight, value, name])
                    writer.line(f"{name} = {fused};")
        with self.team.own(self.block.rows, "r") as r:
            slot = writer.index_text(r)
            writer.line(f"float total = {self.totals}[{slot}] * {self.keeps}[{slot}];")
            with self._seen_keys(r) as jj:
                writer.line(
                    f"total += {writer.scalar_text(Cell(F32, self.scores, r * keys + jj))};"
                )
            writer.line(f"{self.totals}[{slot}] = total;")

    @contextmanager
    def _seen_keys(self, r: Index) -> Iterator[Index]:
        """A loop over the keys of the block that a row sees: others' values may be anything."""
        writer, keys = self.writer, self.block.keys
        low, high = (writer.scalar_text(Cell(I32, array, r)) for array in (self.lows, self.highs))
        first = writer.let_text(I32, False, f"{low} > j ? {low} - j : 0")
        last = writer.let_text(I32, False, f"min({keys}, {high} - j)")
        name = writer.name("jj")
        with writer.loop(Axis(name, keys), first, last):
            yield axis(name, keys)

    def _store_results(self) -> None:
        """Every result over the sum of its row's weights."""
        writer = self.writer
        for begin, name in self._results:
            with self._own_result(begin) as at, self._inside(at // self.D) as row:
                total = Var(F32, writer.scalar_text(Cell(F32, self.totals, at // self.D)))
                batch, head, step = self._at(row)
                where = (batch, self._named(head, self.H), self._named(step, self.T))
                place = self._named(at % self.D, self.D)
                self._store((*where, place), Apply(F32, "div", Var(F32, name), divisor(total)))


NOW = Var(F32, "now")
