"""The matmul family: contractions of anything with anything, batched or not, without packing.

Serial schedule: a workgroup owns rows of the result. Lanes run along the right operand's free axis
where its neighbours lie side by side, else along the contracted axis, else nothing is wide.
"""

from __future__ import annotations

import math

from ptir.codegen.expressions.elementwise import cast, rounded
from ptir.codegen.expressions.expr import Expr, Load, Var, constant, walk
from ptir.codegen.expressions.index import ZERO, Axis, Index, axis, number, unravel_index
from ptir.codegen.families.reduction.rows import WIDEST
from ptir.codegen.fusion.graph import Graph
from ptir.codegen.kernel_ir.writer import Writer
from ptir.codegen.schedules.epilogue import builder_of, epilogue, store
from ptir.codegen.schedules.kernel import EmitContext, Fusion, Kernel, finish_kernel
from ptir.codegen.schedules.mma_operands import MmaOperand, in_words, mma_operand, narrowed
from ptir.codegen.schedules.mma_tile import Contraction, MmaTile, Shape, shape_for
from ptir.codegen.schedules.tile import Operand, Tile
from ptir.ir.program import Instruction
from ptir.types import BF16, F16, F32, DType


def match(graph: Graph, position: int) -> Fusion | None:
    """Every contraction, with what follows it element by element."""
    made = graph.block.instructions[position]
    if made.op != "dot_general":
        return None
    behind = epilogue(graph, position, _places(graph, made))
    reads = tuple(sorted(behind.inputs.union(made.operands)))
    return Fusion("matmul", behind.instructions, reads, (behind.output,), position, made.operands)


