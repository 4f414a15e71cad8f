"""Shared tiles of both operands, as words for matrix instructions, in two buffers.

``load`` asks for a slice: words that lie in memory as they are needed are copied by the hardware,
everything else is loaded into variables, which ``put`` turns into words. Between the two the
slice before is multiplied.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Final

from ptir.codegen.expressions.expr import Coordinate, Expr, Load, Var, constant
from ptir.codegen.expressions.index import Index, axis, number
from ptir.codegen.kernel_ir.conditions import all_of, less
from ptir.codegen.kernel_ir.nodes import AsyncCopy, AsyncWait
from ptir.codegen.schedules.mma_fragments import Stage
from ptir.codegen.schedules.mma_operands import RUN, MmaOperand
from ptir.codegen.schedules.workgroup import Workgroup
from ptir.types import I32, U32

DEPTH: Final = 32
"""Places along the depth of a slice, and of the sums that stay in the instruction."""
PAIRS: Final = DEPTH // 2
PAD: Final = {True: 4, False: 8}
"""Words behind a line of a deep operand, or behind a pair of another."""
BLOCK: Final = 16
"""Neighbouring lines that may lie apart from the next ones, as in panels."""


@dataclass(frozen=True)
class Chunk:
    """What a thread brings at once: ``run`` units of an operand's line, or ``run`` lines of a unit.

    ``own`` is its number in the slice, which has ``count``; ``at`` the first line and unit.
    """

    side: int
    own: Index
    run: int
    count: int
    at: tuple[Index, Index]


@dataclass(frozen=True)
class Pending:
    """A chunk's values on their way into a buffer: the variables of each unit."""

    chunk: Chunk
    found: list[list[Var]]


def operand_words(size: int, side: MmaOperand) -> int:
    """Words of one part of a slice of ``size`` lines."""
    outer, inner = (size, PAIRS) if side.deep else (PAIRS, size)
    return outer * (inner + PAD[side.deep])


def shared_tile_words(sides: Sequence[tuple[int, MmaOperand]]) -> int:
    """Words of both buffers."""
    return 2 * sum(operand_words(size, side) * side.parts for size, side in sides)


