"""What attention by matrix instructions keeps in shared memory: queries, keys and values as words.

Keys and values that lie in bf16 are copied there by the hardware; everything else becomes bf16 on
the way (``matrix_sides``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ptir.backend.mma import MmaInstruction
from ptir.codegen.expressions.expr import Coordinate, Expr, Load, Var, constant
from ptir.codegen.expressions.index import Index, axis, number
from ptir.codegen.families.attention.cooperative import CooperativeAttention
from ptir.codegen.kernel_ir.conditions import less
from ptir.codegen.kernel_ir.nodes import AsyncCopy
from ptir.codegen.schedules.kernel import EmitContext, Fusion
from ptir.codegen.schedules.mma_fragments import Stage
from ptir.codegen.schedules.mma_operands import EXACT, RUN, mma_operand, narrowed, split, word_of
from ptir.codegen.schedules.mma_shared_tiles import PAD
from ptir.codegen.schedules.tiles import FEW
from ptir.codegen.weights.panels import UNPACKED
from ptir.types import BF16, F16, F32, I32, U32

KEYS: Final = 32
"""Keys of a block."""
WIDEST: Final = 128
"""Places of a head at most: a thread holds a quarter of two rows of results."""
SPLIT: Final = split(3)
"""Queries and weights as three bf16. What is left of them below 2^-133 is lost: a row's greatest
weight is 1, and a score would have to hang on keys above 2^90."""
KEPT: Final = 3
"""Words that are kept of each row: what it sees, and the sum of its weights."""


@dataclass(frozen=True)
class Blocks:
    """Rows of a workgroup, and how many blocks of keys and values are in shared memory."""

    rows: int
    buffers: int


SIZES: Final = tuple(Blocks(rows, buffers) for rows in (64, 32, 16) for buffers in (2, 1))


class MmaAttentionStages(CooperativeAttention):
    """One attention call, and its shared memory while its kernel is written."""

    def __init__(self, fusion: Fusion, context: EmitContext) -> None:
        super().__init__(fusion, context)
        self.row, self.head = axis("row", self.B), axis("head", self.G)
        self.stored = [narrowed(self.graph, value) for value in self.made.operands[:3]]
        self.kinds = [self.graph.type(value).dtype for value in self.stored]
        self.pieces = [EXACT[kind][0] for kind in self.kinds]
        self.stride = self.D // 2 + PAD[True]
        self.blocks = self._blocks()

    def _blocks(self) -> Blocks | None:
        """The largest blocks that fit, or None where there is no instruction for the call."""
        primitives, rows = self.context.dialect.workgroup, self.rows
        matrices = None if primitives is None else primitives.mma
        if matrices is None or self.updates or rows <= FEW or self.D % 16 or self.D > WIDEST:
            return None
        if not all(kind in (BF16, F16) for kind in self.kinds[1:]) or not self._lie_in_words():
            return None
        fitting = (
            one
            for one in SIZES
            if (one.rows < 2 * rows or one.rows == matrices.rows)
            and self._nbytes(one) <= self.context.traits.shared_memory_bytes
            and self._threads(one) <= self.context.traits.max_workgroup_size
        )
        return next(fitting, None)

    @property
    def matrices(self) -> MmaInstruction:
        """The instruction."""
        found = self.writer.workgroup.mma
        assert found is not None
        return found

    def _threads(self, blocks: Blocks) -> int:
        return blocks.rows * 2

    def _nbytes(self, blocks: Blocks) -> int:
        queries = blocks.rows * self.pieces[0]
        keys = blocks.buffers * KEYS * (self.pieces[1] + self.pieces[2])
        results = blocks.rows * (self.D + PAD[False])
        words = max((queries + keys) * self.stride, results)
        return (words + KEPT * blocks.rows) * U32.itemsize

    def _lie_in_words(self) -> bool:
        """Whether runs of keys and values are words that begin where 16 bytes do."""
        place = axis("j", self.C), axis("d", self.D // 2 // RUN) * RUN
        words = [word_of(self._pair(operand, *place)) for operand in (1, 2)]
        return all(word is not None and (word.index % RUN).bounds == (0, 0) for word in words)

    def _pair(self, operand: int, position: Index, pair: Index) -> list[Expr]:
        """Two neighbours of a key, or of a value."""
        at = (self.row, self.head, position)
        return [self.builder.at(self.stored[operand], (*at, pair * 2 + n)) for n in range(2)]

    # --- shared memory ---

    def _declare_stages(self, blocks: Blocks) -> None:
        writer, size = self.writer, self._nbytes(blocks) // U32.itemsize - KEPT * blocks.rows
        self.array = writer.shared(U32, size)
        self.lows, self.highs = (writer.shared(I32, blocks.rows) for _ in range(2))
        self.totals = writer.shared(F32, blocks.rows)
        self.begins = [0]
        for operand, lines in ((0, blocks.rows), (1, KEYS * blocks.buffers)):
            self.begins.append(self.begins[-1] + lines * self.pieces[operand] * self.stride)

    def _place_of(self, operand: int, part: int, lines: int, buffer: Index | None = None) -> Stage:
        """Where a part of queries, keys or values lies."""
        before = number(part) if buffer is None else buffer * self.pieces[operand] + part
        begin = before * (lines * self.stride) + self.begins[operand]
        return Stage(self.array, begin, True, self.stride)

    def _queries(self, blocks: Blocks) -> None:
        """The rows' queries as words, zeros where there are none."""
        writer, each = self.writer, self.D // RUN

        def element(line: Index, k: Index) -> Expr:
            return self.builder.at(self.stored[0], (*self._at(line), k))

        side = mma_operand(self.kinds[0], element, self.rows, True, BF16)
        words_of = SPLIT if self.kinds[0] == F32 else side.words
        with self.workgroup.distribute(blocks.rows * each, "e") as e:
            r, block = self._named(e // each, blocks.rows), self._named(e % each, each)
            kind = BF16 if self.kinds[0] == BF16 else F32
            names = [[Var(kind, writer.name("q")) for _ in range(2)] for _ in range(RUN // 2)]
            writer.declare_all(*((one, constant(kind, 0.0)) for pair in names for one in pair))
            with self._inside(r) as line:
                for n, pair in enumerate(names):
                    found = side.found(line, block * (RUN // 2) + n)
                    for inner, (one, expr) in enumerate(zip(pair, found, strict=True)):
                        with writer.vectorized_run(block, RUN, n * 2 + inner):
                            writer.assign(one, writer.scalar(expr))
            for n, pair in enumerate(names):
                (words,) = words_of(pair)
                for part, word in enumerate(words):
                    stage = self._place_of(0, part, blocks.rows)
                    writer.put(self.array, stage.at(r, block * (RUN // 2) + n), word, U32)

    def _bring(self, operand: int, begin: Index, high: Var, buffer: Index) -> None:
        """A block of keys or values, zeros beyond the last that is seen."""
        writer, each = self.writer, self.D // 2 // RUN
        with self.workgroup.distribute(KEYS * each, "e", no_unroll=True) as e:
            jj, block = self._named(e // each, KEYS), self._named(e % each, each)
            position = writer.let(Coordinate(I32, begin + jj))
            stages = [
                self._place_of(operand, part, KEYS, buffer) for part in range(self.pieces[operand])
            ]
            with writer.when(less(position, high)):
                words = [self._word(operand, position, block * RUN + n) for n in range(RUN)]
                if self.pieces[operand] == 1:
                    to, at = stages[0].at(jj, block * RUN), writer.index(words[0].index)
                    source = writer.memory(words[0].source, U32)
                    writer.emit(AsyncCopy(self.array, to, source, at))
                else:
                    self._put_halves(words, stages, jj, block)
            with writer.otherwise():
                for stage in stages:
                    for n in range(RUN):
                        writer.put(self.array, stage.at(jj, block * RUN + n), constant(U32, 0), U32)

    def _word(self, operand: int, position: Var, pair: Index) -> Load:
        found = word_of(self._pair(operand, axis(position.name, self.C), pair))
        assert found is not None
        return found

    def _put_halves(
        self, words: Sequence[Load], stages: Sequence[Stage], jj: Index, block: Index
    ) -> None:
        """Words of f16 as two bf16 each."""
        writer = self.writer
        for n, word in enumerate(words):
            with writer.vectorized_run(block, RUN, n):
                held = writer.scalar(word)
            pair = [UNPACKED[F16](held, half) for half in range(2)]
            (parts,) = split(len(stages))(pair)
            for stage, part in zip(stages, parts, strict=True):
                writer.put(self.array, stage.at(jj, block * RUN + n), part, U32)
