"""The corpus alone catches every planted fault, and says where it is."""

from __future__ import annotations

import pytest
from suite_settings import setting_of

from ptir.ops import OPS
from ptir_testsuite.cli import main
from ptir_testsuite.corpus import cases_of
from ptir_testsuite.execute import run_case
from ptir_testsuite.mutants import MUTANTS, Correct, Mutant, Row
from ptir_testsuite.mutants.equivalent import EQUIVALENT
from ptir_testsuite.mutants.impostors import IMPOSTORS
from ptir_testsuite.mutants.score import grade, unmask
from ptir_testsuite.outcomes import Outcome


def first_failure(row):
    setting = setting_of(Mutant(row))
    for name in row.ops:
        for case in cases_of(OPS[name]):
            found = run_case(case, setting)
            if found.failed:
                return case, found
    return None


@pytest.mark.parametrize("name", [name for name in MUTANTS if name not in EQUIVALENT])
def test_planted_fault_is_caught_with_op_inputs_and_worst_element(name):
    row = MUTANTS[name]
    failure = first_failure(row)
    assert failure is not None, "no case of the corpus notices"
    case, found = failure
    assert found.outcome is Outcome.MISMATCH
    assert case.call in found.message and case.id in found.message
    if found.phase == "compare":
        operands = [operand.rstrip("*") for operand in OPS[case.op].operands]
        assert "worst element" in found.message and "expected" in found.message
        assert all(f"  {operand}" in found.message for operand in operands)
        assert found.facts["expected"] != found.facts["actual"]


@pytest.mark.parametrize("name", EQUIVALENT)
def test_what_changes_nothing_is_accepted(name):
    found = grade(MUTANTS[name])
    assert not found.caught and found.tried > 50, found
    assert found.right and found.reason


@pytest.mark.parametrize("name", IMPOSTORS)
def test_an_impostor_is_rejected_for_the_right_thing(name):
    found = unmask(name)
    assert found.caught and found.outcome in found.wanted, found
    assert not {Outcome.PASS, Outcome.WAIVED} & set(found.wanted)


def test_the_grade_is_printed(capsys):
    assert main(["mutants", "-k", "five-term"]) == 0
    out = capsys.readouterr().out
    assert "erf by the five-term formula of Abramowitz and Stegun  erf" in out
    assert out.splitlines()[-1] == (
        "1/1 planted faults rejected by the corpus alone, 0/0 impostors with the right outcome;"
        " 0/0 equivalent changes accepted"
    )


def test_a_fault_that_nothing_notices_spoils_the_grade(monkeypatch, capsys):
    monkeypatch.setitem(MUTANTS, "nothing", Row("nothing", ("erf",), lambda call: call.right))
    assert main(["mutants", "-k", "nothing and erf"]) == 1
    out = capsys.readouterr().out
    assert "NOTHING" in out and "0/1 planted faults rejected" in out
    monkeypatch.setitem(EQUIVALENT, "erf by the five-term formula of Abramowitz and Stegun", "no")
    assert main(["mutants", "-k", "five-term"]) == 1
    assert "0/1 equivalent changes accepted" in capsys.readouterr().out


def test_without_a_fault_every_op_passes():
    setting = setting_of(Correct())
    for op in OPS.values():
        for number, case in enumerate(cases_of(op)):
            if number % 20 == 0:  # the whole corpus runs on the reference backend elsewhere
                found = run_case(case, setting)
                assert not found.failed, found.message


def test_there_are_faults_in_every_family():
    families = {trait for row in MUTANTS.values() for name in row.ops for trait in OPS[name].traits}
    wanted = {"elementwise", "contraction", "reduction", "scan", "order", "movement", "random"}
    assert wanted <= families
    assert len(MUTANTS) - len(EQUIVALENT) >= 100
    assert set(EQUIVALENT) <= set(MUTANTS)
    control = {op.name for op in OPS.values() if op.regions or op.profile == "extension"}
    untouched = set(OPS) - {name for row in MUTANTS.values() for name in row.ops} - control
    assert untouched <= {"constant", "stop_gradient"}, untouched
