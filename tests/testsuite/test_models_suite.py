"""Whole models: rows that pass on a right backend, and faults that nothing smaller shows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from suite_settings import setting_of

from ptir.errors import UnsupportedError
from ptir.params.quantized import quantization, round_to_nearest
from ptir.types import DTYPES
from ptir_testsuite.corpus.composites import CALLS, CompositeCall
from ptir_testsuite.corpus.models import (
    ENCODED,
    GROUP,
    HEARD,
    LENGTHS,
    SUBJECTS,
    expected,
    model_runs,
    prompts,
    weights,
)
from ptir_testsuite.mutants import Correct
from ptir_testsuite.mutants.models import Mixing, Near
from ptir_testsuite.running.finding import item_of
from ptir_testsuite.running.items import described, items, profiles, run_item
from ptir_testsuite.running.kinds import models as kinds_of_models
from ptir_testsuite.running.kinds.composites import STORED, run_composite
from ptir_testsuite.running.outcomes import Outcome
from ptir_testsuite.running.replay import _told

TINY = [name for name, subject in SUBJECTS.items() if subject.config]
INPUTS_FIRST = ("c_attn.weight", "c_proj.weight", "c_fc.weight")


def row_of(name, storage, kind):
    (found,) = (item for item in model_runs(name) if (item.storage, item.kind) == (storage, kind))
    return found


@pytest.mark.slice(10)
@pytest.mark.parametrize("item", [*model_runs()], ids=lambda item: item.id)
def test_the_reference_backend_passes(item, setting):
    found = run_item(item, setting)
    assert found.outcome is Outcome.PASS, found.message
    assert found.claimed and found.worst_share < 0.5


def test_rows_are_found_by_their_ids_and_by_words(few_ops):
    rows = [*model_runs()]
    assert [item_of(row.id) for row in rows] == rows
    assert [i.id for i in items(0) if i.id.startswith("model-")] == [row.id for row in rows]
    row = row_of("gpt2", "int8", "tokens")
    assert profiles(row) == {"core", "model", "quantized", "bf16"}
    assert all(word in described(row) for word in ("gpt2", "int8", "tokens", "quantized"))
    assert profiles(row_of("llama", "bf16", "logits")) == {"core", "model", "bf16"}


@pytest.mark.parametrize("name", TINY)
def test_weights_are_exact_in_every_storage(name):
    for key, array in weights(name).items():
        for storage in SUBJECTS[name].storages:
            if storage in ("int8", "int4"):
                if array.ndim == 2:
                    axis = 0 if key.endswith(INPUTS_FIRST) else 1
                    assert np.array_equal(_quantized(array, axis, storage), array), key
            else:
                narrow = array.astype(DTYPES[storage].numpy)
                assert np.array_equal(narrow.astype(np.float32), array), (key, storage)


def _quantized(array, axis, storage):
    """The weights behind the words and scales, by the definition in docs/reference/semantics.md."""
    format = quantization(storage)
    words, scale = (np.moveaxis(x, axis, -1) for x in round_to_nearest(array, axis, format))
    shifts = np.arange(32 // format.bits, dtype=np.uint32) * np.uint32(format.bits)
    values = (words[..., None] >> shifts) & np.uint32(2**format.bits - 1)
    values = values.reshape(*words.shape[:-1], -1).astype(np.float32) - format.zero
    found = values * np.repeat(scale.astype(np.float32), GROUP, axis=-1)
    return np.moveaxis(found, -1, axis)


def test_prompts_are_of_several_lengths_and_models_say_something():
    for name in SUBJECTS:
        assert tuple(map(len, prompts(name))) == LENGTHS
        if SUBJECTS[name].kinds == ENCODED:
            vectors = expected(name, "vectors")
            assert len(vectors) == sum(LENGTHS) and np.ptp(vectors, axis=0).min() > 0.1, name
            continue
        if SUBJECTS[name].kinds == HEARD:
            # its text repeats itself, and what is heard shows in every number
            assert np.ptp(expected(name, "logits"), axis=0).min() > 0.1, name
            assert len({*expected(name, "logprobs").tolist()}) == len(LENGTHS)
            continue
        assert len({*expected(name, "tokens").ravel().tolist()}) >= 6, name


@pytest.mark.slice(1)
@pytest.mark.parametrize("reach", [18, 22, 1])
def test_a_window_of_another_width_is_seen(reach, monkeypatch, setting):
    subject = SUBJECTS["modernbert"]
    config = {**subject.config, "local_attention": reach}
    monkeypatch.setitem(SUBJECTS, "modernbert", replace(subject, config=config))
    found = run_item(row_of("modernbert", "f32", "vectors"), setting)
    assert found.outcome is Outcome.MISMATCH, found.message
    assert "the vector of prompt" in found.message and "position" in found.message


@pytest.mark.parametrize("seed", [0, 1])
def test_other_sound_is_heard(seed, monkeypatch, setting):
    """In the logits of prompts, or, where these are as they must be, in a window's tokens."""
    right = kinds_of_models.features
    numbers = iter([0, 0] if seed == 0 else [0, 1, 2, 3, 1, 0, 2, 3])
    monkeypatch.setattr(kinds_of_models, "features", lambda name, n: right(name, next(numbers)))
    found = run_item(row_of("whisper", "f32", "heard"), setting)
    assert found.outcome is Outcome.MISMATCH, found.message
    said = "the logit of prompt 1" if seed == 0 else "the mean log probability"
    assert said in found.message or "the tokens of sound" in found.message


@pytest.mark.parametrize(
    ("impostor", "text"),
    [(Near, "the logit is wrong in"), (Mixing, "with log probabilities: expected")],
)
def test_only_a_model_shows_what_small_calls_do_not(impostor, text):
    setting = setting_of(impostor())
    name = impostor.taken
    for number in range(len(CALLS[name])):
        row = run_composite(CompositeCall(name, number), setting)
        assert row.outcome is Outcome.PASS, row.message
        assert row.facts["forms"] == ["lowered", "claimed", STORED]
    kind = "logits" if impostor is Near else "tokens"
    found = run_item(row_of("gpt2", "f32", kind), setting)
    assert found.outcome is Outcome.MISMATCH and found.phase == "compare"
    assert text in found.message and found.case in found.message


class Failing(Correct):
    """Refuses to look up embeddings, or fails at it."""

    def __init__(self, error):
        self.error = error

    def step(self, instruction, operands, device):
        if instruction.op == "take":
            raise self.error
        return super().step(instruction, operands, device)


def test_errors_are_told_and_refusals_are_earned():
    row = row_of("gpt2", "f32", "logits")
    found = run_item(row, setting_of(Failing(KeyError("take"))))
    assert found.outcome is Outcome.ERROR and found.phase == "execute"
    assert "KeyError: 'take' at test_models_suite.py:" in found.message
    refusing = Failing(UnsupportedError("no take"))
    found = run_item(row, setting_of(refusing))
    assert found.outcome is Outcome.UNSUPPORTED and found.failed, "it claims models"
    refusing.claims = frozenset({"core"})
    found = run_item(row, setting_of(refusing))
    assert found.outcome is Outcome.UNSUPPORTED and not found.failed


def test_a_row_is_told_in_full(setting):
    row = row_of("llama", "int8", "tokens")
    lines = "\n".join(_told(row, None, setting, 8))
    assert "llama in int8: tokens: prompts of several lengths" in lines
    assert "whole numbers up to 127 times a power of two" in lines
    assert f"expected 3: {expected('llama', 'tokens')[3].tolist()}" in lines
