"""The cooperative schedule of attention: a workgroup per block of queries that share their keys.

The query heads of a key head and the steps of a prompt are *rows* of one block: they see the same
keys, which pass through shared memory block by block, then the values do. Scores are pairs of a row
and a key, results pairs of a row and a place in the head, and both are shared out among threads. A
running maximum and sum are kept for each row (Dao et al. 2022). With cache updates a workgroup owns
a key head, and appends to it first.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

from ptir.codegen.expressions.expr import Apply, Cell, Coordinate, Var, constant
from ptir.codegen.expressions.index import Index, axis, number, ravel_index, unravel_index
from ptir.codegen.families.attention import softmax
from ptir.codegen.families.attention.serial import NOW, TOTAL, Attention
from ptir.codegen.families.cache.serial import written
from ptir.codegen.kernel_ir.conditions import less
from ptir.codegen.kernel_ir.values import Read
from ptir.codegen.schedules.kernel import EmitContext, Fusion, Kernel, finish_kernel
from ptir.codegen.schedules.workgroup import Workgroup, power_of_two
from ptir.types import BOOL, F32, I32

RUN = 4
DOT = Var(F32, "dot")
ZERO = constant(F32, 0.0)


@dataclass(frozen=True)
class Block:
    """Rows and keys of a block, and the bytes of shared memory that it takes."""

    rows: int
    keys: int
    depth: int
    workgroup_size: int

    @property
    def nbytes(self) -> int:
        """Queries, keys or values, scores, and what is kept of each row."""
        kept = 5 * self.rows + self.workgroup_size
        floats = self.rows * self.depth + self.keys * (self.depth + 1) + self.rows * self.keys
        return (floats + kept) * F32.itemsize


def block_of(rows: int, depth: int, context: EmitContext) -> Block | None:
    """The largest block of ``rows`` that fits into the memory that a workgroup shares.

    None where none does, or where workgroups have fewer threads.
    """
    tiles, traits = context.tiles, context.traits
    if traits.max_workgroup_size < tiles.attention_workgroup_size:
        return None
    high, most = min(tiles.attention_block_rows, power_of_two(rows)), tiles.attention_block_keys
    sizes = [(r, k) for k in (most, most // 2, most // 4) for r in (high, high // 2, high // 4)]
    found = (Block(max(1, r), max(1, k), depth, tiles.attention_workgroup_size) for r, k in sizes)
    return next((block for block in found if block.nbytes <= traits.shared_memory_bytes), None)


class CooperativeAttention(Attention):
    """One attention call while its cooperative kernel is written.

    A kernel may have several *parts*: workgroups with the same rows and other keys.
    """

    parts = 1

    def __init__(self, fusion: Fusion, context: EmitContext) -> None:
        super().__init__(fusion, context)
        self.rows = self.T * self.share
        self.workgroup = Workgroup(self.writer, context.tiles.attention_workgroup_size)

    def kernel_of_groups(self, block: Block) -> Kernel:
        """Blocks of rows, or whole key heads where the workgroup appends to them."""
        self.block, writer = block, self.writer
        blocks = -(-self.rows // block.rows)
        entries = 1 if self.updates else blocks
        sizes = self.B, self.G, entries, self.parts
        workgroups = math.prod(sizes)
        row, head, entry, part = unravel_index(axis("item", workgroups), sizes)
        self.row, self.head = self._named(row, self.B), self._named(head, self.G)
        self.part = self._named(part, self.parts)
        self._declare()
        if self.updates:
            self._append()
            with writer.each("blocks", blocks, no_unroll=True):
                self._rows_from(axis("blocks", blocks) * block.rows)
                writer.barrier()
        else:
            self._rows_from(self._named(entry, blocks) * block.rows)
        return finish_kernel(self.fusion, writer, workgroups, workgroup_size=block.workgroup_size)

    def _named(self, at: Index, size: int) -> Index:
        """A number as a variable of its own."""
        return number(0) if size == 1 else self.writer.let_index(self.writer.index(at), size)

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
        for position, result in zip(self.updates, self.fusion.outputs[1:], strict=True):
            _, new, start, count = self.graph.block.instructions[position].operands
            shape, type = self.graph.type(result).shape, self.graph.type(result).dtype
            bounds, step = (start, count), number(0)
            with writer.scope():
                at = (writer, self.builder, bounds, self.row, step, shape[2])
                with (
                    written(*at) as place,
                    self._mine(place),
                    self.workgroup.distribute(self.D, "d") as d,
                ):
                    found = self.builder.at(new, (self.row, self.head, step, d))
                    target = ravel_index((self.row, self.head, place, d), shape)
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
        with self.workgroup.distribute(block.rows, "r") as r:
            self._begin(r)
        self._load_queries()
        writer.barrier()
        low, high = self._stretch(*self._range(block.rows))
        writer.declare_all(*((one, ZERO) for _, one in self._results))
        with writer.each("j", self.C, low, high, block.keys):
            self._stage(1, high)
            writer.barrier()
            self._score_all()
            writer.barrier()
            with self.workgroup.distribute(block.rows, "r") as r:
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
        with writer.when(less(writer.index(at), self.rows)):
            yield self._named(at, self.rows)

    def _at(self, row: Index) -> tuple[Index, Index, Index]:
        """Batch, query head and step of a row."""
        step, within = row // self.share, row % self.share
        return self.row, self.head * self.share + within, step

    def _begin(self, r: Index) -> None:
        """What is kept of a row before the first key."""
        most, total = self._before_keys(self._at(self.first + r)[1])
        self.writer.put(self.mosts, r, most)
        self.writer.put(self.totals, r, total)
        self._begin_bounds(r)

    def _begin_bounds(self, r: Index) -> None:
        """The keys that a row sees. A row that is none sees nothing."""
        for array in (self.lows, self.highs):
            self.writer.put(array, r, constant(I32, 0), I32)
        with self._inside(r) as row:
            bounds = self._seen(self.row, self._named(self._at(row)[2], self.T))
            for array, bound in zip((self.lows, self.highs), bounds, strict=True):
                self.writer.put(array, r, bound, I32)

    def _load_queries(self) -> None:
        writer = self.writer
        with self.workgroup.distribute(self.block.rows * self.D, "e") as e:
            with self._inside(e // self.D) as row:
                at = (*self._at(row), self._named(e % self.D, self.D))
                writer.put(self.queries, e, self.builder.at(self.made.operands[0], at))
            with writer.otherwise():
                writer.put(self.queries, e, ZERO)

    def _range(self, rows: int) -> tuple[Var, Var]:
        """The first key that any of so many rows sees, and the one after the last."""
        writer = self.writer
        low, high = (Var(I32, writer.name(end)) for end in ("low", "high"))
        writer.declare_all((low, constant(I32, self.C)), (high, constant(I32, 0)))
        with writer.each("r", rows) as r:
            ends = zip((self.lows, self.highs), "ab", strict=True)
            a, b = (writer.let(Read(I32, array, r), name) for array, name in ends)
            with writer.when(less(a, b)):
                writer.assign(low, Apply(I32, "min", low, a))
                writer.assign(high, Apply(I32, "max", b, high))
        return low, high

    def _stretch(self, low: Var, high: Var) -> tuple[Var, Var]:
        """The keys of the part, of those that any row sees."""
        return low, high

    def _stage(self, operand: int, high: Var) -> None:
        """A block of keys or values into shared memory; zeros beyond the last that is seen."""
        writer = self.writer
        run = RUN if self.D % RUN == 0 else 1
        across = self.D // run
        with self.workgroup.distribute(self.block.keys * across, "e") as e:
            jj = self._named(e // across, self.block.keys)
            d = self._named(e % across, across)
            places = [d * run + n for n in range(run)]
            targets = [jj * (self.D + 1) + place for place in places]
            with writer.when(less(self.j + jj, high)):
                position = writer.let_index(self.j + jj, self.C)
                for n, (place, target) in enumerate(zip(places, targets, strict=True)):
                    with writer.vectorized_run(d, run, n):
                        at = (self.row, self.head, position, place)
                        found = self.builder.at(self.made.operands[operand], at)
                        writer.put(self.entries, target, found)
            with writer.otherwise():
                for target in targets:
                    writer.put(self.entries, target, ZERO)

    def _score_all(self) -> None:
        """Every row times every key of the block, masked; several threads along a head if idle."""
        writer, block = self.writer, self.block
        pairs = block.rows * block.keys
        parts = max(1, block.workgroup_size // pairs)
        with self._pairs(pairs, parts) as (pair, part):
            r, jj = self._named(pair // block.keys, block.rows), pair % block.keys
            jj = self._named(jj, block.keys)
            writer.declare(ZERO, DOT.name)
            own = -(-self.D // parts)
            with writer.each("d", own):
                d = axis("d", own) * parts + part
                with writer.when(less(d, self.D) if self.D % parts else None):
                    query = writer.scalar(Cell(F32, self.queries, r * self.D + d))
                    key = writer.scalar(Cell(F32, self.entries, jj * (self.D + 1) + d))
                    writer.add_product(DOT, query, key)
            if parts > 1:
                self.workgroup.sum([DOT], pairs)
            here = writer.let(Coordinate(I32, self.j + jj))
            low, high = (Cell(I32, array, r) for array in (self.lows, self.highs))
            score = self._masked(DOT, here, low, high)
            writer.put(self.scores, r * block.keys + jj, score)

    @contextmanager
    def _pairs(self, pairs: int, parts: int) -> Iterator[tuple[Index, Index]]:
        """A block for each pair of a row and a key; all threads are there if they have parts."""
        if parts > 1:
            with self.writer.scope():
                pair = self._named(self.workgroup.local_id % pairs, pairs)
                yield pair, self._named(self.workgroup.local_id // pairs, parts)
        else:
            with self.workgroup.distribute(pairs, "p") as pair:
                yield pair, number(0)

    def _follow(self, r: Index) -> None:
        """A row's greatest score so far, and what is left of the sums before."""
        writer, keys = self.writer, self.block.keys
        most = writer.let(Read(F32, self.mosts, r))
        writer.declare(most, NOW.name)
        with writer.each("jj", keys) as jj:
            found = writer.scalar(Cell(F32, self.scores, r * keys + jj))
            writer.assign(NOW, writer.scalar(softmax.greater(found, NOW)))
        writer.put(self.keeps, r, softmax.weight(most, softmax.shift(NOW)))
        writer.put(self.mosts, r, NOW)

    def _weigh_all(self) -> None:
        """Scores become weights."""
        writer, block = self.writer, self.block
        with self.workgroup.distribute(block.rows * block.keys, "p") as pair:
            most = writer.scalar(Cell(F32, self.mosts, pair // block.keys))
            score = Cell(F32, self.scores, pair)
            writer.put(self.scores, pair, softmax.weight(score, softmax.shift(most)))

    # --- results ---

    @property
    def _results(self) -> list[tuple[int, Var]]:
        """The thread's results: the number of the first thread's, and the variable."""
        threads = self.block.workgroup_size
        each = -(-self.block.rows * self.D // threads)
        return [(n * threads, Var(F32, f"o{n}")) for n in range(each)]

    @contextmanager
    def _own_result(self, begin: int) -> Iterator[Index]:
        """What is done for a result of the thread, where it has one."""
        count, at = self.block.rows * self.D, self.workgroup.local_id + begin
        broken = begin + self.block.workgroup_size > count
        with self.writer.when(less(at, count) if broken else None):
            yield self.writer.let_index(at, count)

    def _gather(self) -> None:
        """The values, weighed, into the results; and the weights into the rows' sums."""
        writer, keys = self.writer, self.block.keys
        for begin, one in self._results:
            with self._own_result(begin) as at:
                r = self._named(at // self.D, self.block.rows)
                keep = writer.scalar(Cell(F32, self.keeps, r))
                writer.assign(one, writer.apply("mul", F32, one, keep))
                d = self._named(at % self.D, self.D)
                with self._seen_keys(r) as jj:
                    weight = writer.scalar(Cell(F32, self.scores, r * keys + jj))
                    value = writer.scalar(Cell(F32, self.entries, jj * (self.D + 1) + d))
                    writer.add_product(one, weight, value)
        with self.workgroup.distribute(self.block.rows, "r") as r:
            before, keep = (Read(F32, array, r) for array in (self.totals, self.keeps))
            writer.declare(writer.apply("mul", F32, before, keep), TOTAL.name)
            with self._seen_keys(r) as jj:
                weight = writer.scalar(Cell(F32, self.scores, r * keys + jj))
                writer.assign(TOTAL, writer.total([TOTAL, weight]))
            writer.put(self.totals, r, TOTAL)

    @contextmanager
    def _seen_keys(self, r: Index) -> Iterator[Index]:
        """A loop over the keys of the block that a row sees: others' values may be anything."""
        writer, keys = self.writer, self.block.keys
        low, high = (writer.scalar(Cell(I32, array, r)) for array in (self.lows, self.highs))
        after, left = (Coordinate(I32, self._beyond(end)) for end in (low, high))
        later = Apply(BOOL, "gt", low, Coordinate(I32, self.j))
        first = writer.let(Apply(I32, "select", later, after, constant(I32, 0)))
        last = writer.let(Apply(I32, "min", constant(I32, keys), left))
        name = writer.name("jj")
        with writer.each(name, keys, first, last):
            yield axis(name, keys)

    def _store_results(self) -> None:
        """Every result over the sum of its row's weights."""
        for begin, one in self._results:
            with self._own_result(begin) as at, self._inside(at // self.D) as row:
                total = self.writer.scalar(Cell(F32, self.totals, at // self.D))
                batch, head, step = self._at(row)
                where = (batch, self._named(head, self.H), self._named(step, self.T))
                place = self._named(at % self.D, self.D)
                self._store((*where, place), one / softmax.divisor(total))
