"""The random family: Philox words from a counter and a key, and what is made of them.

Serial schedule: a workgroup owns runs of blocks, 16 blocks of four words at a time; their words are
put in order in registers. What follows element by element (a float from the bits) joins the kernel.
"""

from __future__ import annotations

from typing import Final

from ptir.codegen.expressions.expr import Apply, Const, Coordinate, Expr, Var, constant
from ptir.codegen.expressions.index import Axis, Index, axis, number
from ptir.codegen.fusion.graph import Graph
from ptir.codegen.kernel_ir.conditions import less
from ptir.codegen.kernel_ir.values import Gather, Lane
from ptir.codegen.schedules.epilogue import HeroKernel, with_epilogue
from ptir.codegen.schedules.kernel import EmitContext, Fusion, Kernel, finish_kernel
from ptir.codegen.weights.panels import LANES
from ptir.ops.random import KEY_STEPS, MULTIPLIERS, ROUNDS
from ptir.types import BOOL, I32, U32, U64

WORDS: Final = 4
"""Words of a block."""
COST: Final = 40
"""Elementary operations behind a word."""


def match(graph: Graph, position: int) -> Fusion:
    """Random words and what follows them element by element."""
    return with_epilogue("random", graph, position, WORDS)


def emit(fusion: Fusion, context: EmitContext) -> Kernel:
    """A loop over runs of 16 blocks, and the blocks that are left over."""
    return _Words(fusion, context).kernel()


class _Words(HeroKernel):
    def __init__(self, fusion: Fusion, context: EmitContext) -> None:
        super().__init__(fusion, context)
        self.size = self.made.types[0].size

    def kernel(self) -> Kernel:
        """Whole runs are shared out; the last workgroup writes the rest."""
        writer, step = self.writer, LANES * WORDS
        whole, left = divmod(self.size, step)
        workgroups = self.context.workgroups(whole, self.size * COST)
        first, last = writer.work_range(whole, workgroups)
        if whole:
            with writer.each("v", whole, first, last) as v:
                self._run(v * step)
        if left:
            with writer.when(Apply(BOOL, "eq", last, Const(I32, whole))):
                for block in range(whole * step, self.size, WORDS):
                    self._block(block)
        return finish_kernel(self.fusion, writer, workgroups)

    def threads(self) -> Kernel:
        """A block each; the last may be cut off."""
        writer, left = self.writer, self.size % WORDS
        blocks = -(-self.size // WORDS)
        threads = min(
            self.context.tiles.independent_workgroup_size, self.context.traits.max_workgroup_size
        )
        place = Index({Axis("item", -(-blocks // threads)): threads, Axis("member", threads): 1})
        block, held = writer.let_index(place, blocks, "block"), Var(I32, "block")
        with writer.when(less(held, blocks)):
            for n, word in enumerate(self._philox(block)):
                found = writer.scalar(word)
                if left:
                    with writer.when(less(held, blocks - 1) if n >= left else None):
                        self.store(block * WORDS + n, found)
                    continue
                with writer.vectorized_run(block, WORDS, n):
                    self.store(block * WORDS + n, found)
        return finish_kernel(self.fusion, writer, -(-blocks // threads), workgroup_size=threads)

    def _run(self, begin: Index) -> None:
        """64 words: lanes are blocks until the words are put in order."""
        writer, lane = self.writer, Axis("lane", LANES)
        first = axis("v", self.size // (LANES * WORDS)) * LANES
        with writer.lanes(lane):
            words = self._philox(first + axis("lane", LANES))
            held = [writer.let(writer.wide(word)) for word in words]
            for part in range(WORDS):
                places = range(part * LANES, (part + 1) * LANES)
                word = writer.let(Gather(*(Lane(held[n % WORDS], n // WORDS) for n in places)))
                self.store(begin + part * LANES + axis("lane", LANES), word)

    def _block(self, begin: int) -> None:
        """The words of one block, as many as there are."""
        with self.writer.scope():
            words = self._philox(number(begin // WORDS))
            for place, word in enumerate(words[: self.size - begin]):
                self.store(number(begin + place), word)

    def _philox(self, block: Index) -> list[Expr]:
        """The four words of a block; block numbers fit 32 bits."""
        keys = [self.builder.at(self.made.operands[0], (number(n),)) for n in (0, 1)]
        zero = constant(U32, 0)
        counter = Apply(U32, "convert", Coordinate(I32, block))
        words: list[Expr] = [counter, zero, zero, zero]
        for turn in range(ROUNDS):
            if turn:
                steps = zip(keys, KEY_STEPS, strict=True)
                keys = [key + step for key, step in steps]
            words = _round(words, keys)
        return words


def _round(words: list[Expr], keys: list[Expr]) -> list[Expr]:
    left, right = (_product(m, words[n]) for m, n in zip(MULTIPLIERS, (0, 2), strict=True))
    mixed = [
        linear[0] ^ words[n] ^ key
        for linear, n, key in zip((right, left), (1, 3), keys, strict=True)
    ]
    return [mixed[0], right[1], mixed[1], left[1]]


def _product(factor: int, word: Expr) -> tuple[Expr, Expr]:
    """The high and the low word of a product."""
    wide = Apply(U64, "convert", word) * factor
    high = wide >> 32
    return Apply(U32, "convert", high), word * factor


def emit_cooperative(fusion: Fusion, context: EmitContext) -> Kernel:
    """A thread of a workgroup per block of four words."""
    return _Words(fusion, context).threads()
