"""Composites against their formulas, whole where a backend claims them and lowered in any case."""

from __future__ import annotations

import pytest
from impostors import Fusing
from suite_settings import setting_of

from ptir.ops.implementations import FUNCTIONALS
from ptir_testsuite.composites import CALLS, FORMULAS, CompositeCall, run_composite
from ptir_testsuite.items import composites
from ptir_testsuite.mutants import MUTANTS, Mutant
from ptir_testsuite.outcomes import Outcome


@pytest.mark.parametrize("item", list(composites()), ids=lambda item: item.id)
def test_the_reference_is_right_in_every_form(item, setting):
    row = run_composite(item, setting)
    assert row.outcome is Outcome.PASS, row.message
    assert row.worst_share <= 0.5


def test_every_call_has_a_formula_and_every_formula_calls():
    assert set(CALLS) == set(FORMULAS) <= set(FUNCTIONALS)


def test_a_claim_that_computes_something_else_is_found():
    exact, approximate = (
        run_composite(CompositeCall("gelu", n), setting_of(Fusing())) for n in (0, 1)
    )
    assert exact.outcome is Outcome.MISMATCH
    assert "claimed: wrong in" in exact.message and "worst element" in exact.message
    assert approximate.outcome is Outcome.PASS
    assert approximate.facts["forms"] == ["lowered", "claimed"]


def test_a_wrong_op_shows_in_what_is_lowered_to_it():
    mutant = Mutant(MUTANTS["products are off by 9e-4"])
    row = run_composite(CompositeCall("linear", 0), setting_of(mutant))
    assert row.outcome is Outcome.MISMATCH
    assert "linear {'layout': 'io'}, lowered: wrong in" in row.message