class SharedTiles:
    """The buffers of a kernel while it is written."""

    def __init__(
        self, workgroup: Workgroup, array: str, sides: Sequence[tuple[int, MmaOperand]], depth: int
    ) -> None:
        """``sides`` come with the lines of a slice; ``array`` is shared and holds u32."""
        self.workgroup, self.writer, self.array = workgroup, workgroup.writer, array
        self.sides, self.pairs = sides, depth // 2

    def stage(self, side: int, part: int, buffer: Index) -> Stage:
        """Where a part of an operand's slice lies in one of the two buffers."""
        size, one = self.sides[side]
        begin = shared_tile_words(self.sides[:side])
        place = number(begin) + (buffer * one.parts + part) * operand_words(size, one)
        stride = (PAIRS if one.deep else size) + PAD[one.deep]
        return Stage(self.array, place, one.deep, stride)

    def load(self, first: Sequence[Index], slice: Index, buffer: Index) -> list[Pending]:
        """Ask for a slice whose lines begin at ``first``: variables, and copies to the buffer."""
        pending: list[Pending] = []
        for number_, (_, side) in enumerate(self.sides):
            for chunk in self._chunks(number_):
                if side.lies:
                    self._copy(chunk, first[number_], slice, buffer)
                else:
                    pending.append(Pending(chunk, self._ask(chunk, first[number_], slice)))
        return pending

    def wait(self) -> None:
        """Go on when the thread's copies are done, and all threads are here."""
        if any(side.lies for _, side in self.sides):
            self.writer.emit(AsyncWait())
        self.writer.barrier()

    def put(self, pending: Sequence[Pending], buffer: Index) -> None:
        """Write what was loaded into a buffer, as words."""
        for one in pending:
            side, (line, unit) = self.sides[one.chunk.side][1], one.chunk.at
            with self._owned(one.chunk):
                for n, found in enumerate(one.found):
                    at = (line, unit + n) if side.deep else (line + n, unit)
                    self._put(one.chunk.side, at, found, buffer)

    def _put(self, number_: int, at: tuple[Index, Index], found: list[Var], buffer: Index) -> None:
        writer, side = self.writer, self.sides[number_][1]
        for pair, parts in enumerate(side.words(found)):
            for part, word in enumerate(parts):
                stage = self.stage(number_, part, buffer)
                writer.put(self.array, stage.at(at[0], at[1] * side.pairs + pair), word, U32)

    # --- chunks ---

    def _chunks(self, number_: int) -> list[Chunk]:
        """The thread's chunks of a slice."""
        size, side = self.sides[number_]
        units, run, threads = PAIRS // side.pairs, self._run(side), self.workgroup.size
        per, count = (units if side.deep else size) // run, size * units // run
        found = []
        for turn in range(-(-count // threads)):
            own = self.workgroup.local_id + turn * threads
            outer, inner = own // per, own % per * run
            at = (outer, inner) if side.deep else (inner, outer)
            found.append(Chunk(number_, own, run, count, at))
        return found

    def _run(self, side: MmaOperand) -> int:
        """Units along the depth, or lines, that make 16 bytes."""
        if not side.deep:
            return RUN if side.lines % RUN == 0 else 1
        run = RUN // len(side.found(axis("line", side.lines), axis("unit", self.pairs)))
        return run if self.pairs % run == 0 else 1

    def _owned(self, chunk: Chunk) -> AbstractContextManager[None]:
        """What is done where the thread has the chunk."""
        has_all = chunk.count >= self.workgroup.size
        return (
            nullcontext()
            if has_all
            else self.writer.when(less(self.workgroup.local_id, chunk.count))
        )

    def _places(
        self, chunk: Chunk, first: Index, slice: Index
    ) -> tuple[list[tuple[Index, Index]], Index, Expr | None]:
        """Lines and units of a chunk, what they are a run along, and whether they are there."""
        size, side = self.sides[chunk.side]
        units, step = self.pairs // side.pairs, PAIRS // side.pairs
        line = self._let(first + chunk.at[0])
        unit = self._let(slice * step + chunk.at[1])
        inside = [less(unit, units)] + ([less(line, side.lines)] if side.lines % size else [])
        if chunk.count < self.workgroup.size:
            inside.append(less(self.workgroup.local_id, chunk.count))
        if side.deep:
            block = self.writer.let_index(axis(unit.name, 1 << 20) // chunk.run, units // chunk.run)
            at = axis(line.name, side.lines)
            places = [(at, block * chunk.run + n) for n in range(chunk.run)]
        else:
            along = axis(line.name, 1 << 24)
            outer = self.writer.let_index(along // BLOCK, -(-side.lines // BLOCK))
            block = self.writer.let_index(along % BLOCK // chunk.run, BLOCK // chunk.run)
            begin = outer * BLOCK + block * chunk.run
            places = [(begin + n, axis(unit.name, units)) for n in range(chunk.run)]
        return places, block, all_of(inside)

    def _let(self, at: Index) -> Var:
        return self.writer.let(Coordinate(I32, at))

    def _ask(self, chunk: Chunk, first: Index, slice: Index) -> list[list[Var]]:
        """The chunk's values in variables, zeros where there are none."""
        writer, side = self.writer, self.sides[chunk.side][1]
        places, block, inside = self._places(chunk, first, slice)
        units = [side.found(*place) for place in places]
        names = [[Var(one.dtype, writer.name("v")) for one in found] for found in units]
        for one in (one for line in names for one in line):
            writer.declare(constant(one.dtype, 0), one.name)
        each = len(units[0]) if side.deep else 1
        with writer.when(inside):
            for n, (line, found) in enumerate(zip(names, units, strict=True)):
                for inner, (one, expr) in enumerate(zip(line, found, strict=True)):
                    with writer.vectorized_run(block, chunk.run * each, n * each + inner % each):
                        writer.assign(one, writer.scalar(expr))
        return names

    def _copy(self, chunk: Chunk, first: Index, slice: Index, buffer: Index) -> None:
        """Begin to copy the chunk's words; zeros where there are none."""
        writer, side = self.writer, self.sides[chunk.side][1]
        places, _, inside = self._places(chunk, first, slice)
        target = self.stage(chunk.side, 0, buffer).at(*chunk.at)
        (word,) = side.found(*places[0])
        assert isinstance(word, Load), word
        with writer.when(inside):
            source = writer.memory(word.source, U32)
            writer.emit(AsyncCopy(self.array, target, source, writer.index(word.index)))
        has_all = chunk.count >= self.workgroup.size
        with writer.otherwise(None if has_all else less(self.workgroup.local_id, chunk.count)):
            for n in range(RUN):
                writer.put(self.array, target + n, constant(U32, 0), U32)
