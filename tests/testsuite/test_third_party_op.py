"""An op defined in one file gets conformance cases, and a backend that is wrong fails them."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from suite_settings import setting_of

from ptir.ops.classes import FLOAT, listed
from ptir.ops.record import OPS, Array, Attribute, BadCall, Sample, define
from ptir_testsuite.corpus.derivation import cases_of
from ptir_testsuite.mutants import Correct, Mutant, Row
from ptir_testsuite.oracles import ORACLES
from ptir_testsuite.oracles.elementwise import by_element
from ptir_testsuite.running.execute import run_case
from ptir_testsuite.running.kinds.refusals import refusals, run_refusal
from ptir_testsuite.running.outcomes import Outcome

WRONG = Row("tripled", ("shift_by",), lambda call: call.right[0] * 3)


@pytest.fixture
def made_up():
    """``shift_by``: the operand plus a number, an op that nothing else knows."""
    record = define(
        "shift_by",
        "operand",
        dtypes=FLOAT,
        attributes=(Attribute("by", "what is added"),),
        rule=lambda call: call.types[0],
        reference=lambda xp, operand, *, by: xp.add(operand, np.full_like(operand, by)),
        doc="The operand and a number.",
        traits="elementwise",
        accuracy="rounded",
        samples=(Sample((Array("f32", [1.5, -2.0]),), {"by": 0.5}, (Array("f32", [2.0, -1.5]),)),),
        bad_calls=(
            BadCall(
                "dtype",
                ("bool[2]",),
                {"by": 0.5},
                f"operand has dtype bool; one of {listed(FLOAT)}",
            ),
            BadCall("arity", (), {"by": 0.5}, "0 operands given; takes operand"),
        ),
    )
    yield record
    del OPS["shift_by"]
    ORACLES.pop("shift_by", None)


def exact_sum(x, by):
    return x if not math.isfinite(x) else (Fraction(x) + Fraction(by)).as_integer_ratio()


def test_its_samples_are_cases_that_a_wrong_backend_fails(made_up):
    cases = list(cases_of(made_up))
    assert [case.origin for case in cases] == ["sample 0"]
    assert run_case(cases[0], setting_of(Correct())).outcome is Outcome.PASS
    found = run_case(cases[0], setting_of(Mutant(WRONG)))
    assert found.outcome is Outcome.MISMATCH
    assert "shift_by(f32[2]) {by = 0.5}: the result is wrong in 2 of 2 elements" in found.message


def test_one_oracle_beside_it_brings_the_whole_corpus(made_up):
    by_element("shift_by")(lambda x, dtype, by: exact_sum(x, by))
    cases = list(cases_of(made_up))
    assert len(cases) > 10
    assert {(), (0,), (1031,)} <= {case.types[0].shape for case in cases}
    assert not [c for c in cases if run_case(c, setting_of(Correct())).failed]
    caught = [c for c in cases if run_case(c, setting_of(Mutant(WRONG))).failed]
    assert len(caught) > 8


def test_its_bad_calls_are_refusals(made_up):
    rows = [run_refusal(r, setting_of(Correct())) for r in refusals([made_up])]
    assert [row.outcome for row in rows] == [Outcome.PASS, Outcome.PASS], rows
