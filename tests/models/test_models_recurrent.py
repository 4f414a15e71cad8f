"""Families whose layers carry states of one size: cached steps, and what their configs may say.

That they compute what they should is tests/parity's matter.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ptir
from ptir.checkpoint import Checkpoint, open_checkpoint, save_folder
from ptir.errors import CheckpointError
from ptir.models.table import definition
from ptir.params.source import RandomSource
from ptir.runtime import Model
from ptir.runtime.load import described, prepared
from ptir.runtime.specs import parameter_types
from recurrent_models import LFM2, MAMBA2, QWEN, QWEN_MOE, QWEN_NEXT
from running import REF, assert_close

FAMILIES: dict[str, dict[str, Any]] = {
    "lfm2": LFM2,
    "qwen3_5_text": QWEN,
    "mamba2": MAMBA2,
    "qwen3_next": QWEN_NEXT,
    "qwen3_5_moe_text": QWEN_MOE,
}
PROMPTS = [[3, 96, 0, 41, 41, 7, 63], [5], [int(n) for n in np.arange(40) * 7 % 97]]


def checkpoint_of(config: dict[str, Any]) -> Checkpoint:
    """One with weights so large that what every layer adds matters for the next token."""
    model = definition(config["model_type"])
    types = parameter_types(model, {**model.defaults, **config})
    source = RandomSource(
        types, 3, lambda name, type: 0.3, lambda name, type: float("norm.w" in name)
    )
    return Checkpoint(Path("m"), config, {}, {}, source, None, ())


def loaded(family: str, folder: Path) -> Model:
    return ptir.load_model(save_folder(checkpoint_of(FAMILIES[family]), folder / "m"), backend=REF)


@pytest.mark.parametrize("family", FAMILIES)
def test_ragged_rows_and_prompts_in_chunks_equal_each_row_at_once(
    family: str, tmp_path: Path
) -> None:
    model = loaded(family, tmp_path)
    found = model.generate_batch(PROMPTS, max_tokens=8, ignore_eos=True)
    for prompt, one in zip(PROMPTS, found, strict=True):
        logits = model.forward([*prompt, *one.token_ids])
        assert logits[len(prompt) - 1 : -1].argmax(-1).tolist() == one.token_ids
    assert len({token for one in found for token in one.token_ids}) > 6


@pytest.mark.parametrize("family", FAMILIES)
def test_no_token_changes_what_stands_before_it(family: str, tmp_path: Path) -> None:
    model = loaded(family, tmp_path)
    first, other = (model.forward([*PROMPTS[2], end]) for end in (8, 9))
    assert_close(other[:-1], first[:-1])
    assert not np.allclose(other[-1], first[-1])


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("lfm2", {"layer_types": ["conv"] * 2}, "layer_types .* must be a list of 3, each conv or"),
    ("lfm2", {"layer_types": ["conv", "mamba", "conv"]}, "each conv or full_attention"),
    ("lfm2", {"layer_types": None, "full_attn_idxs": [3]}, "layers from 0 to 2"),
    ("lfm2", {"layer_types": None, "full_attn_idxs": "all"}, "layers from 0 to 2"),
    ("lfm2", {"conv_L_cache": 0}, "conv_L_cache 0 .* must be an integer >= 1"),
    ("lfm2", {"block_ffn_dim_multiplier": 1e6}, "an MLP of width 26000000"),
    ("lfm2", {"num_attention_heads": 5}, "hidden_size 24 must be a multiple of num_attention_h"),
    ("qwen3_5_text", {"layer_types": ["conv"] * 3}, "each linear_attention or full_attention"),
    ("qwen3_5_text", {"layer_types": None, "full_attention_interval": 0}, "interval 0 .* >= 1"),
    ("qwen3_5_text", {"linear_num_key_heads": 3}, "linear_num_value_heads 4 must be a multiple"),
    ("qwen3_5_text", {"partial_rotary_factor": 0.05}, "rotates 0 of 16 dimensions"),
    ("qwen3_5_text", {"partial_rotary_factor": 2.0}, "must be a number > 0 and <= 1"),
    ("qwen3_5_text", {"hidden_act": "gelu"}, "hidden_act 'gelu' is not implemented; only"),
    ("qwen3_5_text", {"text_config": 3}, "text_config 3 must be an object"),
    ("lfm2", {"layer_types": [], "rope_parameters": {"rope_theta": 1e4}}, r"layer_types \[\] in"),
    *(
        (
            "qwen3_5_text",
            {"rope_parameters": {"full_attention": one}},
            "full_attention .* an object",
        )
        for one in ("text", 3, [1])
    ),
    ("qwen3_next", {"num_experts_per_tok": 6}, "num_experts_per_tok 6 is above num_experts 5"),
    ("qwen3_next", {"mlp_only_layers": "all"}, "mlp_only_layers 'all' in config.json must be a"),
    ("qwen3_next", {"decoder_sparse_step": 0}, "decoder_sparse_step 0 .* must be an integer >= 1"),
    ("qwen3_5_moe_text", {"shared_expert_intermediate_size": None}, "None .* must be an integer"),
    ("mamba2", {"n_groups": 4}, "num_heads 6 must be a multiple of n_groups 4"),
    ("mamba2", {"expand": 3}, "num_heads times head_dim is 48, and expand times hidden_size 72"),
    ("mamba2", {"hidden_act": "gelu"}, "hidden_act 'gelu' is not implemented; only 'silu' is"),
    ("mamba2", {"rms_norm": False}, "rms_norm false is not implemented; only true"),
    *(
        ("mamba2", {"time_step_limit": limit}, "time_step_limit .* must be two numbers >= 0")
        for limit in (
            *([1, 1], [0.5], [-1, 2], ["0", 2], [0, 1e9], [True, 2], "all", {"a": 1}),
            [10**400, math.inf],
        )
    ),
]


@pytest.mark.parametrize(("family", "change", "words"), WRONG)
def test_a_wrong_value_is_refused_by_name(
    family: str, change: dict[str, Any], words: str, tmp_path: Path
) -> None:
    folder = save_folder(checkpoint_of(FAMILIES[family]), tmp_path / "m")
    held = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**held, **change}))
    with pytest.raises(CheckpointError, match=words):
        ptir.load_model(folder, backend=REF)


def test_the_text_of_a_model_that_sees_stands_in_its_config(tmp_path: Path) -> None:
    whole = checkpoint_of(QWEN)
    folder = save_folder(whole, tmp_path / "m")
    outer = {"model_type": "qwen3_5", "tie_word_embeddings": False, "vision_config": {"depth": 2}}
    nested = {**QWEN, "tie_word_embeddings": True, "eos_token_id": 5}
    (folder / "config.json").write_text(json.dumps({**outer, "text_config": nested}))
    opened = prepared(open_checkpoint(folder))
    assert opened.config["vocab_size"] == 97 and "vision_config" not in opened.config
    assert "lm_head.weight" in described(opened).module.parameters()
    wanted = described(replace(whole, source=opened.source)).module.parameters()
    assert described(opened).module.parameters() == wanted


def test_linear_attention_alone_is_a_model_too(tmp_path: Path) -> None:
    config = {**QWEN, "layer_types": ["linear_attention"] * 3}
    model = ptir.load_model(save_folder(checkpoint_of(config), tmp_path / "m"), backend=REF)
    assert model.forward(PROMPTS[0]).shape == (7, 97)
