"""Faults planted in the kernel generator: each is caught by the corpus of the ops it concerns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import pytest

from corpus_slices import ByOp, outcomes, spread
from ptir.backend.contract import Target
from ptir.codegen.expressions import elementwise, movement
from ptir.codegen.expressions.expr import Apply, Expr, compare, constant
from ptir.codegen.expressions.index import ZERO
from ptir.codegen.families.reduction import elements, rows
from ptir.codegen.families.scan import serial as scan
from ptir.codegen.families.scatter import serial as scatter
from ptir.codegen.families.sort import match as sort
from ptir.types import BOOL, DType
from ptir_testsuite.running.outcomes import Outcome

pytestmark = pytest.mark.usefixtures("built_anew")

Plant = Callable[[pytest.MonkeyPatch], None]


def _dropped_bounds(patch: pytest.MonkeyPatch) -> None:
    """Padding reads the nearest element instead of the filler."""
    patch.setattr(movement, "both", lambda a, b: constant(BOOL, -1))


def _swapped_strides(patch: pytest.MonkeyPatch) -> None:
    """A transpose takes its permutation for the inverse."""

    def transpose(op: Any, at: Any) -> Expr:
        found: Expr = op.at(0, tuple(at[p] for p in op["permutation"]))
        return found

    patch.setitem(movement.MOVEMENT, "transpose", transpose)


def _wrong_identity(patch: pytest.MonkeyPatch) -> None:
    """Folds begin at zero, whatever they fold."""
    for module in (elements, rows, scan):
        patch.setattr(module, "identity", lambda kind, dtype: constant(dtype, 0))


def _narrowed_accumulator(patch: pytest.MonkeyPatch) -> None:
    """A 16-bit sum is rounded at every step."""

    def add(dtype: DType, a: Expr, b: Expr) -> Expr:
        return elementwise.rounded(dtype, Apply(dtype, "add", a, b))

    patch.setitem(rows.COMBINERS, "sum", add)


def _lost_nan(patch: pytest.MonkeyPatch) -> None:
    """A maximum takes the number beside a NaN."""

    def maximum(dtype: DType, a: Expr, b: Expr) -> Expr:
        return elementwise.select(elementwise.compare("gt", a, b), a, b)

    patch.setitem(elementwise.ELEMENTWISE, "maximum", maximum)


def _reordered_ties(patch: pytest.MonkeyPatch) -> None:
    """Equal elements of a sort change places."""

    def told(op: str, a: Expr, b: Expr) -> Expr:
        return compare("gt" if op == "ge" else op, a, b)

    patch.setattr(sort, "compare", told)


def _first_wins(patch: pytest.MonkeyPatch) -> None:
    """The first update of a place stays."""
    patch.setitem(scatter.FOLD, "replace", lambda dtype, a, b: a)


def _stuck_index(patch: pytest.MonkeyPatch) -> None:
    """Indices known only at run time are taken for zero."""
    patch.setattr(movement, "_clamped_read", lambda index, size: ZERO)


def _truncating_shift(patch: pytest.MonkeyPatch) -> None:
    """Shifts by the width or more do what the machine does."""

    def shift(dtype: DType, x: Expr, amount: Expr) -> Expr:
        inside = Apply(dtype, "and", amount, constant(dtype, dtype.bits - 1))
        return Apply(dtype, "shift_left", x, inside)

    patch.setitem(elementwise.ELEMENTWISE, "shift_left", shift)


FAULTS: Final[tuple[tuple[Plant, tuple[str, ...]], ...]] = (
    (_dropped_bounds, ("pad", "reduce_window")),
    (_swapped_strides, ("transpose",)),
    (_wrong_identity, ("reduce", "cumulative", "reduce_window")),
    (_narrowed_accumulator, ("reduce",)),
    (_lost_nan, ("maximum",)),
    (_reordered_ties, ("sort",)),
    (_first_wins, ("scatter_reduce",)),
    (_stuck_index, ("dynamic_slice", "take")),
    (_truncating_shift, ("shift_left",)),
)


@pytest.mark.slice(1)
@pytest.mark.parametrize(("plant", "ops"), FAULTS, ids=lambda value: getattr(value, "__name__", ""))
def test_a_planted_fault_is_caught(
    opencl: Target,
    cases: ByOp,
    monkeypatch: pytest.MonkeyPatch,
    plant: Plant,
    ops: tuple[str, ...],
) -> None:
    plant(monkeypatch)
    for op in ops:
        narrow = [c for c in cases[op] if c.dtypes and c.dtypes[0] in ("f16", "bf16")]
        chosen = [*spread(cases[op], 24), *spread(narrow, 8)]
        found = Counter(row.outcome for row in outcomes(chosen, opencl))
        assert found[Outcome.MISMATCH], (op, found)
