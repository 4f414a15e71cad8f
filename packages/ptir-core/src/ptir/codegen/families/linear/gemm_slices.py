"""Many rows times weights of few bits by dot products of bytes, as exact as by f32.

A piece of work is a block of rows times a run of panels. The slices of its activations
(``int8_slices``) go into scratch memory once; then tiles of rows and panels pass, group by group.
The sums of the three slices make one whole number of 32 bits, so that a group costs one conversion.
The lowest bits that do not fit are left out: at most 2^-31 of the largest sum that the group could
have (its largest activation times the largest weight, as often as it has activations).

Weights that take more than a mask to become bytes become such once for the rows of a block, in
scratch memory.

Three instructions multiply as much as four of f32 do. Small tiles are best: what a group costs at
its end runs beside the products of the next, where registers are left for both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Final

from ptir.codegen.expressions.expr import Apply, Const, Coordinate, Expr, Load, Var, constant
from ptir.codegen.expressions.index import Axis, Index, axis, number
from ptir.codegen.families.linear.gemm import Gemm
from ptir.codegen.families.linear.int8_slices import SLICES, slices_of
from ptir.codegen.families.linear.int8_slices import fits as slices_fit
from ptir.codegen.families.linear.parts import Linear
from ptir.codegen.families.linear.serial import Grouped, Outputs, RowGroup, Sums
from ptir.codegen.fusion.renumber import Value
from ptir.codegen.schedules.kernel import EmitContext, Kernel, finish_kernel, scratch_value
from ptir.codegen.weights.panels import LANES
from ptir.codegen.weights.quantized import GroupFloat, Quantized, is_product
from ptir.types import BOOL, F32, I8, I32, U32, TensorType

HELD: Final = 1 << 19
"""Bytes of slices that a block of rows may have: they stay in a core's cache beside the weights."""
FEWEST: Final = 16
"""Rows of a block, so that weights are not read for a handful of them."""
SLICED: Final = 20
"""What the slices of an activation cost, as multiples of what a weight costs to become a byte."""
UNROLLED: Final = 8
"""Words of bytes that are written out one after the other."""
SUMMED: Final = tuple(reversed(range(SLICES)))
"""The slices in the order in which they are multiplied."""
STARTS: Final = 2
"""What a group's sums start at: those of the highest slices, those of the lowest."""


def fits(linear: Linear, context: EmitContext) -> bool:
    """Whether the schedule is for this contraction and device."""
    quantized = linear.quantized
    if linear.is_gemv or quantized is None or not slices_fit(linear, context):
        return False
    return dropped(quantized) <= 8


def dropped(quantized: Quantized) -> int:
    """The lowest bits of a group's sum that do not fit 32 bits beside the highest."""
    last, zero = quantized.largest, quantized.zero or 0.0
    largest = max(abs(zero), abs(last + zero))
    return max(0, math.ceil(math.log2(max(1.0, largest) * quantized.group)) - 8)


