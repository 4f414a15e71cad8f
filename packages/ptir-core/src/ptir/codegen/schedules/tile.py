"""A contraction as tiles of a workgroup: operands pass through shared memory, threads hold sums.

A workgroup owns a tile of rows and columns. Slice by slice along the depth, its threads bring both
operands into shared memory, as numbers ready to be multiplied, and each thread adds the products
of some rows and columns to its sums. What follows is done element by element at the end, in the
order in which results lie in memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from ptir.codegen.expressions.expr import Cell, Coordinate, Expr, Var, carrier, constant, whole_word
from ptir.codegen.expressions.index import Index, axis
from ptir.codegen.kernel_ir.conditions import all_of, less
from ptir.codegen.kernel_ir.writer import Writer
from ptir.codegen.schedules.kernel import EmitContext
from ptir.codegen.schedules.schedules import LEAST_WORKGROUP_SIZE
from ptir.codegen.schedules.workgroup import Workgroup
from ptir.types import I32, DType

SIDE: Final = math.isqrt(LEAST_WORKGROUP_SIZE)
"""Threads along either side of a tile."""
MOST: Final = (4, 2, 1)
"""Rows and columns of a thread, at most: the first with which a tile fits."""
DEPTH: Final = 16
"""Places along the depth that pass through shared memory at once."""


Finish = Callable[[Index, Index, Var], None]
"""What is done with the variable of a sum, by row and column."""


@dataclass(frozen=True)
class Operand:
    """One side of a contraction: ``per`` neighbours along the depth for a line (row or column).

    ``values(line, place)`` gives them from ``place``, which is a multiple of ``per``. ``deep``
    says that neighbours along the depth lie side by side in memory, rather than lines.
    """

    values: Callable[[Index, Index], Sequence[Expr]]
    deep: bool
    per: int = 1


class Tile:
    """A contraction of ``rows`` by ``columns`` over ``depth`` while its kernel is written."""

    workgroup_size: Final = LEAST_WORKGROUP_SIZE

    def __init__(
        self, context: EmitContext, writer: Writer, dtype: DType, sizes: tuple[int, int, int]
    ) -> None:
        """``sizes`` are rows, columns and depth."""
        self.writer, self.dtype = writer, dtype
        self.rows, self.columns, self.depth = sizes
        self.workgroup = Workgroup(writer, self.workgroup_size)
        for most in MOST:
            self._high, self._wide = (min(most, -(-n // SIDE)) for n in sizes[:2])
            self.height, self.width = SIDE * self._high, SIDE * self._wide
            if self._nbytes <= context.traits.shared_memory_bytes:
                break
        self.down, self.across = -(-self.rows // self.height), -(-self.columns // self.width)
        self._sums = [
            [Var(dtype, f"a{m}_{n}") for n in range(self._wide)] for m in range(self._high)
        ]

    @property
    def _nbytes(self) -> int:
        """Bytes of shared memory: slices of both operands, and the results."""
        floats = DEPTH * (self.height + self.width) + self.height * self.width
        return floats * max(4, self._held.itemsize)

    @property
    def count(self) -> int:
        """Tiles of the contraction: groups, for each batch."""
        return self.down * self.across

    def write(self, tile: Index, a: Operand, b: Operand, finish: Finish) -> None:
        """Write the tile of a number; ``finish`` gets row, column and the variable of each sum."""
        writer = self.writer
        first = (tile // self.across) * self.height, (tile % self.across) * self.width
        writer.declare_all(*((one, self._zero) for line in self._sums for one in line))
        sides = (
            (a, first[0], self.height, self.rows, writer.shared(self._held, self.height * DEPTH)),
            (b, first[1], self.width, self.columns, writer.shared(self._held, self.width * DEPTH)),
        )
        slices = -(-self.depth // DEPTH)
        with writer.each("slice", slices, no_unroll=True) as slice:
            for operand, begin, size, limit, array in sides:
                self._bring(operand, slice * DEPTH, begin, size, limit, array)
            writer.barrier()
            with writer.each("k", DEPTH):
                self._multiply(sides[0][-1], sides[1][-1])
            writer.barrier()
        self._finish(first, finish)

    @property
    def _zero(self) -> Expr:
        return constant(self.dtype, 0)

    @property
    def _held(self) -> DType:
        return carrier(self.dtype)

    def _bring(
        self, operand: Operand, slice: Index, begin: Index, size: int, limit: int, array: str
    ) -> None:
        """A slice of one operand into shared memory; zeros beyond its ends."""
        writer, per = self.writer, operand.per
        words = DEPTH // per
        with self.workgroup.distribute(size * words, "e") as own:
            if operand.deep:
                line, word = own // words, own % words
            else:
                line, word = own % size, own // size
            targets = [(word * per + n) * size + line for n in range(per)]
            at = [writer.let(Coordinate(I32, one)) for one in (begin + line, slice // per + word)]
            limits = (at[0], limit, limit % size), (at[1], self.depth // per, self.depth % DEPTH)
            inside = [less(one, most) for one, most, left in limits if left]
            with writer.when(all_of(inside)):
                place = axis(at[0].name, limit), axis(at[1].name, self.depth // per) * per
                for target, expr in zip(targets, operand.values(*place), strict=True):
                    writer.put(array, target, expr, whole_word(self.dtype))
            if inside:
                with writer.otherwise():
                    for target in targets:
                        writer.put(array, target, self._zero, whole_word(self.dtype))

    def _multiply(self, a: str, b: str) -> None:
        """One step along the depth."""
        writer, k, member = self.writer, axis("k", DEPTH), self.workgroup.local_id
        rows, columns = (
            [Cell(self.dtype, array, k * size + begin + n * SIDE) for n in range(count)]
            for array, size, begin, count in (
                (a, self.height, member // SIDE, self._high),
                (b, self.width, member % SIDE, self._wide),
            )
        )
        for row, line in zip(rows, self._sums, strict=True):
            for column, one in zip(columns, line, strict=True):
                factors = writer.scalar(row), writer.scalar(column)
                writer.add_product(one, *factors)

    def _finish(self, first: tuple[Index, Index], finish: Finish) -> None:
        """Put the sums down, and go through them as results lie in memory."""
        writer, member = self.writer, self.workgroup.local_id
        held = writer.shared(self._held, self.height * self.width)
        for m, line in enumerate(self._sums):
            for n, one in enumerate(line):
                row, column = member // SIDE + m * SIDE, member % SIDE + n * SIDE
                writer.put(held, row * self.width + column, one, whole_word(self.dtype))
        writer.barrier()

        def sum_at(row: Index, column: Index) -> Var:
            return writer.let(writer.element(Cell(self.dtype, held, row * self.width + column)))

        size, limits = (self.height, self.width), (self.rows, self.columns)
        finish_tile(self.workgroup, size, first, limits, sum_at, finish)


def finish_tile(
    workgroup: Workgroup,
    size: tuple[int, int],
    first: Sequence[Index],
    limits: tuple[int, int],
    sum_at: Callable[[Index, Index], Var],
    finish: Finish,
) -> None:
    """Go through a tile's sums, which all threads see, in the order in which results lie.

    ``sum_at`` gives the variable of a sum by row and column of the tile, which begins at ``first``;
    ``finish`` gets row, column and variable of those within ``limits``.
    """
    writer, (height, width) = workgroup.writer, size
    with workgroup.distribute(height * width, "e") as own:
        within = own // width, own % width
        at = [
            writer.let(Coordinate(I32, begin + one))
            for begin, one in zip(first, within, strict=True)
        ]
        each = zip(at, limits, size, strict=True)
        with writer.when(all_of([less(one, limit) for one, limit, step in each if limit % step])):
            sum = sum_at(*within)
            finish(axis(at[0].name, limits[0]), axis(at[1].name, limits[1]), sum)
