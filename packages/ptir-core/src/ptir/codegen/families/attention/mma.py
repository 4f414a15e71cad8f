"""Attention of a prompt by matrix instructions, where keys and values lie in 16 bits.

A subgroup owns 16 rows (steps, and the query heads of a key head). Scores stay in its registers,
become weights there, and are the left matrix of the product with the values. Queries and weights
are split as activations are, so products are exact. Results that are not finite are made anew in
f32.
"""

from __future__ import annotations

from ptir.codegen.expressions.expr import (
    Apply,
    Cell,
    Coordinate,
    Expr,
    Var,
    as_index,
    compare,
    constant,
)
from ptir.codegen.expressions.index import Index, axis, number, unravel_index
from ptir.codegen.families.attention import softmax, split
from ptir.codegen.families.attention.cooperative import DOT, ZERO
from ptir.codegen.families.attention.mma_stages import KEYS, SPLIT, Blocks, MmaAttentionStages
from ptir.codegen.families.attention.serial import MOST, TOTAL
from ptir.codegen.kernel_ir.nodes import AsyncWait, Store
from ptir.codegen.kernel_ir.values import Read, ShuffleXor
from ptir.codegen.schedules.kernel import EmitContext, Fusion, Kernel, finish_kernel
from ptir.codegen.schedules.mma_fragments import Fragments, Stage
from ptir.codegen.schedules.mma_shared_tiles import PAD
from ptir.codegen.schedules.mma_tile import LARGEST
from ptir.codegen.schedules.workgroup import Workgroup
from ptir.ops.schedules import ATTENTION_SPLIT
from ptir.types import BF16, BOOL, F32, I32, U32


def emit_cooperative(fusion: Fusion, context: EmitContext) -> Kernel | None:
    """By matrix instructions where they are exact and pay, else without, keys perhaps split."""
    made = MmaAttention(fusion, context)
    if made.blocks is None or made.made.name == ATTENTION_SPLIT:
        return split.emit_cooperative(fusion, context)
    return made.by_matrices()


