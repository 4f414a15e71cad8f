"""The corpus alone catches every planted fault, and says where it is."""

from __future__ import annotations

import pytest
from suite_settings import setting_of

from ptir.ops import OPS
from ptir_testsuite.corpus import cases_of
from ptir_testsuite.execute import run_case
from ptir_testsuite.mutants import MUTANTS, Correct, Mutant
from ptir_testsuite.outcomes import Outcome


def first_failure(row):
    setting = setting_of(Mutant(row))
    for name in row.ops:
        for case in cases_of(OPS[name]):
            found = run_case(case, setting)
            if found.failed:
                return case, found
    return None


@pytest.mark.parametrize("name", list(MUTANTS))
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
    assert len(MUTANTS) >= 20