def _places(graph: Graph, made: Instruction) -> list[Index]:
    """Where the kernel holds results: one element, a vector, or what is left behind vectors."""
    taken = (*made.attributes["rhs_batch"], *made.attributes["rhs_contract"])
    shape = graph.type(made.operands[1]).shape
    columns = math.prod(n for a, n in enumerate(shape) if a not in taken)
    whole, left = divmod(columns, WIDEST)
    row = axis("r", made.types[0].size // columns if columns else 0) * columns
    vector = axis("v", whole) * WIDEST + axis("lane", WIDEST)
    return [row + one for one in (axis("n", columns), vector, axis("n", left) + whole * WIDEST)]


def emit(fusion: Fusion, context: EmitContext) -> Kernel:
    """A loop over rows of the result, inside it one over columns."""
    return _Matmul(fusion, context).kernel()


class _Matmul:
    def __init__(self, fusion: Fusion, context: EmitContext) -> None:
        self.fusion, self.context, self.graph = fusion, context, context.graph
        self.made: Instruction = self.graph.block.instructions[fusion.detail]
        self.writer: Writer = context.writer()
        self.builder = builder_of(fusion, context)
        self.hero = self.graph.results[fusion.detail][0]
        self.shapes = [self.graph.type(v).shape for v in self.made.operands]
        attributes = self.made.attributes
        self.batch = (attributes["lhs_batch"], attributes["rhs_batch"])
        self.contract = (attributes["lhs_contract"], attributes["rhs_contract"])
        self.depth = math.prod(self.shapes[0][a] for a in self.contract[0])
        self.columns = math.prod(self._free(1))
        result = self.made.types[0]
        self.dtype: DType = result.dtype
        self.rows = result.size // self.columns if self.columns else 0
        self.lanes = context.dialect.lanes
        self.lane = Axis("lane", self.lanes)

    def _free(self, side: int) -> list[int]:
        taken = (*self.batch[side], *self.contract[side])
        return [n for a, n in enumerate(self.shapes[side]) if a not in taken]

    def element(self, side: int, row: Index, column: Index, depth: Index) -> Expr:
        """An operand's element for a row and a column of the result."""
        found = self.builder.at(self.made.operands[side], self._place(side, row, column, depth))
        return cast(self.dtype, found)

    def _place(self, side: int, row: Index, column: Index, depth: Index) -> tuple[Index, ...]:
        """Where that element is in the operand."""
        batch = [self.shapes[0][a] for a in self.batch[0]]
        split = unravel_index(row, [*batch, *self._free(0)])
        free = iter(split[len(batch) :] if side == 0 else unravel_index(column, self._free(1)))
        inner = unravel_index(depth, [self.shapes[0][a] for a in self.contract[0]])
        places: list[Index] = []
        for a in range(len(self.shapes[side])):
            if a in self.batch[side]:
                places.append(split[self.batch[side].index(a)])
            elif a in self.contract[side]:
                places.append(inner[self.contract[side].index(a)])
            else:
                places.append(next(free))
        return tuple(places)

    def kernel(self) -> Kernel:
        """Lanes along columns, along the contraction, or not at all."""
        writer = self.writer
        workgroups = self.context.workgroups(self.rows, self.rows * self.columns * self.depth)
        with writer.loop(Axis("r", self.rows), *writer.work_range(self.rows, workgroups)):
            row = axis("r", self.rows)
            if self._straight(1, along_columns=True):
                self._wide_columns(row)
            else:
                self._single_columns(row)
        return finish_kernel(self.fusion, writer, workgroups)

    def tiled(self) -> Kernel:
        """Tiles of a workgroup; no tile has rows of two batches."""
        batches = math.prod(self.shapes[0][a] for a in self.batch[0])
        rows = self.rows // batches if batches else 0
        self.first = axis("batch", batches) * rows
        found = self._matrices(rows)
        if found is not None:
            made, shape = found
            tile: Tile | MmaTile = MmaTile(self.context, self.writer, made, shape)
        else:
            sizes = (rows, self.columns, self.depth)
            tile = Tile(self.context, self.writer, self.dtype, sizes)
        number = axis("item", batches * tile.count)
        self.first = number // tile.count * rows if batches > 1 else ZERO

        def finish(row: Index, column: Index, sum: Var) -> None:
            self._one(self.writer.let_index(self.first + row, self.rows), column, sum)

        if isinstance(tile, MmaTile):
            tile.write(number % tile.count, finish)
        else:
            tile.write(number % tile.count, self._operand(0), self._operand(1), finish)
        workgroups = batches * tile.count
        return finish_kernel(
            self.fusion, self.writer, workgroups, workgroup_size=tile.workgroup_size
        )

    def _operand(self, side: int) -> Operand:
        """An operand as a tile of the workgroup's batch takes it."""

        def one(line: Index, k: Index) -> list[Expr]:
            return [self.element(side, *self._of_line(side, line), k)]

        return Operand(one, deep=self._is_deep(side))

    def _of_line(self, side: int, line: Index) -> tuple[Index, Index]:
        """Row and column by what is a line of an operand, in the workgroup's batch."""
        return (self.first, line) if side else (self.first + line, ZERO)

    def _matrices(self, rows: int) -> tuple[Contraction, Shape] | None:
        """The contraction as matrix instructions take it, where both operands have 16 bits."""
        values = [narrowed(self.graph, v) for v in self.made.operands]
        kinds = {self.graph.type(v).dtype for v in values}
        if kinds not in ({BF16}, {F16}) or self.dtype.bits > F32.bits:
            return None
        (kind,) = kinds

        def side(number: int, lines: int) -> MmaOperand:
            def element(line: Index, k: Index) -> Expr:
                place = self._place(number, *self._of_line(number, line), k)
                return self.builder.at(values[number], place)

            made = mma_operand(kind, element, lines, self._is_deep(number), kind)
            return in_words(made, (axis("line", lines), axis("pair", self.depth // 2)))

        sizes = rows, self.columns
        left, right = (side(number, lines) for number, lines in enumerate(sizes))
        made = Contraction(kind, left, right, self.columns, self.depth)
        shape = shape_for(self.context, made)
        return None if shape is None else (made, shape)

    def _is_deep(self, side: int) -> bool:
        """Whether an operand's neighbours along the depth lie side by side."""
        places = (axis("r", self.rows), axis("n", self.columns), axis("k", self.depth))
        loads = [node for node in walk(self.element(side, *places)) if isinstance(node, Load)]
        return all(node.index.coefficient(Axis("k", self.depth)) == 1 for node in loads)

    def _straight(self, side: int, along_columns: bool) -> bool:
        """Whether an operand's neighbours along the columns or the depth lie side by side."""
        size = self.columns if along_columns else self.depth
        if size < self.lanes:
            return False
        run = axis("v", size // self.lanes) * self.lanes + axis("lane", self.lanes)
        row, other = axis("r", self.rows), axis("k", self.depth)
        place = (run, other) if along_columns else (axis("n", self.columns), run)
        found = self.element(side, row, *place)
        loads = [node for node in walk(found) if isinstance(node, Load)]
        return all(node.index.coefficient(self.lane) in (0, 1) for node in loads)

    def _wide_columns(self, row: Index) -> None:
        writer, whole = self.writer, self.columns // self.lanes
        with writer.loop(Axis("v", whole), 0, whole), writer.lanes(self.lane):
            column = axis("v", whole) * self.lanes + axis("lane", self.lanes)
            self._one(row, column, self._sum(row, column, True))
        left = self.columns - whole * self.lanes
        if left:
            with writer.loop(Axis("n", left), 0, left):
                column = axis("n", left) + whole * self.lanes
                self._one(row, column, self._sum(row, column, False))

    def _single_columns(self, row: Index) -> None:
        deep = all(self._straight(side, along_columns=False) for side in (0, 1))
        with self.writer.loop(Axis("n", self.columns), 0, self.columns):
            column = axis("n", self.columns)
            sum = self._deep_sum(row, column) if deep else self._sum(row, column, False)
            self._one(row, column, sum)

    def _one(self, row: Index, column: Index, sum: Var) -> None:
        """The epilogue and the store of one result, or one per lane."""
        (exit,) = self.fusion.outputs
        held = self.hero, rounded(self.dtype, sum)
        store(self.writer, self.builder, held, exit, row * self.columns + column)

    def _sum(self, row: Index, column: Index, wide: bool) -> Var:
        """The sum over the depth in one variable, lanes along columns if ``wide``."""
        sum = self._start(wide)
        if self.depth:
            with self.writer.loop(Axis("k", self.depth), 0, self.depth):
                self._add(sum, row, column, axis("k", self.depth))
        return sum

    def _deep_sum(self, row: Index, column: Index) -> Var:
        """The sum over the depth a vector at a time, its lanes combined at the end."""
        writer, whole = self.writer, self.depth // self.lanes
        with writer.lanes(self.lane):
            wide = self._start(True)
            with writer.loop(Axis("k", whole), 0, whole):
                depth = axis("k", whole) * self.lanes + axis("lane", self.lanes)
                self._add(wide, row, column, depth)
        with writer.lanes(None):
            name = writer.name("acc")
            sum = writer.declare(writer.reduce_lanes("add", wide), name)
            for place in range(whole * self.lanes, self.depth):
                with writer.scope():
                    self._add(sum, row, column, number(place))
        return sum

    def _start(self, wide: bool) -> Var:
        zero = constant(self.dtype, 0)
        return self.writer.declare(self.writer.widened(zero) if wide else zero)

    def _add(self, sum: Var, row: Index, column: Index, depth: Index) -> None:
        writer = self.writer
        valued = writer.wide if sum.wide else writer.scalar
        factors = [valued(self.element(side, row, column, depth)) for side in (0, 1)]
        writer.assign(sum, writer.apply("fma", self.dtype, *factors, sum))


def emit_cooperative(fusion: Fusion, context: EmitContext) -> Kernel:
    """A workgroup per tile of rows and columns of one batch."""
    return _Matmul(fusion, context).tiled()
