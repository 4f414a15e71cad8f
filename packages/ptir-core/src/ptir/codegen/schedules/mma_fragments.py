"""Fragments of matrices: how threads take words out of shared memory and multiply them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ptir.backend.mma import MmaInstruction
from ptir.codegen.expressions.expr import Cell, Var
from ptir.codegen.expressions.index import Index
from ptir.codegen.kernel_ir.nodes import Declare, LoadMatrices, Mma
from ptir.codegen.kernel_ir.writer import Writer
from ptir.types import U32, DType

EIGHT = 8
"""Rows of the matrices that threads load."""


@dataclass(frozen=True)
class Stage:
    """Where words of pairs lie in a shared array of words: line after line, or pair after pair.

    ``stride`` is chosen so that a subgroup's threads find their words in different banks.
    """

    array: str
    begin: Index
    deep: bool
    stride: int

    def at(self, line: Index, pair: Index) -> Index:
        """The place of a line's pair."""
        outer, inner = (line, pair) if self.deep else (pair, line)
        return self.begin + outer * self.stride + inner


class Fragments:
    """What the threads of a subgroup hold, while a kernel is written."""

    def __init__(self, writer: Writer, matrices: MmaInstruction, member: Index) -> None:
        self.writer, self.matrices = writer, matrices
        self.subgroup = writer.let_index(member // matrices.width, 1 << 5)
        self._lane = writer.let_index(member % matrices.width, matrices.width)
        lines = matrices.width // matrices.across
        self.line = writer.let_index(self._lane // matrices.across, lines)
        self.place = writer.let_index(self._lane % matrices.across, matrices.across)

    def left(self, stage: Stage, row: Index, pair: Index) -> list[Var]:
        """The words of the left matrix that begins at a row and a pair."""
        found = self.matrices.left
        if not stage.deep:
            return [self._word(stage, row + r, pair + p) for r, p in found]
        down, along = found[1][0], found[2][1]
        assert found == ((0, 0), (down, 0), (0, along), (down, along)), found
        one, quarter = self._lane % EIGHT, self._lane // EIGHT
        at = row + quarter % 2 * down + one, pair + quarter // 2 * along
        return self._gathered(stage, *at)

    def right(self, stage: Stage, column: Index, pair: Index) -> list[list[Var]]:
        """The words of the right matrix that begins at a column and a pair, and of the next one."""
        found, width = self.matrices.right, self.matrices.columns
        if not stage.deep:
            return [
                [self._word(stage, column + n * width + c, pair + p) for c, p in found]
                for n in range(2)
            ]
        along = found[1][1]
        assert found == ((0, 0), (0, along)) and width == EIGHT, found
        one, quarter = self._lane % EIGHT, self._lane // EIGHT
        at = column + quarter // 2 * width + one, pair + quarter % 2 * along
        words = self._gathered(stage, *at)
        return [words[:2], words[2:]]

    def right_across(self, stage: Stage, column: Index, line: Index) -> list[list[Var]]:
        """The same where the depth runs along a deep stage's lines, and columns along its pairs."""
        found, width = self.matrices.right, self.matrices.columns
        along = found[1][1] * 2
        assert found == ((0, 0), (0, along // 2)) and width == EIGHT and stage.deep, found
        one, quarter = self._lane % EIGHT, self._lane // EIGHT
        at = line + quarter % 2 * along + one, column // 2 + quarter // 2 * (width // 2)
        words = self._gathered(stage, *at, across=True)
        return [words[:2], words[2:]]

    def _word(self, stage: Stage, line: Index, pair: Index) -> Var:
        at = stage.at(line + self.line, pair + self.place)
        return self.writer.let(self.writer.element(Cell(U32, stage.array, at)))

    def _gathered(self, stage: Stage, line: Index, pair: Index, across: bool = False) -> list[Var]:
        found = tuple(Var(U32, self.writer.name("f")) for _ in range(4))
        self.writer.emit(Declare(found))
        self.writer.emit(LoadMatrices(found, stage.array, stage.at(line, pair), across))
        return list(found)

    def multiply(
        self, kind: DType, sums: Sequence[Var], left: Sequence[Var], right: Sequence[Var]
    ) -> None:
        """Add a product to the variables of sums."""
        self.writer.emit(Mma(kind, tuple(sums), tuple(left), tuple(right)))

    def places(self) -> list[tuple[Index, Index]]:
        """Row and column of each sum within its matrix."""
        return [(self.line + r, self.place * 2 + c) for r, c in self.matrices.sums]