class SlicedGemm(Grouped, Gemm):
    """The gemm with products in whole numbers."""

    dot = "dot_bytes"
    _block_rows: int
    """Rows whose slices a workgroup holds."""

    @property
    def _high(self) -> int:
        return self.tiles.slice_rows

    @property
    def _wide(self) -> int:
        return self.tiles.slice_panels

    def kernel(self) -> Kernel:
        """A workgroup per run of pieces: blocks of rows, and within them runs of panels."""
        writer, rows = self.writer, self.linear.rows
        all_tiles = -(-rows // self._high)
        columns = -(-self.panels.count // self._wide)
        wanted = self.workgroups(all_tiles * columns)
        tiles = self._tiles_of_a_block(all_tiles, wanted)
        blocks = -(-all_tiles // tiles)
        runs = min(columns, -(-wanted // blocks))
        pieces = blocks * runs
        workgroups = self.workgroups(pieces)
        self.item = Index({Axis("item", workgroups): 1})
        with writer.each("piece", pieces, *writer.work_range(pieces, workgroups)) as piece:
            block = writer.let_index(piece // runs, blocks)
            run = writer.let_index(piece % runs, runs)
            self._piece(block, tiles, run, columns)
        return finish_kernel(
            self.fusion, writer, workgroups, self._scratch_of(workgroups, tiles * self._high)
        )

    def _tiles_of_a_block(self, all_tiles: int, wanted: int) -> int:
        """Tiles of rows whose slices a workgroup holds at once."""
        most = HELD // (self._high * SLICES * self.linear.inputs)
        fewest = FEWEST // self._high
        blocks = self._cheapest(wanted) if self._is_prepared else wanted
        tiles = min(max(most, fewest), max(-(-all_tiles // blocks), fewest))
        blocks = -(-all_tiles // tiles)
        if blocks > wanted:  # as many for every workgroup
            tiles = -(-all_tiles // (-(-blocks // wanted) * wanted))
        return min(tiles, all_tiles)

    def _cheapest(self, wanted: int) -> int:
        """How many blocks: for each, weights become bytes anew; for each run, slices are made."""

        def cost(blocks: int) -> int:
            runs = -(-wanted // blocks)
            return SLICED * self.linear.rows * runs + self.panels.outputs * blocks

        return min(range(1, wanted + 1), key=cost)

    def _scratch_of(self, workgroups: int, rows: int) -> tuple[TensorType, ...]:
        """Slices, units, and what the sums of a group start with (or its sum, for its bias)."""
        groups = workgroups * rows * self.groups
        words = TensorType(U32, (groups * self._words * SLICES,))
        starts = groups if self.quantized.zero is None else groups * STARTS
        of = F32 if self.quantized.zero is None else I32
        found = words, TensorType(F32, (groups,)), TensorType(of, (starts,))
        lines = workgroups * self._wide * LANES
        weights = [TensorType(U32, (lines * (self.linear.inputs // 4),))] * self._is_prepared
        count = len(self._floats) if self._is_scaled else 0
        return (*found, *weights, *[TensorType(F32, (lines * self.groups,))] * count)

    @cached_property
    def _is_prepared(self) -> bool:
        """Whether weights become bytes before the rows of a block pass."""
        quantized = self.quantized
        return quantized.is_spread or (self._is_scaled and quantized.parts > 1)

    @cached_property
    def _is_scaled(self) -> bool:
        """Whether scales and biases become floats before: they are products themselves."""
        return any(is_product(float_of, self.builder) for float_of in self._floats)

    @property
    def _floats(self) -> tuple[GroupFloat, ...]:
        """What a group of weights has beside its words: its scale, and a bias of its own."""
        quantized = self.quantized
        if quantized.zero is None:
            return quantized.scaled, quantized.offset
        return (quantized.scaled,)

    def _float(self, n: int) -> Value:
        """The scratch memory of scales, that of biases."""
        return scratch_value(self.fusion, 3 + self._is_prepared + n)

    @property
    def _words(self) -> int:
        """Words of a slice of a group."""
        return self.quantized.group // 4

    # --- a block of rows ---

    def _piece(self, block: Index, tiles: int, run: Index, columns: int) -> None:
        """The rows of a block times the panels of a run."""
        writer, rows, tall = self.writer, self.linear.rows, self._high
        held, runs = tiles * tall, run.high + 1
        row, self._block_rows = block * held, held
        with writer.each("s", held, 0, _at_most(held, number(rows) - row)) as s:
            at = writer.let_index(row + s, rows)
            with writer.each("h", self.groups) as h:
                self._slices(at, s, h)
        first, end = ((run + n) * columns // runs for n in range(2))
        self.each_group(columns, first, end, lambda *panels: self._column(block, tiles, *panels))

    def _column(self, block: Index, tiles: int, panel: Index, panels: int) -> None:
        """The rows of a block times the panels of a tile."""
        writer, rows, tall = self.writer, self.linear.rows, self._high
        whole, left = divmod(rows, tall)
        if self._is_prepared:
            self._unpack(panel, panels)
        if self._is_scaled:
            self._scale(panel, panels)
        first = block * tiles
        if whole:
            with writer.each("t", tiles, 0, _at_most(tiles, number(whole) - first)) as t:
                place = (first + t) * tall
                row = writer.let_index(place, whole * tall - tall + 1)
                self._tile(Outputs(row, tall, panel, panels, t * tall))
        if left:
            last = whole // tiles
            is_last = Apply(BOOL, "eq", Coordinate(I32, block), Const(I32, last))
            with writer.when(is_last if block.high else None):
                slot = number((whole - last * tiles) * tall)
                self._tile(Outputs(number(whole * tall), left, panel, panels, slot))

    def _unpack(self, panel: Index, panels: int) -> None:
        """The weights of a tile's panels as words of bytes into scratch memory."""
        writer, quantized, words = self.writer, self.quantized, scratch_value(self.fusion, 3)
        chunks = quantized.layout.chunks if self.grid is None else self.grid.together
        periods = quantized.inputs // (chunks * quantized.per)
        for p in range(panels):
            output = (panel + p) * LANES + axis("lane", LANES)
            with writer.each("c", periods) as c, writer.lanes(Axis("lane", LANES)):
                for n in range(chunks):
                    number_ = c * chunks + n
                    found = quantized.bytes_of(quantized.chunk(output, number_, self.builder))
                    for part, word in enumerate(found):
                        at = self._unpacked(p, number_ * quantized.parts + part)
                        writer.store(words, U32, at, word)

    def _scale(self, panel: Index, panels: int) -> None:
        """The scales and biases of a tile's panels as floats into scratch memory."""
        writer, group = self.writer, axis("h", self.groups)
        for p in range(panels):
            output = (panel + p) * LANES + axis("lane", LANES)
            with writer.each("h", self.groups), writer.lanes(Axis("lane", LANES)):
                for n, float_of in enumerate(self._floats):
                    found = float_of(self.builder, output, group)
                    writer.store(self._float(n), F32, self._placed(p, group, self.groups), found)

    def _unpacked(self, panel: int, place: Index) -> Index:
        """Where a word of bytes of a tile's panel is in scratch memory."""
        return self._placed(panel, place, self.linear.inputs // 4)

    def _placed(self, panel: int, place: Index, depth: int) -> Index:
        """Where a vector of a tile's panel is in scratch memory, which has ``depth`` of each."""
        return ((self.item * self._wide + panel) * depth + place) * LANES + axis("lane", LANES)

    def _slices(self, row: Index, slot: Index, group: Index) -> None:
        """Slices, unit and start of one group of activations into scratch memory."""
        writer, quantized, size = self.writer, self.quantized, self.quantized.group
        words, units, starts = (scratch_value(self.fusion, n) for n in range(3))
        at, drop = slot * self.groups + group, dropped(quantized)

        def x(place: Index) -> Expr:
            return self.activation(row, group * size + place)

        def put(digit: int, place: Index, byte: Expr) -> None:
            begin = self._digit(slot, group, digit, number(0)) * 4
            writer.store(words, I8, begin + place, byte, within=U32)

        unit, total = slices_of(writer, quantized, x, put, drop)
        writer.store(units, F32, at + self._item(self.groups), unit)
        zero, low = quantized.zero, total & 0xFFFF
        if zero is None:
            exact = unit * 2.0**-drop
            found = Apply(F32, "convert", total) * exact
            writer.store(starts, F32, at + self._item(self.groups), found)
            return
        high = total >> 16
        for n, part in enumerate((high, low)):
            start = part * int(zero)
            if n and drop:
                start = start + (1 << (drop - 1))
            writer.store(starts, I32, at * STARTS + n + self._item(self.groups * STARTS), start)

    def _item(self, size: int) -> Index:
        """Where the workgroup's part of a scratch memory begins, with ``size`` for every row."""
        return self.item * (self._block_rows * size)

    def _digit(self, slot: Index, group: Index, digit: int, word: Index) -> Index:
        """Where a word of slices is."""
        at = ((slot * self.groups + group) * SLICES + digit) * self._words + word
        return at + self._item(self.groups * SLICES * self._words)

    # --- a tile ---

    def results(self, tile: Outputs) -> Sums:
        """Sums of slices by group, scaled; the slices are those from the tile's slot on."""
        return self.by_groups(tile)

    def multiply_group(self, tile: Outputs, group: Index, sums: Sums) -> None:
        """Add the products of a group, some words in one pass of a loop."""
        writer, words = self.writer, self.quantized.group // self.quantized.per
        each = math.gcd(words, UNROLLED // self.quantized.parts)
        with writer.each("w", words // each) as w:
            for n in range(each):
                with writer.scope():
                    self.multiply_word(tile, group, w * each + n, sums)

    def parts_of(self, panel: Index, p: int, word: Index) -> Sequence[Expr]:
        """Words of bytes, taken apart at once."""
        found = (
            super().parts_of(panel, p, word) if not self._is_prepared else self._prepared(p, word)
        )
        return [self.writer.wide(part) for part in found]

    def _prepared(self, p: int, word: Index) -> Sequence[Expr]:
        """The words of bytes that a chunk of a tile's panel ``p`` has become."""
        words, parts = scratch_value(self.fusion, 3), self.quantized.parts
        return [Load(U32, words, self._unpacked(p, word * parts + n)) for n in range(parts)]

    def step(self, panel: Index, p: int, group: Index) -> Expr:
        """The scale of a group, as it was prepared."""
        return self._known(0, p, group) if self._is_scaled else super().step(panel, p, group)

    def offset(self, panel: Index, p: int, group: Index) -> Expr:
        """The bias of a group, as it was prepared."""
        return self._known(1, p, group) if self._is_scaled else super().offset(panel, p, group)

    def _known(self, n: int, p: int, group: Index) -> Expr:
        return Load(F32, self._float(n), self._placed(p, group, self.groups))

    def factors(self, tile: Outputs, m: int, group: Index, part: Index) -> Sequence[Expr]:
        """A word of each slice."""
        places = (self._digit(tile.slot + m, group, digit, part) for digit in SUMMED)
        return [self.writer.element(Load(U32, scratch_value(self.fusion, 0), at)) for at in places]

    def row_group(self, tile: Outputs, m: int, group: Index) -> RowGroup:
        """What was found of a group when its slices were made."""
        units, found = (scratch_value(self.fusion, n) for n in (1, 2))
        at, drop = (tile.slot + m) * self.groups + group, dropped(self.quantized)
        high: Expr = constant(I32, 0)
        low: Expr = constant(I32, (1 << drop) // 2)
        if self.quantized.zero:
            first = at * STARTS + self._item(self.groups * STARTS)
            high, low = (Load(I32, found, first + n) for n in range(STARTS))
        at += self._item(self.groups)
        total = Load(F32, found, at) if self.quantized.zero is None else None
        return RowGroup((high, constant(I32, 0), low), Load(F32, units, at), total)

    def scale(self, result: Var, sums: Sequence[Var], step: Expr, unit: Expr) -> None:
        """Add the sums of a group as one float."""
        writer = self.writer
        found = writer.apply("by_power", F32, self._whole(*sums), writer.wide(unit))
        writer.add_product(result, found, writer.wide(step))

    def _moved(self, sum: Expr, by: int) -> Expr:
        """A sum moved up, or down where ``by`` is negative."""
        op = "shift_left" if by > 0 else "shift_right"
        return self.writer.apply(op, I32, sum, constant(I32, abs(by))) if by else sum

    def _whole(self, high: Var, middle: Var, low: Var) -> Expr:
        """The sums of a group as one float, in its unit."""
        drop = dropped(self.quantized)
        upper = self._moved(high, 8) + middle
        total = self._moved(upper, 8 - drop) + self._moved(low, -drop)
        return Apply(F32, "convert", total)


def _at_most(most: int, left: Index) -> Expr:
    """What is left, or ``most`` where that is less."""
    return Apply(I32, "min", Const(I32, most), Coordinate(I32, left))
