"""Mixtures of experts: cached decoding, what configs may say, and how experts are stored."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

import ptir
from ptir.checkpoint.quantized.source import quantized_source
from ptir.errors import CheckpointError
from ptir.models.table import preset
from ptir.params.source import ArraySource
from ptir.params.stacked import Stack, stacked
from ptir.weights import FORMATS, WeightFormat
from running import REF

TINY = ["mixtral-tiny", "qwen3_moe-tiny", "granitemoe-tiny", "gpt_oss-tiny"]
PROMPTS = [[3, 96, 0, 41, 41, 7, 63, 12], [5], [8, 9, 10]]


@pytest.mark.parametrize("name", TINY)
def test_cached_decoding_of_ragged_rows_equals_each_row_at_once(name: str) -> None:
    loaded = ptir.load_model(f"random:{name}", backend=REF, seed=3)
    found = loaded.generate_batch(PROMPTS, max_tokens=8, ignore_eos=True)
    for prompt, one in zip(PROMPTS, found, strict=True):
        logits = loaded.forward([*prompt, *one.token_ids])
        assert logits[len(prompt) - 1 : -1].argmax(-1).tolist() == one.token_ids
    # Biases, which are larger than matrices here, choose gpt-oss's tokens.
    assert len({token for one in found for token in one.token_ids}) > (name != "gpt_oss-tiny")


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("mixtral-tiny", {"num_experts_per_tok": 9}, "num_experts_per_tok 9 is above"),
        ("qwen3_moe-tiny", {"mlp_only_layers": "1"}, "must be a list of numbers of layers"),
        ("qwen3_moe-tiny", {"decoder_sparse_step": 0}, "decoder_sparse_step 0 in config.json"),
        ("gpt_oss-tiny", {"swiglu_limit": -1}, "swiglu_limit -1 in config.json must be"),
        ("gpt_oss-tiny", {"hidden_act": "gelu"}, "hidden_act 'gelu' of experts is not"),
        ("mixtral-tiny", {"num_local_experts": 0}, "num_local_experts 0 in config.json must be"),
        ("mixtral-tiny", {"num_experts_per_tok": True}, "num_experts_per_tok True in config.json"),
    ],
)
def test_a_wrong_value_is_refused(name: str, change: dict[str, Any], message: str) -> None:
    architecture, config = preset(name)
    with pytest.raises(CheckpointError, match=message):
        architecture.build({**architecture.defaults, **copy.deepcopy(dict(config)), **change})


# --- how experts are stored ---


E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)


def test_experts_of_gpt_oss_in_mxfp4_are_the_numbers_of_their_codes() -> None:
    draws = np.random.default_rng(0)
    blocks = draws.integers(0, 256, (3, 6, 2, 16), np.uint8)
    scales = draws.integers(120, 134, (3, 6, 2), np.uint8)
    module = "layers.0.mlp.experts.down_proj"
    given = {f"{module}_blocks": blocks, f"{module}_scales": scales, f"{module}_bias": scales[0]}
    config = {"model_type": "gpt_oss", "quantization_config": {"quant_method": "mxfp4"}}
    source = quantized_source(config, ArraySource(given))
    codes = np.stack([blocks & 15, blocks >> 4], axis=-1).reshape(3, 6, 2, 32)
    signed = np.concatenate([E2M1, -E2M1])[codes]
    wanted = signed * np.exp2(scales.astype(np.float32) - 127)[..., None]
    assert f"{module}_bias" in source.names()
    np.testing.assert_array_equal(source.read(f"{module}.weight"), wanted.reshape(18, 64))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"blocks": np.zeros((3, 6, 2, 8), np.uint8)}, "blocks, 16. is needed"),
        ({"scales": np.zeros((3, 6, 3), np.uint8)}, "is needed by the other tensors"),
        ({"scales": None}, "is missing"),
    ],
)
def test_blocks_of_mxfp4_that_do_not_fit_are_refused(change: Any, message: str) -> None:
    parts = {"blocks": np.zeros((3, 6, 2, 16), np.uint8), "scales": np.zeros((3, 6, 2), np.uint8)}
    parts |= change
    given = {f"mlp.experts.up_{part}": a for part, a in parts.items() if a is not None}
    with pytest.raises(CheckpointError, match=message):
        quantized_source({"quantization_config": {"quant_method": "mxfp4"}}, ArraySource(given))


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


class Blocks(ArraySource):
    """Matrices, those of gates as bytes of a format."""

    def format(self, name: str) -> WeightFormat | None:
        return FORMATS["Q8_0"] if "w1" in name else None

    def blocks(self, name: str) -> dict[str, Any]:
        return {"blocks": self.read(name).view(np.uint8)}


def test_blocks_of_experts_are_joined_as_they_are_stored() -> None:
    apart = {f"experts.{n}.w1.weight": EXPERTS[n] for n in range(3)}
    source: Any = stacked(Blocks({**apart, "experts.up": EXPERTS}), RULES)
    assert source.format("experts.gate.weight") is FORMATS["Q8_0"]
    assert source.format("experts.up.weight") is None
    found = source.blocks("experts.gate.weight")["blocks"]
    np.testing.assert_array_equal(found.view(np.float32), EXPERTS.reshape(6, 4))
