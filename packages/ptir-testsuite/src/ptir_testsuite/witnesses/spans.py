"""Bounds of values, and how far apart an op's accuracy class moves them.

The classes are those of ``ptir_testsuite.oracles.accuracy``: N ulp, correctly rounded, or a
sum of K terms in any order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ptir.ir.program import Instruction
from ptir.ops import numerics
from ptir.ops.record import OPS
from ptir.types import F32, F64, DType, TensorType
from ptir_testsuite.oracles.accuracy import Bound, bound_of
from ptir_testsuite.oracles.floats import format_of

Array = np.ndarray[Any, np.dtype[Any]]

EXACT_KINDS: Final = ("max", "min", "any", "all", "replace", "none")


class Unbounded(Exception):  # noqa: N818  it says what was asked for
    """No rule bounds this op on operands that are not exact."""


@dataclass(frozen=True, eq=False)
class Span:
    """Every value that an array may hold: from ``low`` to ``high``, which are one when exact.

    ``native`` is the only result that a conforming backend may give, where correctly rounded ops
    alone led to it. ``spread`` is the magnitude that a sum's error is relative to.
    """

    low: Array
    high: Array
    spread: Array | None = None
    native: Array | None = None

    @property
    def exact(self) -> bool:
        """Whether nothing is open."""
        return self.low is self.high

    def union(self, other: Span) -> Span:
        """The bounds of a value that is one or the other."""
        return Span(np.minimum(self.low, other.low), np.maximum(self.high, other.high))

    def row(self, index: int) -> Span:
        """One row of the first axis."""
        if self.exact:
            return point(self.low[index])
        native = None if self.native is None else self.native[index]
        return Span(self.low[index], self.high[index], None, native)

    def wide(self) -> Span:
        """Bounds in float64, bool kept."""
        if self.low.dtype in (np.float64, np.bool_):
            return self
        low = self.low.astype(np.float64)
        return Span(low, low if self.exact else self.high.astype(np.float64))


def point(array: Array) -> Span:
    """An array that is known exactly."""
    return Span(array, array, None, array)


def stacked(rows: Sequence[Span], type: TensorType) -> Span:
    """Rows along a new first axis; of no rows, an empty array of ``type``."""
    if not rows:
        return point(np.zeros(type.shape, type.dtype.numpy))
    natives = [row.native for row in rows if row.native is not None]
    native = np.stack(natives) if len(natives) == len(rows) else None
    if native is not None and all(row.exact for row in rows):
        return point(native)
    wide = [row.wide() for row in rows]
    low, high = (np.stack([getattr(row, end) for row in wide]) for end in ("low", "high"))
    return Span(low, high, None, native)


@dataclass(frozen=True)
class Rounding:
    """How far a result may lie from the true value of its operands."""

    bound: Bound
    dtype: DType
    terms: int = 0

    @staticmethod
    def of(instruction: Instruction, operands: Sequence[Span]) -> Rounding | None:
        """The rounding of an instruction; None where the result is exact."""
        dtype = instruction.types[0].dtype
        bound = bound_of(OPS[instruction.op], dtype)
        kept = bound.kind == "exact" or instruction.attributes.get("kind") in EXACT_KINDS
        if kept or not operands or not instruction.types[0].size:
            return None
        if instruction.op == "cast" and _cast_is_exact(operands[0], dtype):
            return None
        return Rounding(bound, dtype, _terms(instruction, operands) if bound.kind == "dot" else 0)

    def widen(self, span: Span) -> Span:
        """``span`` moved apart by the error, and overflowing like the dtype."""
        if span.low.dtype != np.float64:  # indices, or bool: not what was rounded
            return span
        form = format_of(self.dtype)
        ulps = self.bound.ulps or 1.0
        ulps += self.dtype == F64  # float64 is also what the bounds are computed in
        summed = np.zeros(()) if span.spread is None else span.spread
        unit = format_of(F32 if self.dtype.bits < 32 else self.dtype).unit * 2

        def apart(end: Array, sign: float) -> Array:
            magnitude = np.where(np.isfinite(end), np.abs(end), 0.0)
            error = ulps * (form.unit * 2 * magnitude + form.tiny) + self.terms * unit * summed
            moved = end + sign * error
            return np.where(np.abs(moved) > form.largest, np.copysign(np.inf, moved), moved)

        with np.errstate(all="ignore"):
            return Span(apart(span.low, -1.0), apart(span.high, 1.0))


def _cast_is_exact(operand: Span, dtype: DType) -> bool:
    if not operand.exact:
        return False
    there = numerics.cast(operand.low, dtype=dtype).astype(np.float64)
    here = operand.low.astype(np.float64)
    return bool(np.array_equal(there, here, equal_nan=True)) and operand.low.dtype.itemsize < 8


def _terms(instruction: Instruction, operands: Sequence[Span]) -> int:
    """How many terms one result is the sum of, at most."""
    shape, attributes = operands[0].low.shape, instruction.attributes
    if "window" in attributes:
        return max(1, int(np.prod(attributes["window"], dtype=np.int64)))
    axes: Any = attributes.get("axes", attributes.get("lhs_contract"))
    if axes is None:
        axes = (attributes["axis"],) if "axis" in attributes else range(len(shape))
    return max(1, int(np.prod([shape[a] for a in axes], dtype=np.int64)))
