"""Accumulators: how elements become one, what nothing comes to, and what is held meanwhile.

``COMBINERS`` says what two elements come to. A reduction of many holds one value, but for the
greatest and smallest of floats: there the bits tell NaN, -0 and +0 apart, and three bounds of the
bits are enough to know the result when all elements were seen, at one instruction each per element.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from ptir.codegen.expressions.elementwise import maximum, minimum
from ptir.codegen.expressions.expr import (
    Apply,
    Const,
    Expr,
    Var,
    carrier,
    compare,
    constant,
    select,
)
from ptir.codegen.kernel_ir.values import Lane
from ptir.codegen.kernel_ir.writer import Writer
from ptir.types import BOOL, DTYPES, DType

COMBINERS: Final[dict[str, Callable[[DType, Expr, Expr], Expr]]] = {
    "sum": lambda dtype, a, b: a + b,
    "prod": lambda dtype, a, b: a * b,
    "max": maximum,
    "min": minimum,
    "any": lambda dtype, a, b: a | b,
    "all": lambda dtype, a, b: a & b,
}


def identity(kind: str, dtype: DType) -> Const:
    """What a reduction of nothing gives."""
    if kind in ("max", "min"):
        if dtype.is_float:
            return constant(dtype, -math.inf if kind == "max" else math.inf)
        least = -(1 << (dtype.bits - 1)) if dtype.kind == "int" else 0
        most = (1 << (dtype.bits - (dtype.kind == "int"))) - 1
        return constant(dtype, least if kind == "max" else most)
    return constant(dtype, 1 if kind in ("prod", "all") else 0)


def accumulator(
    writer: Writer, kind: str, dtype: DType, wide: bool
) -> Accumulator | ExtremeAccumulator:
    """Declare what a reduction of ``kind`` holds before the first element, one or one per lane."""
    return (ExtremeAccumulator if kind in ("max", "min") and dtype.is_float else Accumulator)(
        writer, kind, dtype, wide
    )


def take_better(writer: Writer, best: Var, where: Var, found: Expr, index: Expr) -> None:
    """Replace the best element so far, and its place, where ``found`` comes before it."""
    after = [_valued(writer, one, best.wide) for one in better((best, where), (found, index))]
    for held, value in zip((best, where), after, strict=True):
        writer.assign(held, value)


def better(a: Sequence[Expr], b: Sequence[Expr]) -> Sequence[Expr]:
    """That of two elements with their places which comes first: ``b`` where it beats ``a``."""
    beats = _is_better(*a, *b)
    return [select(beats, new, old) for old, new in zip(a, b, strict=True)]


def _is_better(best: Expr, where: Expr, found: Expr, index: Expr) -> Expr:
    """Whether the element ``found`` at ``index`` comes before the best so far."""
    earlier = compare("lt", index, where)
    equal: Expr = Apply(BOOL, "eq", found, best)
    beats = compare("gt", found, best)
    if best.dtype.is_float:
        nan, was = (Apply(BOOL, "ne", x, x) for x in (found, best))
        equal |= nan & was
        beats = select(was, constant(BOOL, 0), beats | nan)
    return beats | (equal & earlier)


Bring = Callable[[Var, Callable[[Expr, Expr], Expr]], Var]
"""Makes what each thread holds in a variable what all of a workgroup hold, by how two combine."""


class Accumulator:
    """A reduction in one variable."""

    def __init__(self, writer: Writer, kind: str, dtype: DType, wide: bool) -> None:
        self._writer, self._kind = writer, kind
        self._now = writer.declare(_valued(writer, identity(kind, dtype), wide))

    def add(self, element: Expr) -> None:
        """Take another element in."""
        _assign(self._writer, self._now, self._combined(self._now, element))

    def result(self) -> Expr:
        """What the elements so far come to: a new variable."""
        return self._writer.let(self._now)

    def reduce_lanes(self) -> Expr:
        """What all lanes come to."""
        return pairwise(self._writer, self._now, self._combined)

    def reduce_workgroup(self, bring: Bring) -> Expr:
        """What all threads of a workgroup come to."""
        return bring(self._now, self._combined)

    def _combined(self, a: Expr, b: Expr) -> Expr:
        return COMBINERS[self._kind](self._now.dtype, a, b)


@dataclass(frozen=True)
class _Bits:
    """Floats of a format as integers, signed and unsigned, and where infinity lies among them."""

    signed: DType
    plain: DType
    infinity: int

    @property
    def sign(self) -> int:
        return 1 << (self.plain.bits - 1)


def _bits(dtype: DType) -> _Bits:
    bits = carrier(dtype).bits
    infinity = {32: 0x7F800000, 64: 0x7FF0000000000000}[bits]
    return _Bits(DTYPES[f"i{bits}"], DTYPES[f"u{bits}"], infinity)


class ExtremeAccumulator:
    """The greatest or smallest float: NaN where one is, and -0 < +0.

    Read as integers, floats above -0 are in order, those below are in reverse order and, without a
    sign, above all others; NaN lies beyond both infinities. So the greatest signed integer, and
    the smallest and the greatest unsigned one, say everything.
    """

    def __init__(self, writer: Writer, kind: str, dtype: DType, wide: bool) -> None:
        self._writer, self._kind, self._dtype = writer, kind, dtype
        self._of = of = _bits(dtype)
        first = of.infinity | (of.sign if kind == "max" else 0)
        signed = first - 2 * of.sign if kind == "max" else first
        starts = (("max", of.signed, signed), ("min", of.plain, first), ("max", of.plain, first))
        self._bounds = [
            (op, writer.declare(_valued(writer, constant(of_type, start), wide)))
            for op, of_type, start in starts
        ]

    def add(self, element: Expr) -> None:
        """Take another element in."""
        for op, bound in self._bounds:
            bits = Apply(bound.dtype, "bits", element)
            _assign(self._writer, bound, Apply(bound.dtype, op, bound, bits))

    def _rank(self) -> Expr:
        """The result's place in the order of all floats, NaN at the end that is looked for."""
        of = self._of
        top, low, high = (self._writer.let(bound) for _, bound in self._bounds)
        rest = constant(of.plain, of.sign - 1)
        nan = compare("gt", high, of.sign + of.infinity)
        if self._kind == "max":
            below = Apply(of.signed, "bits", low ^ rest)
            found = select(compare("lt", top, 0), below, top)
            return select(nan, constant(of.signed, of.sign - 1), found)
        nan |= compare("gt", top, of.infinity)
        below = Apply(of.signed, "bits", high ^ rest)
        negative = compare("ge", high, of.sign)
        found = select(negative, below, Apply(of.signed, "bits", low))
        return select(nan, constant(of.signed, -of.sign), found)

    def _float(self, rank: Expr) -> Expr:
        """The float of a rank."""
        of = self._of
        rest = constant(of.signed, of.sign - 1)
        negative = compare("lt", rank, 0)
        return Apply(self._dtype, "bits", select(negative, rank ^ rest, rank))

    def result(self) -> Expr:
        """What the elements so far come to."""
        return self._float(self._rank())

    def reduce_lanes(self) -> Expr:
        """What all lanes come to."""
        writer = self._writer
        rank = writer.let(writer.wide(self._rank()))
        return self._float(pairwise(writer, rank, self._combined))

    def reduce_workgroup(self, bring: Bring) -> Expr:
        """What all threads of a workgroup come to."""
        name, rank = self._writer.name("acc"), self._writer.scalar(self._rank())
        return self._float(bring(self._writer.declare(rank, name), self._combined))

    def _combined(self, a: Expr, b: Expr) -> Expr:
        return Apply(self._of.signed, self._kind, a, b)


def _valued(writer: Writer, found: Expr, wide: bool) -> Expr:
    return writer.wide(found) if wide else writer.scalar(found)


def _assign(writer: Writer, held: Var, found: Expr) -> None:
    writer.assign(held, _valued(writer, found, held.wide))


def pairwise(writer: Writer, held: Var, combined: Callable[[Expr, Expr], Expr]) -> Expr:
    """The lanes of a variable combined, each of the first half with one of the second."""
    parts: list[Expr] = [Lane(held, place) for place in range(writer.dialect.lanes)]
    while len(parts) > 1:
        half = len(parts) // 2
        parts = [combined(parts[i], parts[i + half]) for i in range(half)]
    return parts[0]
