"""The serial schedules of the delta rule: a token, or a prompt chunk by chunk.

Of a single token a workgroup goes through a head's matrix row by row, as it lies in memory, and
then once more, while it is in the cache, to change it. Of several, the columns of 16 lanes lie
beside each other in scratch memory meanwhile, and products with all keys and queries of a chunk are
as many sums in registers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ptir.codegen.expressions.expr import Apply, Expr, Load, Var, constant, select
from ptir.codegen.expressions.index import Axis, Index, axis, number, unravel_index
from ptir.codegen.families.recurrence.match import CHUNK, Rule
from ptir.codegen.kernel_ir.conditions import less
from ptir.codegen.schedules.kernel import EmitContext, Fusion, Kernel, finish_kernel, scratch_value
from ptir.types import F32, TensorType

ROWS: Final = 4
"""Rows of a matrix that go into its products at once."""
FINER: Final = 2
"""Pieces for each unit, at least, where heads can be cut along their columns."""
BOTH: Final = 2 * CHUNK
"""Keys of a chunk, then queries: what all products with the matrix are of."""


def emit(fusion: Fusion, context: EmitContext) -> Kernel:
    """The schedule for the number of tokens."""
    rule = Rule(fusion, context)
    return (_Token if rule.T == 1 else _Chunks)(fusion, context).kernel()


class _Serial(Rule):
    """What both have in common: runs of columns of a head, vector by vector."""

    def __init__(self, fusion: Fusion, context: EmitContext) -> None:
        super().__init__(fusion, context)
        self.vectors, self.left = divmod(self.V, self.lanes)
        self.lane = Axis("lane", self.lanes)

    def head_kernel(self, splits: int, body: Callable[[Index], None], scratch: int = 0) -> Kernel:
        """A loop over heads, each in so many parts, whose number ``body`` is given."""
        sizes = self.B, self.heads, splits
        pieces = self.B * self.heads * splits
        workgroups = self.context.workgroups(pieces, self.work)
        self.item = Index({Axis("item", workgroups): 1})
        with self.writer.each("e", pieces, *self.writer.work_range(pieces, workgroups)) as e:
            row, head, part = unravel_index(e, sizes)
            self.find_head(row, head)
            body(part)
        memory = (TensorType(F32, (workgroups * scratch,)),) if scratch else ()
        return finish_kernel(self.fusion, self.writer, workgroups, memory)

    def each_column(self, body: Callable[[Index], None]) -> None:
        """Call ``body`` with every column: vectors of neighbours, then single ones."""
        self.writer.each_element(self.V, body)


class _Token(_Serial):
    """A single token: the matrix is read from memory once, row by row."""

    def kernel(self) -> Kernel:
        """A loop over heads."""
        for name, size in (("q", self.K), ("k", self.K), ("ks", self.V), ("qs", self.V)):
            self.writer.array(name, size, F32)
        return self.head_kernel(1, lambda _: self._step())

    def _step(self) -> None:
        writer, first = self.writer, number(0)
        decay = writer.let(writer.scalar(self.decay(first)), "decay")
        rate = writer.let(writer.scalar(self.rate(first)), "rate")
        both = writer.declare(constant(F32, 0.0), "both")
        with writer.each("i", self.K) as i:
            query, key = map(writer.scalar, self.query_and_key(first, i))
            writer.put("q", i, query)
            writer.put("k", i, key)
            writer.add_product(both, query, key)
        self.each_column(self._clear)
        whole, left = divmod(self.K, ROWS)
        with writer.each("r", whole) as r:
            self._products(r * ROWS, ROWS)
        if left:
            with writer.scope():
                self._products(number(whole * ROWS), left)
        self.each_column(lambda column: self._see(column, decay, rate, both))
        with writer.when(less(first, self.real)), writer.each("i", self.K):
            self._change(axis("i", self.K), decay)

    def _clear(self, column: Index) -> None:
        for name in ("ks", "qs"):
            self.writer.put(name, column, constant(F32, 0.0))

    def _products(self, first: Index, rows: int) -> None:
        """Add what so many rows of the matrix give with key and query."""
        places = [first + n for n in range(rows)]
        factors = [(self.array("k", i), self.array("q", i)) for i in places]

        def body(column: Index) -> None:
            writer = self.writer
            at = self._without_lane(column)
            sums = [writer.declare(self.array(name, at, self._is_wide)) for name in ("ks", "qs")]
            for i, both in zip(places, factors, strict=True):
                held = writer.value(Load(F32, self.state, self.in_state(i, column)))
                for sum, factor in zip(sums, both, strict=True):
                    writer.add_product(sum, held, factor)
            for name, sum in zip(("ks", "qs"), sums, strict=True):
                writer.put(name, column, sum)

        self.each_column(body)

    @property
    def _is_wide(self) -> bool:
        return self.writer.lane is not None

    def _without_lane(self, column: Index) -> Index:
        """The first of the columns at hand."""
        return column - axis("lane", self.lanes) if self._is_wide else column

    def _see(self, column: Index, decay: Expr, rate: Expr, both: Expr) -> None:
        """The error of a column, put where its product with the key was, and what is seen."""
        writer, at = self.writer, self._without_lane(column)
        key, query = (self.array(name, at, self._is_wide) for name in ("ks", "qs"))
        error = writer.declare(self.widened(constant(F32, 0.0)))
        with writer.when(less(number(0), self.real)):
            off = self.value(number(0), column) - key * decay
            writer.assign(error, self.valued(off * rate))
        writer.put("ks", column, error)
        seen = query * decay + error * both
        self.give(number(0), column, seen)

    def _change(self, i: Index, decay: Expr) -> None:
        """Let a row of the matrix decay, and add the key's part of every error."""
        key = self.array("k", i)

        def body(column: Index) -> None:
            writer, place = self.writer, self.in_state(i, column)
            error = self.array("ks", self._without_lane(column), self._is_wide)
            kept = Load(F32, self.state, place) * decay
            writer.store(self.state, F32, place, Apply(F32, "fma", error, key, kept))

        self.each_column(body)


