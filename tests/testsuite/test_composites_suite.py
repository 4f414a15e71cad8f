"""Composites against their formulas, whole where a backend claims them and lowered in any case."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from impostors import Fusing
from suite_settings import setting_of

from ptir.backend.contract import Derivation
from ptir.ir.graph import freeze, source
from ptir.ops.implementations import FUNCTIONALS, INTERNAL_COMPOSITES
from ptir.ops.record import op
from ptir_testsuite.corpus.composites import CALLS, CompositeCall
from ptir_testsuite.mutants import MUTANTS, Correct, Mutant
from ptir_testsuite.oracles.composites import FORMULAS
from ptir_testsuite.running.items import composites
from ptir_testsuite.running.kinds.composites import run_composite
from ptir_testsuite.running.outcomes import Outcome
from together import together


@together()
@pytest.mark.parametrize("item", list(composites()), ids=lambda item: item.id)
def test_the_reference_is_right_in_every_form(item, setting):
    row = run_composite(item, setting)
    assert row.outcome is Outcome.PASS, row.message
    assert row.worst_share <= 0.5


def test_every_call_has_a_formula_and_every_formula_calls():
    assert set(CALLS) == set(FORMULAS) <= {*FUNCTIONALS, *INTERNAL_COMPOSITES}


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


class Single(Correct):
    """A backend that scales what is a batch of one, in its last op."""

    def step(self, instruction, operands, device):
        found = super().step(instruction, operands, device)
        (one,) = instruction.types[:1]
        wrong = instruction.op == "dot_general" and one.shape[0] == 1
        return tuple(x * np.float32(1.01) for x in found) if wrong else found


def test_a_batch_of_one_that_differs_from_the_row_of_many_is_found():
    row = run_composite(CompositeCall("linear", 0), setting_of(Single()))
    assert row.outcome is Outcome.MISMATCH
    assert "row 0 alone: wrong in" in row.message


class Turning(Correct):
    """A backend whose form of stored weights is the weights upside down."""

    def prepack(self, program, device):
        ports, derived = [], {}
        for port, type in zip(program.ports, program.inputs, strict=True):
            if port.kind == "parameter" and type.rank == 2:
                operand = source(type)
                turned = op("reverse")(operand, axes=(0,))
                name = f"derived:{port.name}"
                derived[name] = Derivation(freeze([turned], [operand]), (port,))
                port = replace(port, name=name)
            ports.append(port)
        return replace(program, ports=tuple(ports)), derived


def test_weights_that_are_packed_wrong_are_found():
    row = run_composite(CompositeCall("linear", 1), setting_of(Turning()))
    assert row.outcome is Outcome.MISMATCH
    assert "with stored weights: wrong in" in row.message
