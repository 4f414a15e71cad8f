"""Mixtures of experts: cached decoding, what configs may say, and how experts are stored."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

import ptir
from ptir.errors import CheckpointError
from ptir.models.table import preset
from ptir.params.source import ArraySource
from ptir.params.stacked import Stack, stacked
from running import REF

TINY = ["mixtral-tiny"]
PROMPTS = [[3, 96, 0, 41, 41, 7, 63, 12], [5], [8, 9, 10]]


@pytest.mark.parametrize("name", TINY)
def test_cached_decoding_of_ragged_rows_equals_each_row_at_once(name: str) -> None:
    loaded = ptir.load_model(f"random:{name}", backend=REF, seed=2)
    found = loaded.generate_batch(PROMPTS, max_tokens=8, ignore_eos=True)
    for prompt, one in zip(PROMPTS, found, strict=True):
        logits = loaded.forward([*prompt, *one.token_ids])
        assert logits[len(prompt) - 1 : -1].argmax(-1).tolist() == one.token_ids
    assert len({token for one in found for token in one.token_ids}) > 2


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("mixtral-tiny", {"num_experts_per_tok": 9}, "num_experts_per_tok 9 is above"),
        ("mixtral-tiny", {"num_local_experts": 0}, "num_local_experts 0 in config.json must be"),
        ("mixtral-tiny", {"num_experts_per_tok": True}, "num_experts_per_tok True in config.json"),
    ],
)
def test_a_wrong_value_is_refused(name: str, change: dict[str, Any], message: str) -> None:
    architecture, config = preset(name)
    with pytest.raises(CheckpointError, match=message):
        architecture.build({**architecture.defaults, **copy.deepcopy(dict(config)), **change})


# --- how experts are stored ---

RULES = {
    "experts.*.w1.weight": Stack("experts.gate.weight"),
    "experts.up": Stack("experts.up.weight"),
    "experts.down": Stack("experts.down.weight", turned=True),
}
EXPERTS = np.arange(24, dtype=np.float32).reshape(3, 2, 4)


def test_experts_stored_one_tensor_each_or_as_one_are_the_same_matrix() -> None:
    apart = {f"layers.7.experts.{n}.w1.weight": EXPERTS[n] for n in (2, 0, 1)}
    plain = {"norm": EXPERTS[0]}
    whole = {
        "layers.7.experts.up": EXPERTS,
        "layers.7.experts.down": EXPERTS.swapaxes(1, 2).copy(),
    }
    source = stacked(ArraySource({**apart, **plain, **whole}), RULES)
    parts = ("gate", "up", "down")
    assert set(source.names()) == {"norm", *(f"layers.7.experts.{part}.weight" for part in parts)}
    for part in parts:
        found = source.read(f"layers.7.experts.{part}.weight")
        assert source.type(f"layers.7.experts.{part}.weight").shape == found.shape
        np.testing.assert_array_equal(found, EXPERTS.reshape(6, 4))
    np.testing.assert_array_equal(source.read("norm"), EXPERTS[0])


def test_a_source_without_experts_stays_itself() -> None:
    source = ArraySource({"norm": EXPERTS[0]})
    assert stacked(source, RULES) is source


@pytest.mark.parametrize(
    ("apart", "message"),
    [
        ({0: EXPERTS[0], 2: EXPERTS[0]}, "no tensors of expert 1 are stored"),
        ({0: EXPERTS[0], 1: EXPERTS[0].T}, "matrices of one type are needed"),
        ({0: EXPERTS[0, 0]}, "matrices of one type are needed"),
    ],
)
def test_experts_that_are_missing_or_differ_are_refused(apart: Any, message: str) -> None:
    tensors = {f"experts.{number}.w1.weight": array for number, array in apart.items()}
    with pytest.raises(CheckpointError, match=message):
        stacked(ArraySource(tensors), RULES)