class MmaAttention(MmaAttentionStages):
    """One attention call while its cooperative kernel is written."""

    def by_matrices(self) -> Kernel:
        """A workgroup per block of rows."""
        writer, blocks = self.writer, self.blocks
        assert blocks is not None
        self.workgroup = Workgroup(writer, self._threads(blocks))
        entries = -(-self.rows // blocks.rows)
        row, head, entry = unravel_index(
            axis("item", self.B * self.G * entries), (self.B, self.G, entries)
        )
        self.row, self.head = self._named(row, self.B), self._named(head, self.G)
        self.first = self._named(entry, entries) * blocks.rows
        self._declare_stages(blocks)
        with self.workgroup.distribute(blocks.rows, "r") as r:
            self._begin_bounds(r)
        self._queries(blocks)
        writer.barrier()
        low, high = self._range(blocks.rows)
        self._start()
        self._visit(low, high, blocks)
        self._end()
        workgroups = self.B * self.G * entries
        return finish_kernel(self.fusion, writer, workgroups, workgroup_size=self.workgroup.size)

    # --- what a thread holds ---

    @property
    def _lines(self) -> list[int]:
        """The rows of a thread's sums, from its line on."""
        return sorted({row for row, _ in self.matrices.sums})

    def _start(self) -> None:
        writer = self.writer
        self.fragments = Fragments(writer, self.matrices, self.workgroup.local_id)
        self.own = self.fragments.subgroup * self.matrices.rows + self.fragments.line
        lines = range(len(self._lines))
        self.mosts_of, self.totals_of, self.keeps_of = (
            [Var(F32, f"{name}{n}") for n in lines] for name in ("most", "total", "keep")
        )
        self.begun = [self._before_keys(self._head_of(line))[0] for line in self._lines]
        for most, total, begun in zip(self.mosts_of, self.totals_of, self.begun, strict=True):
            writer.declare_all((most, begun), (total, ZERO))
        writer.declare_all(*((one, ZERO) for sums in self._outputs for one in sums))

    def _head_of(self, line: int) -> Index:
        """The query head of one of the thread's rows."""
        return self._named(self._at(self.first + self.own + line)[1], self.H)

    @property
    def _outputs(self) -> list[list[Var]]:
        """The variables of the thread's results, by matrix."""
        each = range(len(self.matrices.sums))
        matrices = range(self.D // self.matrices.columns)
        return [[Var(F32, f"o{n}_{r}") for r in each] for n in matrices]

    def _visit(self, low: Var, high: Var, blocks: Blocks) -> None:
        """All blocks of keys that a row sees."""
        writer, ahead = self.writer, blocks.buffers == 2
        if ahead:
            self._bring_both(as_index(low, 0, self.C), high, number(0))
        with writer.each("j", self.C, low, high, KEYS):
            here = number(0)
            if ahead:
                since = Coordinate(I32, self.j - as_index(low, 0, self.C))
                here = writer.let_index(as_index(since, 0, self.C) // KEYS % 2, 2)
            else:
                writer.barrier()
                self._bring_both(self.j, high, here)
            writer.emit(AsyncWait())
            writer.barrier()
            if ahead:
                there = writer.let_index(number(1) - here, 2)
                self._bring_both(writer.let_index(self.j + KEYS, self.C + KEYS), high, there)
            scores = self._scores_of_block(here)
            self._weigh_rows(scores)
            self._add_values_of_block(scores, here)

    def _bring_both(self, begin: Index, high: Var, buffer: Index) -> None:
        for operand in (1, 2):
            self._bring(operand, begin, high, buffer)

    # --- scores ---

    def _zeros(self, prefix: str, matrices: int) -> list[list[Var]]:
        """New sums, which are zero."""
        writer, each = self.writer, range(len(self.matrices.sums))
        made = [[Var(F32, f"{writer.name(prefix)}_{r}") for r in each] for _ in range(matrices)]
        writer.declare_all(*((one, ZERO) for sums in made for one in sums))
        return made

    def _multiply(self, sums: list[list[Var]], left: list[Var], right: list[list[Var]]) -> None:
        """Add a left matrix times right ones beside each other."""
        for held, words in zip(sums, right, strict=True):
            self.fragments.multiply(BF16, held, left, words)

    def _scores_of_block(self, buffer: Index) -> list[list[Var]]:
        """The products of the subgroup's rows with the keys of a block."""
        sums = self._zeros("c", KEYS // self.matrices.columns)
        blocks = self.blocks
        assert blocks is not None
        row = self.fragments.subgroup * self.matrices.rows
        depth = self.matrices.depth
        for step in range(0, self.D, depth):
            at = number(step // 2)
            keys = [
                self._columns(self._place_of(1, part, KEYS, buffer), at, len(sums))
                for part in reversed(range(self.pieces[1]))
            ]
            for part in reversed(range(self.pieces[0])):
                stage = self._place_of(0, part, blocks.rows)
                left = self.fragments.left(stage, row, at)
                for found in keys:
                    self._multiply(sums, left, found)
        return sums

    def _columns(self, stage: Stage, pair: Index, count: int) -> list[list[Var]]:
        """The words of so many right matrices beside each other."""
        found: list[list[Var]] = []
        for n in range(0, count, 2):
            found += self.fragments.right(stage, number(n * self.matrices.columns), pair)
        return found

    def _weigh_rows(self, scores: list[list[Var]]) -> None:
        """Mask the scores, follow the greatest of each row, and make weights of them."""
        writer = self.writer
        for n, line in enumerate(self._lines):
            own = [
                (one, self.fragments.places()[r][1] + m * self.matrices.columns)
                for m, sums in enumerate(scores)
                for r, one in enumerate(sums)
                if self.matrices.sums[r][0] == line
            ]
            low, high = (Cell(I32, array, self.own + line) for array in (self.lows, self.highs))
            most, total = self.mosts_of[n], self.totals_of[n]
            now = writer.declare(most, f"now{n}")
            for one, column in own:
                here = writer.let(Coordinate(I32, self.j + column))
                writer.assign(one, writer.scalar(self._masked(one, here, low, high)))
                writer.assign(now, softmax.greater(one, now))
            for step in self._steps():
                with writer.scope():
                    writer.assign(now, softmax.greater(writer.let(ShuffleXor(now, step)), now))
            less_by = writer.let(softmax.shift(now))
            keep = writer.let(writer.scalar(softmax.weight(most, less_by)), self.keeps_of[n].name)
            writer.assign(most, now)
            writer.assign(total, writer.apply("mul", F32, total, keep))
            for one, _ in own:
                with writer.scope():
                    writer.assign(one, writer.scalar(softmax.weight(one, less_by)))
                    writer.assign(total, writer.total([total, one]))

    def _steps(self) -> list[int]:
        """The distances of the threads that share a row."""
        step, found = self.matrices.across // 2, []
        while step:
            found.append(step)
            step //= 2
        return found

    # --- values ---

    def _weights(self, scores: list[list[Var]], step: int) -> list[list[Var]]:
        """The left matrix of a step along the keys, by part: what the thread holds already."""
        columns, words = self.matrices.columns, []
        for row, pair in self.matrices.left:
            sums = scores[(step + 2 * pair) // columns]
            (parts,) = SPLIT([sums[self.matrices.sums.index((row, n))] for n in range(2)])
            words.append([self.writer.let(self.writer.scalar(part)) for part in parts])
        return [list(part) for part in zip(*words, strict=True)]

    def _add_values_of_block(self, scores: list[list[Var]], buffer: Index) -> None:
        """The values, weighed, into the results."""
        writer, columns = self.writer, self.matrices.columns
        steps = range(0, KEYS, self.matrices.depth)
        weights = [self._weights(scores, step) for step in steps]
        value_parts = [
            self._place_of(2, part, KEYS, buffer) for part in reversed(range(self.pieces[2]))
        ]
        for n in range(0, len(self._outputs), 2):
            with writer.scope():
                sums = self._zeros("d", 2)
                for step, left in zip(steps, weights, strict=True):
                    for stage in value_parts:
                        at = number(n * columns), number(step)
                        held = self.fragments.right_across(stage, *at)
                        for words in reversed(left):
                            self._multiply(sums, words, held)
                for results, added in zip(self._outputs[n : n + 2], sums, strict=True):
                    for r, (total, one) in enumerate(zip(results, added, strict=True)):
                        keep = self.keeps_of[self._lines.index(self.matrices.sums[r][0])]
                        writer.assign(total, writer.apply("fma", F32, total, keep, one))

    # --- results ---

    def _end(self) -> None:
        """Put the sums down where keys were, and go through them as results lie."""
        writer, stride = self.writer, self.D + PAD[False]
        writer.barrier()
        for n, line in enumerate(self._lines):
            total = self.totals_of[n]
            for step in self._steps():
                with writer.scope():
                    other = writer.let(ShuffleXor(total, step))
                    writer.assign(total, writer.total([total, other]))
            first = Apply(BOOL, "eq", Coordinate(I32, self.fragments.place), constant(I32, 0))
            if self.sinks is not None:
                sink = softmax.weight(self.begun[n], softmax.shift(self.mosts_of[n]))
                writer.assign(total, writer.total([total, writer.scalar(sink)]))
            with writer.when(first):
                writer.put(self.totals, self.own + line, total)
        for m, sums in enumerate(self._outputs):
            for n, one in enumerate(sums):
                column = self.fragments.places()[n][1] + m * self.matrices.columns
                at = (self.own + self.matrices.sums[n][0]) * stride + column
                writer.emit(Store(U32, self.array, at, Apply(U32, "bits", one)))
        writer.barrier()
        assert self.blocks is not None
        with self.workgroup.distribute(self.blocks.rows * self.D, "e", no_unroll=True) as e:
            r, d = self._named(e // self.D, self.blocks.rows), self._named(e % self.D, self.D)
            with self._inside(r) as row:
                word = Read(U32, self.array, r * stride + d)
                weights = writer.scalar(Cell(F32, self.totals, r))
                self._finish(r, row, d, Apply(F32, "bits", word), weights)

    def _finish(self, r: Index, row: Index, d: Index, sum: Expr, total: Expr) -> None:
        """A result: a sum over the total of its row's weights."""
        writer, (batch, head, step) = self.writer, self._at(row)
        where = batch, self._named(head, self.H), self._named(step, self.T)
        made = writer.let(sum) / softmax.divisor(total)
        found = writer.declare(writer.scalar(made), writer.name("found"))
        finite = compare("le", Apply(F32, "abs", made), LARGEST)
        with writer.when(~writer.scalar(finite)):
            self._anew(found, where, d, r)
        self._store((*where, d), found)

    def _anew(self, result: Var, where: tuple[Index, Index, Index], d: Index, r: Index) -> None:
        """A result in f32: key after key, with the greatest score so far."""
        writer, sum = self.writer, Var(F32, "sum")
        most, total = self._before_keys(where[1])
        writer.declare_all((MOST, most), (TOTAL, total), (sum, ZERO))
        low, high = (writer.scalar(Cell(I32, array, r)) for array in (self.lows, self.highs))
        with writer.each("i", self.C, low, high, no_unroll=True) as i:
            key = self.row, self.head, i
            writer.declare(ZERO, DOT.name)
            with writer.each("d", self.D, no_unroll=True):
                each = self._f32(0, where, axis("d", self.D)), self._f32(1, key, axis("d", self.D))
                writer.add_product(DOT, *map(writer.scalar, each))
            score = writer.scalar(self._score(DOT))
            now = writer.scalar(softmax.greater(score, MOST))
            less_by = writer.scalar(softmax.shift(now))
            keep, weight = (writer.scalar(softmax.weight(one, less_by)) for one in (MOST, score))
            value = writer.scalar(self._f32(2, key, d))
            before = writer.apply("mul", F32, sum, keep)
            writer.assign(sum, writer.apply("fma", F32, weight, value, before))
            kept = writer.apply("mul", F32, TOTAL, keep)
            writer.assign(TOTAL, writer.total([kept, weight]))
            writer.assign(MOST, now)
        writer.assign(result, writer.scalar(sum / softmax.divisor(TOTAL)))

    def _f32(self, operand: int, at: tuple[Index, Index, Index], place: Index) -> Expr:
        return self.builder.at(self.made.operands[operand], (*at, place))
