"""An op defined in one file gets conformance cases, and a backend that is wrong fails them."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
from suite_settings import setting_of

import ptir
from ptir import plugins
from ptir.backend import Target
from ptir.backend.interpreter import Interpreter
from ptir.capture import call
from ptir.errors import UnsupportedError
from ptir.ops.classes import FLOAT, listed
from ptir.ops.record import OPS, Array, Attribute, BadCall, Sample, define
from ptir_testsuite.corpus.derivation import cases_of
from ptir_testsuite.corpus.programs import Drawn
from ptir_testsuite.corpus.sweeps import sweeps
from ptir_testsuite.mutants import Correct, Mutant, Row
from ptir_testsuite.oracles import ORACLES
from ptir_testsuite.oracles.elementwise import by_element
from ptir_testsuite.reports.failures import groups, told
from ptir_testsuite.reports.schema import require
from ptir_testsuite.running import owners
from ptir_testsuite.running.execute import run_case
from ptir_testsuite.running.kinds.programs import run_stored
from ptir_testsuite.running.kinds.refusals import refusals, run_refusal
from ptir_testsuite.running.kinds.sweeps import run_sweep
from ptir_testsuite.running.outcomes import Outcome
from tiny_distributions import site

__all__ = ["site"]

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


# --- whose it is ---

TRIPLED = """
from ptir import ops
from ptir.ops.classes import FLOAT
from ptir.ops.record import Array, BadCall, define, sample
from ptir.plugins import hookimpl

tripled = define(
    "tripled",
    "operand",
    dtypes=FLOAT,
    rule=lambda call: call.types[0],
    reference=REFERENCE,
    doc="Three times the operand.",
    decomposition=DECOMPOSITION,
    samples=[sample(Array("f32", [1.5, -2.0]), gives=Array("f32", [4.5, -6.0]))],
    bad_calls=[BadCall("dtype", ("bool[2]",), {}, "what the author thinks")],
)

@hookimpl
def ptir_ops():
    return [tripled]
