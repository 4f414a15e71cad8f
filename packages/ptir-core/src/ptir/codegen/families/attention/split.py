"""Cooperative attention whose keys are split over workgroups: for few queries and long caches.

Where batch and heads give fewer workgroups than the device has units, several workgroups attend
with the same rows, each to a *part* of the keys: an equal stretch of those that are seen, in whole
blocks. They leave a maximum, a sum and weighed values for each row in scratch memory (Dao 2023,
Flash-Decoding), and a second kernel brings these together, part after part, so that runs repeat bit
for bit. How many parts there are follows from shapes and the device, how long they are from
positions and lengths. Of an entry that the call appends, the workgroup writes it that reads it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from ptir.codegen.expressions.expr import Apply, Coordinate, Expr, Load, Var, as_index, constant
from ptir.codegen.expressions.index import Index, axis, number, ravel_index, unravel_index
from ptir.codegen.families.attention import softmax
from ptir.codegen.families.attention.cooperative import ZERO, CooperativeAttention, block_of
from ptir.codegen.families.attention.serial import NOW, TOTAL, Attention
from ptir.codegen.kernel_ir.conditions import less
from ptir.codegen.kernel_ir.values import Read
from ptir.codegen.schedules.kernel import EmitContext, Fusion, Kernel, finish_kernel, scratch_value
from ptir.ops.schedules import ATTENTION_SPLIT
from ptir.types import BOOL, F32, I32, TensorType

LEAST = 2
"""Parts of the keys where somebody asked for them."""
MOSTS, TOTALS, VALUES = range(3)
"""The scratch memories: ``[part, row]`` of each key head, and ``[part, row, place]``."""


def emit_cooperative(fusion: Fusion, context: EmitContext) -> Kernel | None:
    """A workgroup per block of rows and part; None where no block fits into shared memory."""
    whole = CooperativeAttention(fusion, context)
    block = block_of(whole.rows, whole.D, context)
    if block is None:
        return None
    entries = 1 if whole.updates else -(-whole.rows // block.rows)
    parts = splits_of(context, whole.B * whole.G * entries, whole.C)
    if whole.made.name == ATTENTION_SPLIT:
        parts = max(parts, min(LEAST, whole.C))
    if parts == 1:
        return whole.kernel_of_groups(block)
    split = SplitAttention(fusion, context, parts)
    made = replace(split.kernel_of_groups(block), scratch=split.scratch)
    return replace(made, next=SplitReduction(fusion, context, split).kernel())


def splits_of(context: EmitContext, groups: int, capacity: int) -> int:
    """Parts of the keys of a workgroup: 1 where these keep all units busy or the cache is short."""
    units, tiles = context.traits.compute_units, context.tiles
    if groups >= units:
        return 1
    return max(
        1, min(units * tiles.workgroups_per_unit // groups, capacity // tiles.min_keys_per_split)
    )


class SplitAttention(CooperativeAttention):
    """The kernel of the parts."""

    def __init__(self, fusion: Fusion, context: EmitContext, parts: int) -> None:
        super().__init__(fusion, context)
        self.parts = parts

    @property
    def scratch(self) -> tuple[TensorType, ...]:
        """What the parts leave."""
        rows = self.B * self.G * self.parts * self.rows
        return tuple(TensorType(F32, (size,)) for size in (rows, rows, rows * self.D))

    def partial_result(self, what: int, heads: Index, part: Index, row: Index) -> tuple[int, Index]:
        """A scratch memory, and where the row's element or the first of its places is."""
        sizes = self.B * self.G, self.parts, self.rows
        at = ravel_index((heads, part, row), sizes)
        return scratch_value(self.fusion, what), at * self.D if what == VALUES else at

    def _before_keys(self, head: Index) -> tuple[Expr, Expr]:
        """Nothing: a sink joins where parts are brought together."""
        return softmax.NOTHING, ZERO

    def _bound(self, one: Expr) -> Index:
        """A position, an end or a number of keys."""
        return as_index(one, 0, self.C)

    def _length(self, low: Expr, high: Expr) -> Var:
        """The keys of a part, of those from ``low`` to ``high``: at least a block."""
        writer, keys = self.writer, self.block.keys
        seen = Coordinate(I32, self._bound(high) - self._bound(low))
        some = Apply(BOOL, "gt", high, low)
        span = writer.let(Apply(I32, "select", some, seen, constant(I32, 1)))
        whole = self.parts * keys
        return writer.let(Coordinate(I32, (self._bound(span) + (whole - 1)) // whole * keys))

    def _stretch(self, low: Var, high: Var) -> tuple[Var, Var]:
        """Equal stretches from the first key on; the last ones may have none."""
        writer, length = self.writer, self._length(low, high)
        before = Coordinate(I32, self.part) * length
        first = writer.let(low + before)
        end = Coordinate(I32, self._bound(first) + self._bound(length))
        return first, writer.let(Apply(I32, "min", high, end))

    @contextmanager
    def _mine(self, place: Index) -> Iterator[None]:
        """The part in whose stretch the place is; the first or last one, where that is none."""
        writer = self.writer
        at = writer.let(Coordinate(I32, writer.index(place)))
        low, high = (writer.scalar(bound) for bound in self._seen(self.row, number(0)))
        length = self._length(low, high)
        after = Coordinate(I32, self._bound(at) - self._bound(low))
        last = constant(I32, self.parts - 1)
        part = Apply(I32, "min", last, after / length)
        owner = writer.let(Apply(I32, "select", less(at, low), constant(I32, 0), part))
        with writer.when(Apply(BOOL, "eq", owner, Coordinate(I32, self.part))):
            yield

    def _store_results(self) -> None:
        """What the part came to, for each row."""
        writer, heads = self.writer, self.row * self.G + self.head
        for begin, one in self._results:
            with self._own_result(begin) as at, self._inside(at // self.D) as row:
                value, first = self.partial_result(VALUES, heads, self.part, row)
                place = self._named(at % self.D, self.D)
                writer.store(value, F32, first + place, one)
        with self.workgroup.distribute(self.block.rows, "r") as r, self._inside(r) as row:
            for what, array in ((MOSTS, self.mosts), (TOTALS, self.totals)):
                value, at = self.partial_result(what, heads, self.part, row)
                writer.store(value, F32, at, Read(F32, array, r))


class SplitReduction(Attention):
    """The kernel that brings parts together: a thread per result."""

    def __init__(self, fusion: Fusion, context: EmitContext, split: SplitAttention) -> None:
        super().__init__(fusion, context)
        self.split = split

    def kernel(self) -> Kernel:
        """Results in the order of the parts' rows and places."""
        writer, split = self.writer, self.split
        sizes = self.B, self.G, split.rows, self.D
        count = math.prod(sizes)
        threads = self.context.tiles.attention_workgroup_size
        workgroups = -(-count // threads)
        at = axis("item", workgroups) * threads + axis("member", threads)
        with writer.when(less(at, count) if count % threads else None):
            found = unravel_index(writer.let_index(at, count), sizes)
            row, head, r, place = map(writer.let_index, found, sizes)
            step, within = r // split.share, r % split.share
            query_head = head * split.share + within
            self._combine(row * self.G + head, query_head, r, place)
            where = row, query_head, step, place
            self._store(where, RESULT / softmax.divisor(TOTAL))
        return finish_kernel(self.fusion, writer, workgroups, workgroup_size=threads)

    def _combine(self, heads: Index, query_head: Index, r: Index, place: Index) -> None:
        """The greatest maximum, then sums and values scaled to it and added part after part."""
        writer, parts = self.writer, self.split.parts
        part = axis("part", parts)

        def left(what: int, further: Index) -> Expr:
            value, at = self.split.partial_result(what, heads, part, r)
            return Load(F32, value, at + further)

        one = number(0)
        most, _ = self._before_keys(query_head)
        writer.declare(most, NOW.name)
        with writer.each("part", parts):
            writer.assign(NOW, writer.scalar(softmax.greater(left(MOSTS, one), NOW)))
        writer.declare(ZERO, TOTAL.name, RESULT.name)
        if self.sinks is not None:
            writer.assign(TOTAL, writer.scalar(softmax.weight(most, softmax.shift(NOW))))
        with writer.each("part", parts):
            weight = softmax.weight(left(MOSTS, one), softmax.shift(NOW))
            added = weight * left(TOTALS, one)
            writer.assign(TOTAL, writer.scalar(TOTAL + added))
            factors = [writer.scalar(x) for x in (weight, left(VALUES, place))]
            writer.add_product(RESULT, *factors)


RESULT = Var(F32, "result")
