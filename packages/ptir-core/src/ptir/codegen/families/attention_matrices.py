"""Attention of a prompt by matrix instructions, where keys and values lie in 16 bits.

A subgroup owns 16 rows (steps, and the query heads of a key head). Scores stay in its registers,
become weights there, and are the left matrix of the product with the values. Queries and weights
are split as activations are, so products are exact. Results that are not finite are made anew in
f32.
"""

from __future__ import annotations

import math

from ptir.codegen.expr import Apply, Cell, Expr, Var, compare, constant, select
from ptir.codegen.families import attention_split_coop
from ptir.codegen.families.attention import shift
from ptir.codegen.families.attention_coop import divisor
from ptir.codegen.families.attention_stages import KEYS, SPLIT, Blocks, MatrixStages
from ptir.codegen.groups import Team
from ptir.codegen.index import Axis, Index, axis, digits, number
from ptir.codegen.kernel import Group, Kernel, Site, finished
from ptir.codegen.matrix_fragments import Fragments, Stage
from ptir.codegen.matrix_slices import PAD
from ptir.codegen.matrix_tile import LARGEST
from ptir.types import BF16, BOOL, F32, I32, U32


def coop(group: Group, site: Site) -> Kernel | None:
    """By matrix instructions where they are exact and pay, else without, keys perhaps split."""
    made = MatrixAttention(group, site)
    if made.blocks is None:
        return attention_split_coop.coop(group, site)
    return made.by_matrices()


