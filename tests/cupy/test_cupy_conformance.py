"""The suite's corpus in CUDA text on the processor: every op in every type, and planted faults.

The whole corpus is ``PYTHONPATH=tests/cupy/host ptir-conformance run --backend cuda-host``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import pytest
from test_opencl_conformance import (
    test_composites_whole_and_lowered,
    test_every_op_in_every_dtype,
    test_random_programs_agree_with_the_oracle,
)

from corpus_slices import ByOp, outcomes, spread
from ptir.backend.contract import Target
from ptir.capture.plan import PLANS
from ptir.switches import SCHEDULE
from ptir_backend_cupy import dialect, prelude
from ptir_backend_cupy.dialect import CudaC
from ptir_testsuite.running.outcomes import Outcome

__all__ = (
    "test_composites_whole_and_lowered",
    "test_every_op_in_every_dtype",
    "test_random_programs_agree_with_the_oracle",
)


pytestmark = pytest.mark.usefixtures("built_anew")


def test_serial_schedules_of_every_op(
    host: Target, cases: ByOp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SCHEDULE, "serial")
    PLANS.clear()
    chosen = [case for listed in cases.in_turn(3) for case in spread(listed, 2)]
    wrong = [row for row in outcomes(chosen, host) if row.outcome is not Outcome.PASS]
    PLANS.clear()
    assert not wrong, wrong[0].message


Plant = Callable[[pytest.MonkeyPatch], None]


def _replaced(old: str, new: str) -> Plant:
    """A prelude with a mistake."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        text = prelude.with_matrices()
        assert old in text
        patch.setattr(CudaC, "prelude", lambda self: text.replace(old, new))

    return plant


def _negated_zero_lost(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(dialect.SCALAR, "neg", "(0 - {0})")


def _together(**wrong: str) -> Plant:
    """Groups that are spelled with a mistake."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(CudaC, "workgroup", replace(dialect.WORKGROUP, **wrong))

    return plant


def _last_threads_go_on(patch: pytest.MonkeyPatch) -> None:
    """Members without an item are not kept from writing."""
    grouped = CudaC.workgroup_kernel

    def unguarded(self: CudaC, name: str, arguments: Any, members: int, body: str) -> str:
        dropped = re.sub(r"if \((thread|run|member) < \d+\)", "if (1)", body)
        return grouped(self, name, arguments, members, dropped)

    patch.setattr(CudaC, "workgroup_kernel", unguarded)


FAULTS: Final[dict[str, tuple[Plant, tuple[str, ...]]]] = {
    "saturation forgotten": (_replaced("x >= above ? most : x >= low", "x >= low"), ("cast",)),
    "ties to odd": (_replaced("0x7fffu + (u >> 16 & 1u)", "0x8000u"), ("cast bf16",)),
    "halves truncated": (_replaced("cvt.rn.f16.f32", "cvt.rz.f16.f32"), ("cast f16",)),
    "a NaN as it was converted": (_replaced("x == x ? h : (u16)nan", "h"), ("bitcast f16",)),
    "a NaN as it was widened": (_replaced("x == x ? x : as<f32>(nan)", "x"), ("bitcast f16",)),
    "exp off by a few": (_replaced("0x1.555b5ap-5f", "0x1.5d5b5ap-5f"), ("exp",)),
    "remainder of integers kept": (_replaced("FUNCTION2(rem, fmodf", "FUNCTION2(rem, powf"),
                                   ("rem",)),
    "sign of zero lost": (_negated_zero_lost, ("neg",)),
    "barrier missing": (_together(barrier=""), ("dot_general", "sort")),
    "shuffle mask wrong": (_together(shuffle_xor="__shfl_xor_sync(0xffffu, {0}, {1})"),
                           ("reduce",)),
    "shuffle off by a bit": (_together(shuffle_xor="__shfl_xor_sync(0xffffffffu, {0}, {1} / 2)"),
                             ("reduce",)),
    "bounds not checked": (_last_threads_go_on, ("add",)),
}  # fmt: skip


@pytest.mark.slice(1)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_caught(
    host: Target, cases: ByOp, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    plant, ops = FAULTS[fault]
    plant(monkeypatch)
    for op in ops:
        name, _, dtype = op.partition(" ")
        taken = [case for case in cases[name] if not dtype or dtype in case.dtypes]
        found = Counter(row.outcome for row in outcomes(spread(taken, 40), host))
        assert found[Outcome.MISMATCH] + found[Outcome.ERROR], (op, found)


def test_what_is_claimed_to_be_rounded_is_named_by_the_corpus(cases: ByOp) -> None:
    from ptir_backend_cupy import CupyBackend

    assert CupyBackend.correctly_rounded <= set(cases)
