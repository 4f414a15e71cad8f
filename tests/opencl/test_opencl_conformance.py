"""The conformance suite's corpus on OpenCL: a slice of every op, random programs, planted faults.

The whole corpus is ``ptir-conformance run --backend opencl``; here every op is met a few times.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

import pytest

from ptir.backend.contract import Target
from ptir.codegen import elementwise, movement
from ptir.codegen.expr import Apply, Expr, constant
from ptir.codegen.families import fold, order, rows, running, scatter
from ptir.codegen.index import ZERO
from ptir.ops import OPS
from ptir.types import BOOL, DType
from ptir_backend_opencl import OpenCLBackend
from ptir_testsuite.accuracy import Terms
from ptir_testsuite.case import Case
from ptir_testsuite.corpus import corpus
from ptir_testsuite.execute import Setting
from ptir_testsuite.items import Item, composites, random_programs, run_item
from ptir_testsuite.outcomes import Outcome, Row

PER_OP: Final = 3


def setting(target: Target) -> Setting:
    backend = target.backend
    claims = backend.claimed(target.device)
    return Setting(target, claims, Terms(backend.correctly_rounded, ()))


def outcomes(items: Sequence[Item], target: Target) -> list[Row]:
    held = setting(target)
    return [run_item(item, held) for item in items]


@pytest.fixture(scope="module")
def cases() -> dict[str, list[Case]]:
    """The corpus by op."""
    found: dict[str, list[Case]] = {}
    for case in corpus():
        found.setdefault(case.op, []).append(case)
    return found


def spread(items: Sequence[Case], count: int) -> list[Case]:
    """``count`` items, evenly spread."""
    return [items[len(items) * n // count] for n in range(min(count, len(items)))]


def test_a_slice_of_every_op(opencl: Target, cases: dict[str, list[Case]]) -> None:
    chosen = [case for listed in cases.values() for case in spread(listed, PER_OP)]
    assert {case.op for case in chosen} >= {
        op.name for op in OPS.values() if op.profile != "extension" and op.samples
    }
    launched = opencl.backend.stats(opencl.device).kernels_launched
    found = outcomes(chosen, opencl)
    wrong = [row for row in found if row.outcome is not Outcome.PASS]
    assert not wrong, wrong[0].message
    stats = opencl.backend.stats(opencl.device)
    assert stats.kernels_launched > launched + len(chosen)
    assert stats.host_fallback_ops == 0


def test_composites_whole_and_lowered(opencl: Target) -> None:
    wrong = [r for r in outcomes(list(composites()), opencl) if r.outcome is not Outcome.PASS]
    assert not wrong, wrong[0].message


def test_random_programs_agree_with_the_oracle(opencl: Target) -> None:
    found = outcomes(list(random_programs(40, seed=4)), opencl)
    wrong = [row for row in found if row.outcome is not Outcome.PASS]
    assert not wrong, wrong[0].message


def test_a_device_that_lacks_features_refuses_f64_and_nothing_else(
    opencl: Target, cases: dict[str, list[Case]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PTIR_OPENCL_WITHOUT", "fp16,fp64,subgroups,large-groups")
    backend = OpenCLBackend()
    target = Target(backend, backend.devices()[opencl.device.index])
    facts = backend.capabilities(target.device)
    assert not facts["fp64"] and not facts["fp16"] and facts["work_group_size"] <= 256
    assert backend.claimed(target.device) == opencl.backend.claimed(opencl.device) - {"f64"}
    chosen = [case for listed in cases.values() for case in spread(listed, 2)]
    chosen += [c for c in spread(cases["cast"], 24) if c not in chosen]
    for row, case in zip(outcomes(chosen, target), chosen, strict=True):
        double = "f64" in case.dtypes
        assert row.outcome is (Outcome.UNSUPPORTED if double else Outcome.PASS), row.message


# --- planted faults: each must be caught by the corpus of the ops that it concerns ---

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
    for module in (fold, rows, running):
        patch.setattr(module, "identity", lambda kind, dtype: constant(dtype, 0))


def _narrowed_accumulator(patch: pytest.MonkeyPatch) -> None:
    """A 16-bit sum is rounded at every step."""

    def add(dtype: DType, a: Expr, b: Expr) -> Expr:
        return elementwise.rounded(dtype, Apply(dtype, "add", a, b))

    patch.setitem(rows.COMBINE, "sum", add)


def _lost_nan(patch: pytest.MonkeyPatch) -> None:
    """A maximum takes the number beside a NaN."""

    def maximum(dtype: DType, a: Expr, b: Expr) -> Expr:
        return elementwise.select(elementwise.compare("gt", a, b), a, b)

    patch.setitem(elementwise.ELEMENTWISE, "maximum", maximum)


def _reordered_ties(patch: pytest.MonkeyPatch) -> None:
    """Equal elements of a sort change places."""
    before = order._Sort._before
    patch.setattr(order._Sort, "_before", lambda self, a, b: Apply(BOOL, "not", before(self, b, a)))


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


@pytest.mark.parametrize(("plant", "ops"), FAULTS, ids=lambda value: getattr(value, "__name__", ""))
def test_a_planted_fault_is_caught(
    opencl: Target,
    cases: dict[str, list[Case]],
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
