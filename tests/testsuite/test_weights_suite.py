"""Weights of every format against their definition, lowered and with their parts as parameters."""

from __future__ import annotations

import numpy as np
import pytest
from suite_settings import setting_of

from ptir.weights import FORMATS
from ptir.weights.affine_form import affine_form
from ptir.weights.gguf import GGUF
from ptir_testsuite.corpus.weights import ROWS, WeightCall, weight_calls
from ptir_testsuite.mutants import Correct
from ptir_testsuite.running.finding import item_of
from ptir_testsuite.running.kinds.weights import run_weights
from ptir_testsuite.running.outcomes import Outcome
from together import together


@together()
@pytest.mark.parametrize("item", list(weight_calls()), ids=lambda item: item.id)
def test_the_reference_is_right_in_every_form(item: WeightCall, setting) -> None:
    row = run_weights(item, setting)
    assert row.outcome is Outcome.PASS, row.message
    assert row.worst_share <= 0.5


def test_every_format_that_is_held_as_words_is_there_and_found_by_its_id() -> None:
    items = list(weight_calls())
    held = {name for name, one in FORMATS.items() if affine_form(one) is not None}
    assert {item.format for item in items} == held >= {one.name for one in GGUF}
    assert len(items) == len(ROWS) * len(held)
    assert item_of("weights-Q4_K-12") == WeightCall("Q4_K", 12)


@pytest.mark.parametrize("item", list(weight_calls()), ids=lambda item: item.id)
def test_weights_are_moderate_finite_and_of_both_signs(item: WeightCall) -> None:
    weight = item.weight()
    assert np.isfinite(weight).all() and np.abs(weight).max() < 2e4
    assert (weight > 0).any() and (weight < 0).any()
    assert (item.magnitude() >= np.abs(weight) * 0.999).all()


class Nearly(Correct):
    """A backend that reads the values of packed words one too high."""

    def step(self, instruction, operands, device):
        if instruction.op == "dequantize":
            words, *others = operands
            operands = [np.asarray(words) ^ np.uint32(1), *others]
        return super().step(instruction, operands, device)


def test_a_code_that_is_read_wrong_is_found() -> None:
    row = run_weights(WeightCall("Q4_K", 1), setting_of(Nearly()))
    assert row.outcome is Outcome.MISMATCH
    assert "lowered: looked up weights are not those of the format" in row.message
    assert "case weights-Q4_K-1" in row.message


class Rough(Correct):
    """A backend whose products are off by a thousandth."""

    def step(self, instruction, operands, device):
        found = super().step(instruction, operands, device)
        off = instruction.op == "dot_general"
        return tuple(x * np.float32(1.001) for x in found) if off else found


def test_a_product_that_is_off_is_found() -> None:
    row = run_weights(WeightCall("IQ2_S", 12), setting_of(Rough()))
    assert row.outcome is Outcome.MISMATCH
    assert "lowered: wrong in" in row.message and "worst element" in row.message