class MatrixAttention(MatrixStages):
    """One attention call while its kernel of groups is written."""

    def by_matrices(self) -> Kernel:
        """A group per block of rows."""
        writer, blocks = self.writer, self.blocks
        assert blocks is not None
        self.team = Team(writer, self._members(blocks))
        entries = -(-self.rows // blocks.rows)
        row, head, entry = digits(
            axis("item", self.B * self.G * entries), (self.B, self.G, entries)
        )
        self.row, self.head = self._named(row, self.B), self._named(head, self.G)
        self.first = self._named(entry, entries) * blocks.rows
        self._declare_stages(blocks)
        with self.team.own(blocks.rows, "r") as r:
            self._begin_bounds(r)
        self._queries(blocks)
        writer.barrier()
        low, high = self._range(blocks.rows)
        self._start()
        self._visit(low, high, blocks)
        self._end()
        items = self.B * self.G * entries
        return finished(self.group, writer, items, members=self.team.members)

    # --- what a member holds ---

    @property
    def _lines(self) -> list[int]:
        """The rows of a member's sums, from its line on."""
        return sorted({row for row, _ in self.matrices.sums})

    def _start(self) -> None:
        writer, zero = self.writer, self.writer.dialect.literal(F32, 0.0)
        self.fragments = Fragments(writer, self.matrices, self.team.member)
        self.own = self.fragments.subgroup * self.matrices.rows + self.fragments.line
        for n, _ in enumerate(self._lines):
            infinity = writer.dialect.literal(F32, -math.inf)
            writer.line(f"float most{n} = {infinity}, total{n} = {zero};")
        names = [name for names in self._outputs for name in names]
        writer.line(f"float {', '.join(f'{name} = {zero}' for name in names)};")

    @property
    def _outputs(self) -> list[list[str]]:
        """The variables of the member's results, by matrix."""
        each = range(len(self.matrices.sums))
        return [[f"o{n}_{r}" for r in each] for n in range(self.D // self.matrices.columns)]

    def _visit(self, low: str, high: str, blocks: Blocks) -> None:
        """All blocks of keys that a row sees."""
        writer, ahead = self.writer, blocks.buffers == 2
        if ahead:
            self._bring_both(low, high, number(0))
        with writer.block(f"for (int j = {low}; j < {high}; j += {KEYS})"):
            here = number(0)
            if ahead:
                here = axis(writer.let_text(I32, False, f"(j - {low}) / {KEYS} % 2"), 2)
            else:
                writer.barrier()
                self._bring_both("j", high, here)
            writer.line(self.matrices.copied)
            writer.barrier()
            if ahead:
                there = axis(writer.let_text(I32, False, f"1 - {writer.index_text(here)}"), 2)
                self._bring_both(writer.let_text(I32, False, f"j + {KEYS}"), high, there)
            scores = self._scores_of_block(here)
            self._weigh_rows(scores)
            self._add_values_of_block(scores, here)

    def _bring_both(self, begin: str, high: str, buffer: Index) -> None:
        for operand in (1, 2):
            self._bring(operand, begin, high, buffer)

    # --- scores ---

    def _zeros(self, prefix: str, matrices: int) -> list[list[str]]:
        """New sums, which are zero."""
        writer, zero = self.writer, self.writer.dialect.literal(F32, 0.0)
        each = range(len(self.matrices.sums))
        made = [[f"{writer.name(prefix)}_{r}" for r in each] for _ in range(matrices)]
        names = ", ".join(f"{name} = {zero}" for names in made for name in names)
        writer.line(f"float {names};")
        return made

    def _scores_of_block(self, buffer: Index) -> list[list[str]]:
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
                    for one, right in zip(sums, found, strict=True):
                        self.fragments.multiply(BF16, one, left, right)
        return sums

    def _columns(self, stage: Stage, pair: Index, count: int) -> list[list[str]]:
        """The words of so many right matrices beside each other."""
        found: list[list[str]] = []
        for n in range(0, count, 2):
            found += self.fragments.right(stage, number(n * self.matrices.columns), pair)
        return found

    def _weigh_rows(self, scores: list[list[str]]) -> None:
        """Mask the scores, follow the greatest of each row, and make weights of them."""
        writer = self.writer
        for n, line in enumerate(self._lines):
            own = [
                (name, self.fragments.places()[r][1] + m * self.matrices.columns)
                for m, names in enumerate(scores)
                for r, name in enumerate(names)
                if self.matrices.sums[r][0] == line
            ]
            low, high = (Cell(I32, array, self.own + line) for array in (self.lows, self.highs))
            writer.line(f"float now{n} = most{n};")
            now = Var(F32, f"now{n}")
            for name, column in own:
                here = Var(I32, writer.let_text(I32, False, f"j + {writer.index_text(column)}"))
                seen = Apply(BOOL, "and", compare("ge", here, low), compare("lt", here, high))
                score = select(seen, self._score(Var(F32, name)), constant(F32, -math.inf))
                writer.line(f"{name} = {writer.scalar_text(score)};")
                self._raise(now.name, name)
            for step in self._steps():
                with writer.block(""):
                    other = writer.together.exchange.format(now.name, step)
                    self._raise(now.name, writer.let_text(F32, False, other))
            none = f"now{n} == {writer.dialect.literal(F32, -math.inf)}"
            zero = writer.dialect.literal(F32, 0.0)
            less = Var(F32, writer.let_text(F32, False, f"{none} ? {zero} : now{n}"))
            kept = Apply(F32, "exp", Apply(F32, "sub", Var(F32, f"most{n}"), less))
            writer.line(f"const float keep{n} = {writer.scalar_text(kept)};")
            writer.line(f"most{n} = now{n};")
            writer.line(f"total{n} = total{n} * keep{n};")
            for name, _ in own:
                with writer.block(""):
                    weight = Apply(F32, "exp", Apply(F32, "sub", Var(F32, name), less))
                    writer.line(f"{name} = {writer.scalar_text(weight)};")
                    writer.line(f"total{n} += {name};")

    def _raise(self, now: str, other: str) -> None:
        self.writer.line(f"{now} = {other} > {now} ? {other} : {now};")

    def _steps(self) -> list[int]:
        """The distances of the members that share a row."""
        step, found = self.matrices.across // 2, []
        while step:
            found.append(step)
            step //= 2
        return found

    # --- values ---

    def _weights(self, scores: list[list[str]], step: int) -> list[list[str]]:
        """The left matrix of a step along the keys, by part: what the member holds already."""
        columns, words = self.matrices.columns, []
        for row, pair in self.matrices.left:
            names = scores[(step + 2 * pair) // columns]
            held = [names[self.matrices.sums.index((row, n))] for n in range(2)]
            (parts,) = SPLIT([Var(F32, name) for name in held])
            with self.writer.lanes(None):
                words.append(
                    [self.writer.let_text(U32, False, self.writer.scalar_text(p)) for p in parts]
                )
        return [list(part) for part in zip(*words, strict=True)]

    def _add_values_of_block(self, scores: list[list[str]], buffer: Index) -> None:
        """The values, weighed, into the results."""
        writer, columns = self.writer, self.matrices.columns
        steps = range(0, KEYS, self.matrices.depth)
        weights = [self._weights(scores, step) for step in steps]
        value_parts = [
            self._place_of(2, part, KEYS, buffer) for part in reversed(range(self.pieces[2]))
        ]
        for n in range(0, len(self._outputs), 2):
            with writer.block(""):
                sums = self._zeros("d", 2)
                for step, left in zip(steps, weights, strict=True):
                    for stage in value_parts:
                        at = number(n * columns), number(step)
                        held = self.fragments.right_across(stage, *at)
                        for words in reversed(left):
                            for one, right in zip(sums, held, strict=True):
                                self.fragments.multiply(BF16, one, words, right)
                for results, names in zip(self._outputs[n : n + 2], sums, strict=True):
                    for r, (total, name) in enumerate(zip(results, names, strict=True)):
                        keep = f"keep{self._lines.index(self.matrices.sums[r][0])}"
                        fused = writer.dialect.apply("fma", F32, F32, 1, [total, keep, name])
                        writer.line(f"{total} = {fused};")

    # --- results ---

    def _end(self) -> None:
        """Put the sums down where keys were, and go through them as results lie."""
        writer, stride = self.writer, self.D + PAD[False]
        writer.barrier()
        for n, line in enumerate(self._lines):
            for step in self._steps():
                with writer.block(""):
                    other = writer.together.exchange.format(f"total{n}", step)
                    writer.line(f"total{n} += {writer.let_text(F32, False, other)};")
            at = writer.index_text(self.own + line)
            with writer.block(f"if ({writer.index_text(self.fragments.place)} == 0)"):
                writer.line(f"{self.totals}[{at}] = total{n};")
        for m, names in enumerate(self._outputs):
            for n, name in enumerate(names):
                column = self.fragments.places()[n][1] + m * self.matrices.columns
                at = writer.index_text((self.own + self.matrices.sums[n][0]) * stride + column)
                bits = writer.dialect.apply("bits", U32, F32, 1, [name])
                writer.line(f"{self.array}[{at}] = {bits};")
        writer.barrier()
        assert self.blocks is not None
        with self.team.own(self.blocks.rows * self.D, "e", rolled=True) as e:
            r, d = self._named(e // self.D, self.blocks.rows), self._named(e % self.D, self.D)
            with self._inside(r) as row:
                held = f"{self.array}[{writer.index_text(r * stride + d)}]"
                total = Var(F32, writer.scalar_text(Cell(F32, self.totals, r)))
                self._finish(r, row, d, writer.dialect.apply("bits", F32, U32, 1, [held]), total)

    def _finish(self, r: Index, row: Index, d: Index, sum: str, total: Var) -> None:
        """A result: a sum over the total of its row's weights."""
        writer, (batch, head, step) = self.writer, self._at(row)
        where = batch, self._named(head, self.H), self._named(step, self.T)
        made = Apply(F32, "div", Var(F32, writer.let_text(F32, False, sum)), divisor(total))
        name = writer.name("found")
        writer.line(f"float {name} = {writer.scalar_text(made)};")
        finite = compare("le", Apply(F32, "abs", made), LARGEST)
        with writer.block(f"if (!({writer.scalar_text(finite)}))"):
            self._anew(name, where, d, r)
        self._store((*where, d), Var(F32, name))

    def _anew(self, name: str, where: tuple[Index, Index, Index], d: Index, r: Index) -> None:
        """A result in f32: key after key, with the greatest score so far."""
        writer, most = self.writer, Var(F32, "most")
        infinity, zero = (writer.dialect.literal(F32, x) for x in (-math.inf, 0.0))
        writer.line(f"float most = {infinity}, total = {zero}, sum = {zero};")
        low, high = (writer.scalar_text(Cell(I32, array, r)) for array in (self.lows, self.highs))
        with writer.loop(Axis("i", self.C), low, high, rolled=True):
            key = self.row, self.head, axis("i", self.C)
            writer.line(f"float dot = {zero};")
            with writer.loop(Axis("d", self.D), "0", str(self.D), rolled=True):
                each = self._f32(0, where, axis("d", self.D)), self._f32(1, key, axis("d", self.D))
                texts = [writer.scalar_text(one) for one in each]
                writer.line(f"dot = {writer.dialect.apply('fma', F32, F32, 1, [*texts, 'dot'])};")
            score = Var(F32, writer.scalar_text(self._score(Var(F32, "dot"))))
            now = Var(F32, writer.scalar_text(select(compare("gt", score, most), score, most)))
            less = Var(F32, writer.scalar_text(shift(now)))
            keep, weight = (
                writer.scalar_text(Apply(F32, "exp", Apply(F32, "sub", one, less)))
                for one in (most, score)
            )
            given = [weight, writer.scalar_text(self._f32(2, key, d)), f"(sum * {keep})"]
            writer.line(f"sum = {writer.dialect.apply('fma', F32, F32, 1, given)};")
            writer.line(f"total = total * {keep} + {weight};")
            writer.line(f"most = {now.name};")
        by = divisor(Var(F32, "total"))
        writer.line(f"{name} = {writer.scalar_text(Apply(F32, 'div', Var(F32, 'sum'), by))};")

    def _f32(self, operand: int, at: tuple[Index, Index, Index], place: Index) -> Expr:
        return self.builder.at(self.made.operands[operand], (*at, place))
