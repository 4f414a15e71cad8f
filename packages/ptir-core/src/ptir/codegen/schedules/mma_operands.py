"""Operands of matrix instructions: what is loaded, and the words of 16-bit floats it becomes.

An f32 is three bf16: its upper bits, the next eight and the last eight, so products with bf16 are
exact (``SPLIT``). The lower parts are held 2^8 and 2^16 times as large: then subnormal numbers have
three parts too. What is not finite has none, and sums that are not are made anew without.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from ptir.codegen.expressions.elementwise import cast
from ptir.codegen.expressions.expr import Apply, Expr, Load
from ptir.codegen.expressions.index import Index
from ptir.codegen.fusion.graph import Graph
from ptir.types import BF16, DTYPES, F16, F32, U32, DType

RUN: Final = 4
"""Words of 16 bytes, which a thread brings at once."""
RAISED: Final = 8
"""Bits by which each part of an f32 is raised above the one before."""
UPPER: Final = 0xFFFF0000

Words = Sequence[Sequence[Expr]]
"""The words of some pairs, one for each part, the highest first."""


@dataclass(frozen=True)
class MmaOperand:
    """One operand: its lines (rows or columns) by units of ``pairs`` neighbours along the depth.

    ``found(line, unit)`` is what is loaded, ``words(found)`` what becomes of it. ``deep`` says that
    neighbours along the depth lie side by side in memory, rather than lines.
    """

    found: Callable[[Index, Index], Sequence[Expr]]
    words: Callable[[Sequence[Expr]], Words]
    lines: int
    deep: bool
    pairs: int = 1
    parts: int = 1
    exponent_shift: int = 0
    """Bits by which each part is raised above the one before."""
    lies: bool = False
    """Whether what is loaded is the word of a pair, four of which can be copied as 16 bytes."""


def as_they_lie(found: Sequence[Expr]) -> Words:
    """Words that hold pairs already."""
    return [[one] for one in found]


def paired(low: Expr, high: Expr) -> Expr:
    """The upper halves of two f32 as a word: the bf16 that they are, or their highest part."""
    below, above = (Apply(U32, "bits", one) for one in (low, high))
    return (below >> 16) | (above & UPPER)


def narrow(found: Sequence[Expr]) -> Words:
    """Two values that are bf16 or f16."""
    if found[0].dtype != F16:
        return [[paired(*found)]]
    low, high = (Apply(U32, "convert", Apply(DTYPES["u16"], "bits", one)) for one in found)
    return [[low | (high << 16)]]


def split(parts: int, raised: int = 0) -> Callable[[Sequence[Expr]], Words]:
    """Pairs of f32 as sums of ``parts`` bf16, each ``raised`` bits above what it stands for."""

    def words(found: Sequence[Expr]) -> Words:
        pairs = zip(found[::2], found[1::2], strict=True)
        return [_split(list(pair), parts, raised) for pair in pairs]

    return words


def _split(pair: list[Expr], parts: int, raised: int) -> list[Expr]:
    made: list[Expr] = []
    for part in range(parts):
        made.append(paired(*pair))
        if part < parts - 1:
            pair = [_rest(one, raised) for one in pair]
    return made


def _rest(x: Expr, raised: int) -> Expr:
    """What the upper half of an f32 leaves, which is exact."""
    rest = x - Apply(F32, "bits", Apply(U32, "bits", x) & UPPER)
    return rest * 2.0**raised if raised else rest


EXACT: Final = {BF16: (1, 0), F16: (2, 0), F32: (3, RAISED)}
"""How many bf16 a value of each type is the sum of, and how far each is raised."""


def mma_operand(
    dtype: DType, element: Callable[[Index, Index], Expr], lines: int, deep: bool, kind: DType
) -> MmaOperand:
    """Values of ``dtype``, given one by one by line and place, for an instruction of ``kind``."""

    def found(line: Index, pair: Index) -> list[Expr]:
        return [element(line, pair * 2 + n) for n in range(2)]

    if dtype == kind:
        return MmaOperand(found, narrow, lines, deep)

    def widened(line: Index, pair: Index) -> list[Expr]:
        return [cast(F32, one) for one in found(line, pair)]

    parts, raised = EXACT[dtype]
    return MmaOperand(
        widened, split(parts, raised), lines, deep, parts=parts, exponent_shift=raised
    )


def in_words(side: MmaOperand, example: tuple[Index, Index]) -> MmaOperand:
    """``side`` read by words, where its pairs lie in memory as such; ``example`` is any place."""
    word = word_of(side.found(*example))
    if word is None or side.parts != 1:
        return side

    def found(line: Index, pair: Index) -> list[Expr]:
        one = word_of(side.found(line, pair))
        assert one is not None, side
        return [one]

    return replace(side, found=found, words=as_they_lie)


def word_of(pair: Sequence[Expr]) -> Load | None:
    """Two neighbours of 16 or 8 bits as the word that they begin, if they lie at its begin."""
    first, second = pair
    if not isinstance(first, Load) or not isinstance(second, Load):
        return None
    per = U32.bits // first.dtype.bits
    beside = first.source == second.source and second.index == first.index + 1
    whole = per > 1 and (first.index % per).bounds == (0, 0)
    return Load(U32, first.source, first.index // per) if beside and whole else None


def narrowed(graph: Graph, value: int) -> int:
    """The value of 16 bits that ``value`` is a cast of, if it is one, else itself."""
    made = graph.instruction(value)
    if made is None or made.op != "cast" or graph.type(value).dtype != F32:
        return value
    (before,) = made.operands
    return before if graph.type(before).dtype in (BF16, F16) else value
