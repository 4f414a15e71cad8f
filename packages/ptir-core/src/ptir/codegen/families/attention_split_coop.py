"""Coop attention whose keys are split over groups: for few queries and long caches.

Where batch and heads give fewer groups than the device has units, several groups attend with the
same rows, each to a *part* of the keys: an equal stretch of those that are seen, in whole blocks.
They leave a maximum, a sum and weighed values for each row in scratch memory (Dao 2023,
Flash-Decoding), and a second kernel brings these together, part after part, so that runs repeat bit
for bit. How many parts there are follows from shapes and the device, how long they are from
positions and lengths. Of an entry that the call appends, the group writes it that reads it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from ptir.codegen.expr import Apply, Expr, Load, Var, compare, select
from ptir.codegen.families.attention import Attention, shift
from ptir.codegen.families.attention_coop import NOW, TeamAttention, block_of, divisor
from ptir.codegen.index import Axis, Index, axis, digits, flatten, number
from ptir.codegen.kernel import Group, Kernel, Site, finished, scratch_value
from ptir.types import F32, I32, TensorType

MOSTS, TOTALS, VALUES = range(3)
"""The scratch memories: ``[part, row]`` of each key head, and ``[part, row, place]``."""


def coop(group: Group, site: Site) -> Kernel | None:
    """A group per block of rows and part; None where no block fits into shared memory."""
    whole = TeamAttention(group, site)
    block = block_of(whole.rows, whole.D, site)
    if block is None:
        return None
    entries = 1 if whole.updates else -(-whole.rows // block.rows)
    parts = parts_of(site, whole.B * whole.G * entries, whole.C)
    if parts == 1:
        return whole.kernel_of_groups(block)
    split = SplitAttention(group, site, parts)
    made = replace(split.kernel_of_groups(block), scratch=split.scratch)
    return replace(made, then=Combination(group, site, split).kernel())


def parts_of(site: Site, groups: int, capacity: int) -> int:
    """Parts of the keys of each group: 1 where groups keep all units busy or the cache is short."""
    units, tiles = site.traits.units, site.tiles
    if groups >= units:
        return 1
    return max(1, min(units * tiles.spread // groups, capacity // tiles.stretch))


class SplitAttention(TeamAttention):
    """The kernel of the parts."""

    def __init__(self, group: Group, site: Site, parts: int) -> None:
        super().__init__(group, site)
        self.parts = parts

    @property
    def scratch(self) -> tuple[TensorType, ...]:
        """What the parts leave."""
        rows = self.B * self.G * self.parts * self.rows
        return tuple(TensorType(F32, (size,)) for size in (rows, rows, rows * self.D))

    def left(self, what: int, heads: Index, part: Index, row: Index) -> tuple[int, Index]:
        """A scratch memory, and where the row's element or the first of its places is."""
        sizes = self.B * self.G, self.parts, self.rows
        at = flatten((heads, part, row), sizes)
        return scratch_value(self.group, what), at * self.D if what == VALUES else at

    def _length(self, low: str, high: str) -> str:
        """The keys of a part, of those from ``low`` to ``high``: at least a block."""
        keys = self.block.keys
        span = self.writer.let_text(I32, False, f"{high} > {low} ? {high} - {low} : 1")
        whole = self.parts * keys
        return self.writer.let_text(I32, False, f"({span} + {whole - 1}) / {whole} * {keys}")

    def _stretch(self, low: str, high: str) -> tuple[str, str]:
        """Equal stretches from the first key on; the last ones may have none."""
        writer, length = self.writer, self._length(low, high)
        first = writer.let_text(I32, False, f"{low} + {writer.index_text(self.part)} * {length}")
        return first, writer.let_text(I32, False, f"min({high}, {first} + {length})")

    @contextmanager
    def _mine(self, place: Index) -> Iterator[None]:
        """The part in whose stretch the place is; the first or last one, where that is none."""
        writer = self.writer
        at = writer.let_text(I32, False, writer.index_text(place))
        low, high = (writer.scalar_text(bound) for bound in self._seen(self.row, number(0)))
        length = self._length(low, high)
        owner = f"{at} < {low} ? 0 : min({self.parts - 1}, ({at} - {low}) / {length})"
        with writer.block(
            f"if ({writer.let_text(I32, False, owner)} == {writer.index_text(self.part)})"
        ):
            yield

    def _store_results(self) -> None:
        """What the part came to, for each row."""
        writer, heads = self.writer, self.row * self.G + self.head
        for begin, name in self._results:
            with self._own_result(begin) as at, self._inside(at // self.D) as row:
                value, first = self.left(VALUES, heads, self.part, row)
                place = self._named(at % self.D, self.D)
                writer.store(value, F32, first + place, Var(F32, name))
        with self.team.own(self.block.rows, "r") as r, self._inside(r) as row:
            for what, array in ((MOSTS, self.mosts), (TOTALS, self.totals)):
                value, at = self.left(what, heads, self.part, row)
                writer.store(value, F32, at, Var(F32, f"{array}[{writer.index_text(r)}]"))


class Combination(Attention):
    """The kernel that brings parts together: a member per result."""

    def __init__(self, group: Group, site: Site, split: SplitAttention) -> None:
        super().__init__(group, site)
        self.split = split

    def kernel(self) -> Kernel:
        """Results in the order of the parts' rows and places."""
        writer, split = self.writer, self.split
        sizes = self.B, self.G, split.rows, self.D
        count = math.prod(sizes)
        members = self.site.tiles.block_members
        items = -(-count // members)
        at = axis("item", items) * members + axis("member", members)
        with writer.block(f"if ({writer.index_text(at)} < {count})" if count % members else ""):
            result = axis(writer.let_text(I32, False, writer.index_text(at)), count)
            found = digits(result, sizes)
            names = [writer.let_text(I32, False, writer.index_text(one)) for one in found]
            row, head, r, place = map(axis, names, sizes)
            step, within = r // split.share, r % split.share
            self._combine(row * self.G + head, r, place)
            where = row, head * split.share + within, step, place
            self._store(where, Apply(F32, "div", RESULT, divisor(TOTAL)))
        return finished(self.group, writer, items, members=members)

    def _combine(self, heads: Index, r: Index, place: Index) -> None:
        """The greatest maximum, then sums and values scaled to it and added part after part."""
        writer, dialect, parts = self.writer, self.writer.dialect, self.split.parts
        part = axis("part", parts)

        def left(what: int, further: Index) -> Expr:
            value, at = self.split.left(what, heads, part, r)
            return Load(F32, value, at + further)

        zero, one = dialect.literal(F32, 0.0), number(0)
        writer.line(f"float {NOW.name} = {dialect.literal(F32, -math.inf)};")
        with writer.loop(Axis("part", parts), "0", str(parts)):
            most = left(MOSTS, one)
            greater = select(compare("gt", most, NOW), most, NOW)
            writer.line(f"{NOW.name} = {writer.scalar_text(greater)};")
        writer.line(f"float {TOTAL.name} = {zero}, {RESULT.name} = {zero};")
        with writer.loop(Axis("part", parts), "0", str(parts)):
            weight = Apply(F32, "exp", Apply(F32, "sub", left(MOSTS, one), shift(NOW)))
            added = Apply(F32, "mul", weight, left(TOTALS, one))
            writer.line(f"{TOTAL.name} = {writer.scalar_text(Apply(F32, 'add', TOTAL, added))};")
            factors = [writer.scalar_text(x) for x in (weight, left(VALUES, place))]
            fused = dialect.apply("fma", F32, F32, 1, [*factors, RESULT.name])
            writer.line(f"{RESULT.name} = {fused};")


TOTAL, RESULT = Var(F32, "total"), Var(F32, "result")