class _Chunks(_Serial):
    """Several tokens: ``CHUNK`` of them at a time."""

    def __init__(self, fusion: Fusion, context: EmitContext) -> None:
        super().__init__(fusion, context)
        self.splits = self._parts()
        self.own_vectors = self.vectors // self.splits
        self.columns = self.own_vectors * self.lanes + self.left
        self.chunks = -(-self.T // CHUNK)

    def _parts(self) -> int:
        """Parts of a head's columns, each of which brings keys and queries together again."""
        wanted = self.context.traits.compute_units * FINER
        parts = 1
        while self.B * self.heads * parts < wanted and not self.left:
            if self.vectors % (parts * 2):
                break
            parts *= 2
        return parts

    def kernel(self) -> Kernel:
        """A loop over parts of heads."""
        sizes = {"x": self.K * BOTH, "m": CHUNK * BOTH, "near": CHUNK * CHUNK, "far": CHUNK * CHUNK}
        sizes |= dict.fromkeys(("decay", "since", "rate", "left"), CHUNK)
        for name, size in sizes.items():
            self.writer.array(name, size, F32)
        self.writer.array("p", BOTH * self.lanes, F32)
        return self.head_kernel(self.splits, self._head, self.K * self.columns)

    def _head(self, part: Index) -> None:
        """All tokens of a part of a head, between fetching the matrix and bringing it back."""
        self.part = part
        self._moved(fetch=True)
        with self.writer.each("c", self.chunks, no_unroll=True) as c:
            self.first = c * CHUNK
            self._bring_together()
            self._weigh()
            self._own_columns(self._column)
        self._moved(fetch=False)

    # --- the matrix ---

    def _own_columns(self, body: Callable[[Index, Index], None]) -> None:
        """Call ``body`` with the columns of the part, and where the first element of each is."""
        writer, own = self.writer, self.own_vectors
        base = self.item * (self.K * self.columns)
        if own:
            with writer.each("v", own) as vector, writer.lanes(self.lane):
                lane = axis("lane", self.lanes)
                place = base + vector * (self.K * self.lanes) + lane
                body((self.part * own + vector) * self.lanes + lane, place)
        for n in range(self.left):
            with writer.scope():
                place = base + (own * self.lanes + n) * self.K
                body(number(self.vectors * self.lanes + n), place)

    @property
    def _stride(self) -> int:
        """From an element of a column in scratch memory to the next."""
        return 1 if self.writer.lane is None and self.lanes > 1 else self.lanes

    def _held(self, place: Index, i: Index) -> Index:
        return place + i * self._stride

    def _moved(self, *, fetch: bool) -> None:
        """Bring the part's columns into scratch memory, or back."""
        writer, scratch = self.writer, scratch_value(self.fusion, 0)

        def body(column: Index, place: Index) -> None:
            with writer.each("i", self.K) as i:
                ends = (self.state, self.in_state(i, column)), (scratch, self._held(place, i))
                (source, here), (target, there) = ends if fetch else ends[::-1]
                writer.store(target, F32, there, Load(F32, source, here))

        self._own_columns(body)

    # --- what is known of a chunk without the matrix ---

    def _bring_together(self) -> None:
        """Keys and queries side by side, element by element, and the tokens' own scalars."""
        writer, t, i = self.writer, axis("t", CHUNK), axis("i", self.K)
        with writer.each("t", CHUNK):
            place = self.first + t
            real = less(place, self.real)
            writer.put("decay", t, self.decay(place))
            writer.put("rate", t, select(real, self.rate(place), constant(F32, 0.0)))
            with writer.each("i", self.K):
                query, key = self.query_and_key(place, i)
                writer.put("x", i * BOTH + t, key)
                writer.put("x", i * BOTH + t + CHUNK, query)
        with writer.lanes(self.lane):
            for vector in range(0, BOTH, self.lanes):
                for strip in self._strips(CHUNK):
                    self._products_of_keys(strip, vector)

    def _strips(self, count: int) -> list[range]:
        """So many sums in as few passes as there are registers for, about as many in each."""
        most = self.context.tiles.gemm_rows * self.context.tiles.gemm_panels
        passes = -(-count // most)
        return [range(count * n // passes, count * (n + 1) // passes) for n in range(passes)]

    def _products_of_keys(self, keys: range, vector: int) -> None:
        """The products of some keys with a vector of keys and queries, into ``m``."""
        writer, i, lane = self.writer, axis("i", self.K), axis("lane", self.lanes)
        with writer.scope():
            sums = [writer.declare(self.widened(constant(F32, 0.0))) for _ in keys]
            with writer.each("i", self.K):
                several = self.array("x", i * BOTH + vector, wide=True)
                for key, sum in zip(keys, sums, strict=True):
                    writer.add_product(sum, several, self.array("x", i * BOTH + key))
            for key, sum in zip(keys, sums, strict=True):
                writer.put("m", number(key * BOTH + vector) + lane, sum)

    def _weigh(self) -> None:
        """What is left of each token until another: by it products of keys are multiplied."""
        writer, s, t = self.writer, axis("s", CHUNK), axis("t", CHUNK)
        with writer.each("s", CHUNK):
            after = writer.declare(constant(F32, 1.0), "after")
            writer.put("far", s * (CHUNK + 1), self.array("m", s * (BOTH + 1) + CHUNK))
            with writer.each("t", CHUNK, s + 1, CHUNK):
                writer.assign(after, after * self.array("decay", t))
                for name, begin in (("near", 0), ("far", CHUNK)):
                    product = self.array("m", s * BOTH + t + begin)
                    writer.put(name, t * CHUNK + s, product * after)
            writer.put("left", s, after)
        since = writer.declare(constant(F32, 1.0), "all")
        with writer.each("t", CHUNK):
            writer.assign(since, since * self.array("decay", t))
            writer.put("since", t, since)

    # --- a column of the matrix, or one per lane ---

    def _column(self, column: Index, place: Index) -> None:
        """The products of the matrix, the errors of the chunk, and what these change."""
        for strip in self._strips(BOTH):
            self._products(strip, place)
        errors = self.errors(column, self._product)
        with self.writer.when(less(self.first, self.real)):
            self._change(place, errors)

    def _products(self, rows: range, place: Index) -> None:
        """The products with some keys and queries, into ``p``."""
        writer, i = self.writer, axis("i", self.K)
        with writer.scope():
            sums = [writer.declare(self.widened(constant(F32, 0.0))) for _ in rows]
            with writer.each("i", self.K):
                held = writer.value(Load(F32, self._scratch, self._held(place, i)))
                for row, sum in zip(rows, sums, strict=True):
                    writer.add_product(sum, held, self.array("x", i * BOTH + row))
            for row, sum in zip(rows, sums, strict=True):
                writer.put("p", self._kept(row), sum)

    @property
    def _scratch(self) -> int:
        return scratch_value(self.fusion, 0)

    def _product(self, row: int) -> Expr:
        """The product with a key or a query."""
        return self.array("p", number(row * self.lanes), self.writer.lane is not None)

    def _kept(self, row: int) -> Index:
        """Where the product with a key or a query is."""
        lane = number(0) if self.writer.lane is None else axis("lane", self.lanes)
        return number(row * self.lanes) + lane

    def _change(self, place: Index, errors: list[Var]) -> None:
        """Let the matrix decay, and add the keys' parts of all errors."""
        writer, changed = self.writer, self.change(errors)
        with writer.each("i", self.K) as i:
            held = writer.value(Load(F32, self._scratch, self._held(place, i)))
            sum = changed(held, lambda s: self.array("x", i * BOTH + s))
            writer.store(self._scratch, F32, self._held(place, i), sum)
