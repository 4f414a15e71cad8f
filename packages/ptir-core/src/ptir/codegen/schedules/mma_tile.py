"""A contraction by matrix instructions: tiles of a workgroup, of which each subgroup owns a part.

Slice by slice along the depth, threads bring both operands into shared memory as words of 16-bit
floats, one slice ahead of what is multiplied: words that lie in memory as they are needed are
copied there by the hardware. A slice is summed in the instruction and then added to the sums in
f32, because the instruction cuts where f32 rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from ptir.codegen.expressions.expr import (
    Apply,
    Cell,
    Const,
    Coordinate,
    Expr,
    Var,
    compare,
    constant,
)
from ptir.codegen.expressions.index import Axis, Index, axis, number
from ptir.codegen.kernel_ir.nodes import Store
from ptir.codegen.kernel_ir.writer import Writer
from ptir.codegen.schedules.kernel import EmitContext
from ptir.codegen.schedules.mma_fragments import Fragments
from ptir.codegen.schedules.mma_operands import MmaOperand
from ptir.codegen.schedules.mma_shared_tiles import (
    DEPTH,
    PAD,
    PAIRS,
    SharedTiles,
    shared_tile_words,
)
from ptir.codegen.schedules.tile import Finish, finish_tile
from ptir.codegen.schedules.workgroup import Workgroup
from ptir.types import F32, I32, U32, DType

WORKGROUP_SIZE: Final = 128
LARGEST: Final = constant(F32, 3.4028234663852886e38)
ZERO: Final = constant(F32, 0.0)


@dataclass(frozen=True)
class Shape:
    """Rows and columns of a tile, and how many subgroups are below and beside each other."""

    rows: int
    columns: int
    down: int
    across: int


SHAPES: Final = (Shape(64, 64, 2, 2), Shape(32, 64, 2, 2), Shape(16, 64, 1, 4))


@dataclass(frozen=True)
class Recompute:
    """How a sum that is not finite is made anew: factors by row, column and step, and the steps."""

    factors: Callable[[Index, Index, Index], Sequence[tuple[Expr, Expr]]]
    steps: int


@dataclass(frozen=True)
class Contraction:
    """Rows of ``left`` times columns of ``right`` over ``depth``, for instructions of ``kind``.

    ``scale`` gives a factor of a column's sums of each slice.
    """

    kind: DType
    left: MmaOperand
    right: MmaOperand
    columns: int
    depth: int
    scale: Callable[[Index, Index], Expr] | None = None
    again: Recompute | None = None


def shape_for(context: EmitContext, made: Contraction) -> Shape | None:
    """The tile of a contraction, or None where the device has no instruction for it."""
    primitives = context.dialect.workgroup
    matrices = None if primitives is None else primitives.mma
    if matrices is None or made.kind.name not in matrices.multiply or made.depth % 2:
        return None
    if context.traits.max_workgroup_size < WORKGROUP_SIZE or not made.depth:
        return None
    high = next((s.rows for s in reversed(SHAPES) if s.rows >= made.left.lines), SHAPES[0].rows)
    found = (
        s
        for s in SHAPES
        if s.rows <= high and nbytes(s, made) <= context.traits.shared_memory_bytes
    )
    return next(found, None)


def nbytes(shape: Shape, made: Contraction) -> int:
    """Bytes of shared memory: two slices of both operands, in whose place the results go."""
    results = shape.rows * (shape.columns + PAD[False])
    return U32.itemsize * max(shared_tile_words(_sides(shape, made)), results)


def _sides(shape: Shape, made: Contraction) -> list[tuple[int, MmaOperand]]:
    return [(shape.rows, made.left), (shape.columns, made.right)]


class MmaTile:
    """A contraction while its kernel is written."""

    workgroup_size: Final = WORKGROUP_SIZE

    def __init__(
        self, context: EmitContext, writer: Writer, made: Contraction, shape: Shape
    ) -> None:
        self.writer, self.made, self.shape = writer, made, shape
        self.workgroup = Workgroup(writer, WORKGROUP_SIZE)
        matrices = writer.workgroup.mma
        assert matrices is not None
        self.matrices = matrices
        self.down = -(-made.left.lines // shape.rows)
        self.across = -(-made.columns // shape.columns)
        self.high = shape.rows // shape.down // matrices.rows
        self.wide = shape.columns // shape.across // matrices.columns
        self.room = nbytes(shape, made) // U32.itemsize

    @property
    def count(self) -> int:
        """Tiles: workgroups, for each batch."""
        return self.down * self.across

    def write(self, tile: Index, finish: Finish) -> None:
        """Write the tile of a number; ``finish`` gets row, column and the variable of each sum."""
        writer, made = self.writer, self.made
        self.array = writer.shared(U32, self.room)
        self.slices = SharedTiles(self.workgroup, self.array, _sides(self.shape, made), made.depth)
        self.fragments = Fragments(writer, self.matrices, self.workgroup.local_id)
        first = [
            writer.let_index(tile // self.across, self.down) * self.shape.rows,
            writer.let_index(tile % self.across, self.across) * self.shape.columns,
        ]
        self._declare("s")
        count = -(-made.depth // DEPTH)
        self.slices.put(self.slices.load(first, number(0), number(0)), number(0))
        with writer.each("slice", count, no_unroll=True) as slice:
            self.slices.wait()
            here = writer.let_index(axis("slice", max(2, count)) % 2, 2)
            there = writer.let_index((axis("slice", max(2, count)) + 1) % 2, 2)
            ahead = writer.let_index(axis("slice", max(2, count)) + 1, count + 1)
            pending = self.slices.load(first, ahead, there)
            self._multiply(here)
            self._add(first[1], slice)
            self.slices.put(pending, there)
        self._finish(first, finish)

    # --- sums ---

    def _sums(self, prefix: str) -> list[list[list[Var]]]:
        """The variables of the thread's sums, by matrix."""
        each = range(len(self.matrices.sums))
        return [
            [[Var(F32, f"{prefix}{m}_{n}_{r}") for r in each] for n in range(self.wide)]
            for m in range(self.high)
        ]

    def _all(self, prefix: str) -> list[Var]:
        return [one for line in self._sums(prefix) for sums in line for one in sums]

    def _declare(self, prefix: str) -> None:
        self.writer.declare_all(*((one, ZERO) for one in self._all(prefix)))

    # --- products ---

    @property
    def _origin(self) -> tuple[Index, Index]:
        """The subgroup's first row and column in the tile."""
        at, shape = self.fragments.subgroup, self.shape
        return (
            at // shape.across * (shape.rows // shape.down),
            at % shape.across * (shape.columns // shape.across),
        )

    def _multiply(self, buffer: Index) -> None:
        """One slice: parts from the lowest up, each step along the depth."""
        writer, made, matrices = self.writer, self.made, self.matrices
        self._declare("c")
        row, column = self._origin
        steps = [number(step) for step in range(0, PAIRS, matrices.depth // 2)]
        held = [
            [self._right(part, column, step, buffer) for step in steps]
            for part in reversed(range(made.right.parts))
        ]
        for part in reversed(range(made.left.parts)):
            stage = self.slices.stage(0, part, buffer)
            for at, step in enumerate(steps):
                for m, line in enumerate(self._sums("c")):
                    left = self.fragments.left(stage, row + m * matrices.rows, step)
                    for right in held:
                        for sums, words in zip(line, right[at], strict=True):
                            self.fragments.multiply(made.kind, sums, left, words)
            if part and made.left.exponent_shift:
                lower = constant(F32, 2.0**-made.left.exponent_shift)
                for one in self._all("c"):
                    writer.assign(one, writer.apply("mul", F32, one, lower))

    def _right(self, part: int, column: Index, step: Index, buffer: Index) -> list[list[Var]]:
        """The words of the subgroup's right matrices at a step."""
        stage, found = self.slices.stage(1, part, buffer), []
        for n in range(0, self.wide, 2):
            found += self.fragments.right(stage, column + n * self.matrices.columns, step)
        return found

    def _add(self, first: Index, slice: Index) -> None:
        """Add the sums of a slice to those of the tile."""
        writer = self.writer
        for n in range(self.wide):
            factors = self._factors(first, n, slice)
            for sums, made in zip(self._sums("s"), self._sums("c"), strict=True):
                each = zip(sums[n], made[n], self.fragments.places(), strict=True)
                for total, one, (_, inner) in each:
                    given = [one, factors[inner], total] if factors else [total, one]
                    op = "fma" if factors else "add"
                    writer.assign(total, writer.apply(op, F32, *given))

    def _factors(self, first: Index, n: int, slice: Index) -> dict[Index, Expr]:
        """The factors of a slice's sums in a thread's matrices, by column; none are 1."""
        writer, scale, most = self.writer, self.made.scale, self.made.columns - 1
        found: dict[Index, Expr] = {}
        if scale is None:
            return found
        for inner in dict.fromkeys(column for _, column in self.fragments.places()):
            at = first + self._origin[1] + n * self.matrices.columns + inner
            column = writer.let(Apply(I32, "min", Coordinate(I32, at), Const(I32, most)))
            found[inner] = writer.scalar(scale(axis(column.name, most + 1), slice))
        return found

    # --- results ---

    def _finish(self, first: list[Index], finish: Finish) -> None:
        """Put the sums down where the operands were, and go through them as results lie."""
        writer, shape = self.writer, self.shape
        stride = shape.columns + PAD[False]
        row, column = self._origin
        writer.barrier()
        for m, line in enumerate(self._sums("s")):
            for n, sums in enumerate(line):
                for one, (r, c) in zip(sums, self.fragments.places(), strict=True):
                    at = (row + m * self.matrices.rows + r) * stride
                    at = at + column + n * self.matrices.columns + c
                    writer.emit(Store(U32, self.array, at, Apply(U32, "bits", one)))
        writer.barrier()

        def finished(row: Index, column: Index, sum: Var) -> None:
            finish(row, column, self._checked(row, column, sum))

        limits = self.made.left.lines, self.made.columns
        finish_tile(
            self.workgroup, (shape.rows, shape.columns), first, limits, self._held, finished
        )

    def _held(self, row: Index, column: Index) -> Var:
        """A sum that was put down."""
        place = Cell(U32, self.array, row * (self.shape.columns + PAD[False]) + column)
        return self.writer.let(Apply(F32, "bits", self.writer.element(place)))

    def _checked(self, row: Index, column: Index, sum: Var) -> Var:
        """A sum, made anew where parts of something infinite have met zeros."""
        writer, again = self.writer, self.made.again
        if again is None:
            return sum
        made = writer.declare(sum, writer.name("sum"))
        finite = compare("le", Apply(F32, "abs", sum), LARGEST)
        with writer.when(~writer.scalar(finite)):
            writer.assign(made, ZERO)
            steps = Axis("again", again.steps)
            with writer.loop(steps, 0, again.steps, no_unroll=True):
                for factors in again.factors(row, column, axis("again", again.steps)):
                    given = map(writer.scalar, factors)
                    writer.add_product(made, *given)
        return made