"""
RIGHT = "lambda xp, operand: xp.add(operand, xp.add(operand, operand))"
THREE = "ops.add(operand, ops.add(operand, operand))"
WHOSE = "tripled is an op of tiny-three 1.0 (module tiny_three): "
REFUSED = "  the backend refuses tripled (tripled is not among the ops of the backend): run by its "


class Without(Correct):
    """A backend that was written before the op."""

    name = "without"
    ops = tuple(OPS)

    def refusal(self, query, device):
        return Interpreter.refusal(self, query, device)


@pytest.fixture
def plugged(site):
    """Plugs in a distribution whose op has this reference and decomposition; gives its sample."""

    def plug(reference=RIGHT, decomposition=f"lambda operand: {THREE}"):
        source = TRIPLED.replace("REFERENCE", reference).replace("DECOMPOSITION", decomposition)
        site.plugin("three", source)
        assert plugins.install().failures() == ()
        return next(cases_of(OPS["tripled"]))

    owners._distributions.cache_clear()
    yield plug
    owners._distributions.cache_clear()
    OPS.pop("tripled", None)


def last_line(row):
    return row.message.splitlines()[-1]


def test_a_wrong_decomposition_is_told_as_its_authors_and_no_backends(plugged):
    case = plugged(decomposition="lambda operand: ops.add(operand, ops.mul(operand, operand))")
    row = run_case(case, setting_of(Without()))
    assert (row.outcome, row.facts["decomposed"]) == (Outcome.MISMATCH, True)
    told = f"{REFUSED}decomposition, mul, add; {WHOSE}look at the op's record first"
    assert last_line(row) == told
    (group,) = groups([row])
    assert group.head == "1 failure of tripled, run by other ops: mismatch"
    require(row.record(), "a row")


def test_a_decomposition_that_raises_is_a_row_and_no_defect_of_the_suite(plugged):
    case = plugged(decomposition="lambda operand: 1 / 0")
    row = run_case(case, setting_of(Without()))
    assert (row.outcome, row.phase) == (Outcome.ERROR, "compile")
    said = "what runs in its place raised ZeroDivisionError: division by zero at tiny_three.py:"
    assert said in row.message and row.facts["raised"].startswith("tiny_three.py:")
    assert last_line(row) == f"  {WHOSE}look at the op's record first"


@pytest.mark.parametrize(
    ("reference", "advice"),
    [
        (
            "lambda xp, operand: xp.add(operand, operand)",
            "its reference gives a wrong result for these operands: look at the op's record first",
        ),
        ("lambda xp, operand: 1 // 0", "look at the op's record first"),
    ],
)
def test_a_wrong_reference_is_told_as_its_authors(plugged, reference, advice):
    row = run_case(plugged(reference=reference), setting_of(Correct()))
    assert row.failed and last_line(row).startswith(f"  {WHOSE}") and row.message.endswith(advice)
    assert "its reference gives the right" not in row.message


def test_a_wrong_backend_stays_the_one_to_blame(plugged):
    case = plugged()
    row = run_case(
        case, setting_of(Mutant(Row("quartered", ("tripled",), lambda call: call.right[0] / 4)))
    )
    assert last_line(row) == f"  {WHOSE}its reference gives the right result for these operands"
    assert not run_case(case, setting_of(Correct())).message
    own = next(cases_of(OPS["round"]))
    row = run_case(own, setting_of(Mutant(Row("off", ("round",), lambda call: call.right[0] + 1))))
    assert row.failed and last_line(row) == f"  case {own.id} ({own.origin})"


def test_an_op_that_nothing_can_run_is_told_what_it_lacks(plugged):
    row = run_case(plugged(decomposition="None"), setting_of(Without()))
    assert row.failed and row.outcome is Outcome.UNSUPPORTED
    lines = told(row).splitlines()
    assert lines[0].startswith("unsupported [compile] refused within the claimed profile core: ")
    assert lines[2] == (
        f"  {WHOSE}give it a decomposition, which every backend runs, or a profile that this one"
        " lacks"
    )
    assert lines[3].startswith(
        "  let the backend take it, or leave the profile out of its `claims`"
    )


def test_an_ops_own_bad_calls_are_told_as_its_authors(plugged):
    plugged()
    (row,) = (run_refusal(r, setting_of(Correct())) for r in refusals([OPS["tripled"]]))
    assert row.outcome is Outcome.WRONG_ERROR and "must end with" in row.message
    assert last_line(row) == f"  {WHOSE}look at the op's record first"


def test_programs_and_sweeps_name_whose_op_is_in_them(plugged):
    case = plugged(decomposition="lambda operand: 1 / 0")
    by_element("tripled")(lambda x, dtype: x * 3)
    try:
        sweep = next(sweeps([OPS["tripled"]]))
    finally:
        ORACLES.pop("tripled")
    stored = SimpleNamespace(
        id="program-x",
        drawn=lambda: Drawn(case.program, case.arrays, ()),
        profiles=frozenset(),
        dtypes=(),
    )
    for row in (run_sweep(sweep, setting_of(Without())), run_stored(stored, setting_of(Without()))):
        assert (row.outcome, row.phase) == (Outcome.ERROR, "compile")
        assert "what runs in place of the program raised ZeroDivisionError" in row.message
        assert last_line(row) == f"  {WHOSE}look at the op's record first"


def test_an_op_made_of_ptirs_functions_is_its_plugins_and_core_says_what_it_lacks(plugged):
    plugged(decomposition="None")
    record = OPS["tripled"]
    assert (record.module, OPS["add"].module) == ("tiny_three", "ptir.ops.elementwise")
    assert replace(record, rule=OPS["neg"].rule).module == "tiny_three"
    target = Target(Without(), Without().devices()[0])
    with pytest.raises(UnsupportedError) as raised:
        call("tripled", ptir.tensor([1.0], backend=target)).numpy()
    assert str(raised.value) == (
        "without: tripled(f32[1]): tripled is not among the ops of the backend on device 'host';"
        " choose another backend or device (see `ptir backends`), give tripled of tiny_three a"
        " decomposition, or take it in without (`ptir-conformance support` lists what it takes)"
    )
