"""The suite's corpus on C: a slice of every op, composites, random programs, faults of the dialect.

The whole corpus is ``ptir-conformance run --backend c``; here every op is met a few times.
"""

from __future__ import annotations

import platform
import shlex
from collections import Counter
from collections.abc import Callable
from typing import Final

import pytest
from test_opencl_conformance import (
    test_composites_whole_and_lowered,
    test_every_op_in_every_dtype,
    test_random_programs_agree_with_the_oracle,
)

from corpus_slices import ByOp, outcomes, spread
from ptir.backend.contract import Target
from ptir_backend_c import CBackend, compiler, dialect, prelude
from ptir_backend_c.dialect import PlainC
from ptir_testsuite.running.outcomes import Outcome

__all__ = (
    "test_composites_whole_and_lowered",
    "test_every_op_in_every_dtype",
    "test_random_programs_agree_with_the_oracle",
)

Plant = Callable[[pytest.MonkeyPatch], None]


def _replaced(old: str, new: str) -> Plant:
    """A prelude with a mistake."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        text = prelude.prelude()
        assert old in text
        patch.setattr(PlainC, "prelude", lambda self: text.replace(old, new))

    return plant


def _negated_zero_lost(patch: pytest.MonkeyPatch) -> None:
    """A number is negated by subtracting it from zero."""
    for rows in (dialect.SCALAR, dialect.WIDE):
        patch.setitem(rows, "neg", "(0 - {0})")


def _lanes_turned(patch: pytest.MonkeyPatch) -> None:
    """Lanes put together one by one come out in reverse."""
    gathered = PlainC.gathered
    patch.setattr(PlainC, "gathered", lambda self, dtype, texts: gathered(self, dtype, texts[::-1]))


FAULTS: Final[dict[str, tuple[Plant, tuple[str, ...]]]] = {
    "saturation forgotten": (_replaced("to y = x >= (high) ? (to)(most) :", "to y ="), ("cast",)),
    "lanes above the range kept": (_replaced("above = x >= (high)", "above = x != x"), ("cast",)),
    "ties to odd": (_replaced("0x7fffu + odd", "0x8000u"), ("cast bf16",)),
    "select turned": (_replaced("(k & (mask)a) | (~k & (mask)b)", "(k & (mask)b)"), ("select",)),
    "exp off by a few": (_replaced("0x1.555b5ap-5f", "0x1.5d5b5ap-5f"), ("exp",)),
    "quarter turns lost": (_replaced("-(quarter & 1)", "0 * quarter"), ("sin", "cos")),
    "sign of zero lost": (_negated_zero_lost, ("neg",)),
    "lanes turned": (_lanes_turned, ("transpose",)),
}


@pytest.mark.slice(3)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_caught(
    c: Target, cases: ByOp, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    plant, ops = FAULTS[fault]
    plant(monkeypatch)
    for op in ops:
        name, _, dtype = op.partition(" ")
        taken = [case for case in cases[name] if not dtype or dtype in case.dtypes]
        found = Counter(row.outcome for row in outcomes(spread(taken, 40), c))
        assert found[Outcome.MISMATCH], (op, found)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="names x86-64 processors")
@pytest.mark.parametrize(("processor", "feature"), [("x86-64-v2", "ssse3"), ("x86-64-v3", "avx2")])
def test_narrower_vectors_give_the_same(
    c: Target,
    cases: ByOp,
    monkeypatch: pytest.MonkeyPatch,
    processor: str,
    feature: str,
) -> None:
    if feature not in compiler.target():
        pytest.skip(f"this processor has no {feature}")
    monkeypatch.setenv("CC", f"{shlex.join(compiler.find().command)} -march={processor}")
    backend = CBackend()
    target = Target(backend, backend.devices()[0])
    chosen = [case for listed in cases.in_turn(3) for case in spread(listed, 1)]
    wrong = [row for row in outcomes(chosen, target) if row.outcome is not Outcome.PASS]
    assert not wrong, wrong[0].message


def test_what_is_claimed_to_be_rounded_is_named_by_the_corpus(cases: ByOp) -> None:
    assert CBackend.correctly_rounded <= set(cases)
