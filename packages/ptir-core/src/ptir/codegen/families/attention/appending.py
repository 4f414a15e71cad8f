"""Attention of one token whose keys and values are appended in the same kernel.

A workgroup owns a key head: it writes the new entries, then attends with all query heads that use
it, block by block of keys, so that each comes from memory once.
"""

from __future__ import annotations

from typing import Final

from ptir.codegen.expressions.expr import Var
from ptir.codegen.expressions.index import Index, number
from ptir.codegen.families.attention.serial import MOST, TOTAL, Attention
from ptir.codegen.families.cache.serial import append
from ptir.codegen.kernel_ir.nodes import Store
from ptir.codegen.kernel_ir.values import Read
from ptir.codegen.schedules.kernel import EmitContext, Fusion, Kernel
from ptir.types import F32

RUNNING: Final = "mosts", "totals"
"""The arrays of the greatest scores so far and the sums of weights, by query."""


class AppendingAttention(Attention):
    """One attention call of one position whose updates run in its kernel."""

    def __init__(self, fusion: Fusion, context: EmitContext) -> None:
        super().__init__(fusion, context)
        self.together = self.share

    def kernel(self) -> Kernel:
        """A loop over key heads."""
        return self._of_entries(self.G, 1)

    def _declare_arrays(self) -> None:
        super()._declare_arrays()
        if self.together > 1:
            self.writer.array("os", self.together * self.D, F32)
            for name in RUNNING:
                self.writer.array(name, self.together, F32)

    def _entry(self, row: Index, head: Index, entry: Index) -> None:
        """Append a key head's new entries, then attend with every query head that uses it."""
        for position, result in zip(self.updates, self.fusion.outputs[1:], strict=True):
            made = self.graph.block.instructions[position]
            with self.writer.scope():
                append(self.writer, self.builder, made, result, (row, head, number(0)))
        if self.together > 1:
            self._share_keys(row, head)
        else:
            self._query(row, head, number(0))

    def _share_keys(self, row: Index, head: Index) -> None:
        """The queries of a key head block by block, so that each key comes from memory once.

        Between blocks a query's results and sums are in private arrays.
        """
        writer, self.row, self.head = self.writer, row, head
        first, zero = head * self.together, number(0)
        low, high = (writer.scalar(bound) for bound in self._seen(row, zero))
        with writer.each("g", self.together) as g:
            self._hold_query((row, first + g, zero), g)
            for name, value in zip(RUNNING, self._before_keys(first + g), strict=True):
                writer.put(name, g, value)
            for place in range(self.whole or self.D):
                writer.emit(Store(F32, "os", self._result(g, place), self._zero()))
        with writer.each("j", self.C, low, high, self.keys):
            count = self._block_count(high)
            with writer.each("g", self.together) as g:
                held = self._resumed(g)
                self._scores(count, g)
                self._weigh(count, held)
                for variable, name in zip((MOST, TOTAL), RUNNING, strict=True):
                    writer.put(name, g, variable)
                for place, one in enumerate(held):
                    writer.emit(Store(F32, "os", self._result(g, place), one))
        with writer.each("g", self.together) as g:
            self._finish_query((row, first + g, zero), self._resumed(g))

    def _resumed(self, g: Index) -> list[Var]:
        """The results of a query as variables, and its sums."""
        writer, wide = self.writer, bool(self.whole)
        for variable, name in zip((MOST, TOTAL), RUNNING, strict=True):
            writer.declare(Read(F32, name, g), variable.name)
        return [
            writer.declare(Read(F32, "os", self._result(g, place), wide), writer.name("o"))
            for place in range(self.whole or self.D)
        ]

    def _result(self, g: Index, place: int) -> Index:
        """Where a vector of a query's results is, or one of them where heads are no vectors."""
        return g * self.D + place * (self.lanes if self.whole else 1)
