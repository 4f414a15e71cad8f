"""The cooperative schedule of the delta rule: a workgroup has a few columns of a head.

Threads side by side have columns side by side; several share a column and have every so manyth of
its elements, which lie in shared memory from the first token to the last. What a chunk's keys and
queries give is brought together once a chunk; then every thread knows the errors of its column.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from ptir.codegen.expressions.expr import Coordinate, Expr, Load, Var, constant
from ptir.codegen.expressions.index import Index, axis, number, unravel_index
from ptir.codegen.families.recurrence.match import CHUNK, Rule
from ptir.codegen.kernel_ir.conditions import all_of, less
from ptir.codegen.schedules.kernel import EmitContext, Fusion, Kernel, finish_kernel
from ptir.codegen.schedules.workgroup import Workgroup, power_of_two
from ptir.types import F32, I32

COLUMNS: Final = 32
"""Columns of a workgroup: 128 bytes of a row."""
SHARED_BY: Final = 4
"""Threads that share a column, at least."""
LEAST: Final = 32
"""Threads of a workgroup, at least: threads of a subgroup exchange values."""


def emit_cooperative(fusion: Fusion, context: EmitContext) -> Kernel | None:
    """A workgroup for some columns of a head; none where those do not fit the shared memory."""
    rule = _Cooperative(fusion, context)
    return rule.kernel() if rule.fits else None


class _Cooperative(Rule):
    """One rule whose columns are shared out among threads."""

    def __init__(self, fusion: Fusion, context: EmitContext) -> None:
        super().__init__(fusion, context)
        self.size = 1 if self.T == 1 else CHUNK
        self.both = 2 * self.size
        self.columns = min(COLUMNS, power_of_two(self.V))
        while self.columns > 1 and not self.fits:
            self.columns //= 2

    @property
    def each(self) -> int:
        """Threads of a column."""
        return max(SHARED_BY, LEAST // self.columns)

    @property
    def threads(self) -> int:
        """Threads of a workgroup."""
        return self.columns * self.each

    @property
    def fits(self) -> bool:
        """Whether the device has as many threads, and memory for what they share."""
        scalars = self.both * self.size + 2 * self.size**2 + 4 * self.size
        words = self.columns * self.K + self.both * (self.K + 1 + self.threads) + scalars + 64
        traits = self.context.traits
        enough = words * F32.itemsize <= traits.shared_memory_bytes
        return enough and self.threads <= traits.max_workgroup_size

    def kernel(self) -> Kernel:
        """All tokens of a workgroup's columns, chunk by chunk."""
        writer, tiles = self.writer, -(-self.V // self.columns)
        self.group = Workgroup(writer, self.threads)
        items = self.B * self.heads * tiles
        row, head, tile = unravel_index(axis("item", items), (self.B, self.heads, tiles))
        self.find_head(row, head)
        local, places = self.group.local_id, tiles * self.columns
        self.own = writer.let_index(local % self.columns, self.columns, "own")
        self.part = writer.let_index(local // self.columns, self.each, "part")
        self.column = writer.let_index(tile * self.columns + self.own, places, "column")
        self.known = self.existing(self.column, self.V)
        self.matrix = writer.shared(F32, self.K * self.columns)
        self.x = writer.shared(F32, self.both * (self.K + 1))
        self.m = writer.shared(F32, self.size * self.both)
        self.near, self.far = (writer.shared(F32, self.size**2) for _ in range(2))
        self.decays, self.rates, self.since, self.remains = (
            writer.shared(F32, self.size) for _ in range(4)
        )
        with self._own_elements() as i:
            found = Load(F32, self.state, self.in_state(i, self.known))
            writer.put(self.matrix, self._held(i), found)
        chunks = -(-self.T // self.size)
        with writer.each("n", chunks, no_unroll=True) as n:
            self.first = n * self.size
            self._bring_together()
            self._weigh()
            self._columns()
            writer.barrier()
        with writer.when(self._inside()), self._own_elements() as i:
            left = self.array(self.matrix, self._held(i))
            writer.store(self.state, F32, self.in_state(i, self.known), left)
        return finish_kernel(self.fusion, writer, items, workgroup_size=self.threads)

    # --- places ---

    @contextmanager
    def _own_elements(self) -> Iterator[Index]:
        """A block for each element of the column that is the thread's own; gives its number."""
        with self.writer.each("i", self.K, Coordinate(I32, self.part), self.K, self.each) as i:
            yield i

    def _inside(self, *conditions: Expr) -> Expr | None:
        """Whether conditions hold, and there is such a column; None where nothing is to be asked.

        Threads of columns that are none do what those of the last one do, and store nothing.
        """
        is_column = [less(self.column, self.V)] if self.column.high >= self.V else []
        return all_of([*conditions, *is_column])

    def _held(self, i: Index) -> Index:
        """Where an element of the thread's column is in shared memory."""
        return i * self.columns + self.own

    def _key(self, t: Index, i: Index) -> Index:
        """Where an element of a key is; those of queries lie behind the keys."""
        return t * (self.K + 1) + i

    # --- what is known of a chunk without the matrix ---

    def _bring_together(self) -> None:
        """Keys, queries and scalars of the chunk, and the products of keys with both."""
        writer, size = self.writer, self.size
        with self.group.distribute(size * self.K) as own:
            t = writer.let_index(own // self.K, size)
            i = writer.let_index(own % self.K, self.K)
            query, key = self.query_and_key(self.first + t, i)
            writer.put(self.x, self._key(t, i), key)
            writer.put(self.x, self._key(t + size, i), query)
        with self.group.distribute(size) as t:
            writer.put(self.decays, t, self.decay(self.first + t))
            writer.put(self.rates, t, self.rate(self.first + t))
        writer.barrier()
        with self.group.distribute(size * self.both) as own:
            one = writer.let_index(own // self.both, size)
            other = writer.let_index(own % self.both, self.both)
            sum = writer.declare(constant(F32, 0.0))
            with writer.each("i", self.K) as i:
                both = (self.array(self.x, self._key(t, i)) for t in (one, other))
                writer.add_product(sum, *both)
            writer.put(self.m, own, sum)
        writer.barrier()

    def _weigh(self) -> None:
        """What is left of each token until another, by which products of keys are multiplied."""
        writer, size = self.writer, self.size
        with self.group.distribute(size**2) as own:
            t = writer.let_index(own // size, size)
            s = writer.let_index(own % size, size)
            after = self._decayed(Coordinate(I32, s + 1), Coordinate(I32, t + 1))
            for name, begin in ((self.near, 0), (self.far, size)):
                product = self.array(self.m, s * self.both + t + begin)
                writer.put(name, own, product * after)
        with self.group.distribute(size) as t:
            behind = Coordinate(I32, t + 1)
            writer.put(self.since, t, self._decayed(constant(I32, 0), behind))
            writer.put(self.remains, t, self._decayed(behind, constant(I32, size)))
        writer.barrier()

    def _decayed(self, first: Expr, end: Expr) -> Var:
        """The product of the decays of tokens."""
        left, name = self.writer.declare(constant(F32, 1.0)), self.writer.name("l")
        with self.writer.each(name, self.size, first, end):
            decay = self.array(self.decays, axis(name, self.size))
            self.writer.assign(left, left * decay)
        return left

    # --- columns ---

    def _columns(self) -> None:
        """The products of the matrix, the errors of the chunk, and what these change."""
        writer = self.writer
        products = [writer.declare(constant(F32, 0.0)) for _ in range(self.both)]
        with self._own_elements() as i:
            held = self.array(self.matrix, self._held(i))
            for row, sum in enumerate(products):
                writer.add_product(sum, held, self.array(self.x, self._key(number(row), i)))
        self.group.sum(products, self.columns)
        errors = self.errors(self.known, products.__getitem__)
        with writer.when(less(self.first, self.real)):
            self._change(errors)

    def gives(self, *conditions: Expr) -> Expr | None:
        """The first of the threads of a column stores."""
        return self._inside(less(self.part, 1), *conditions)

    def _change(self, errors: list[Var]) -> None:
        """Let the thread's elements decay, and add the keys' parts of all errors."""
        changed = self.change(errors)
        with self._own_elements() as i:
            held = self.array(self.matrix, self._held(i))
            sum = changed(held, lambda s: self.array(self.x, self._key(number(s), i)))
            self.writer.put(self.matrix, self._held(i), sum)
