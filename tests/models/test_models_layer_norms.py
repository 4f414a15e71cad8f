"""Families with layer norms: caches, what their configs may say, names, and published sizes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ptir
from layer_norm_families import CONFIGS, VARIANTS, folder_of
from ptir.checkpoint import normalize_config, save_folder
from ptir.errors import CheckpointError
from ptir.models.table import definition, preset
from ptir.params.source import RenamedSource
from running import REF, assert_close

LONG = [3, 96, 0, 41, 41, 7, 63, 12, 88, 20, 5, *range(32)]
"""More than a chunk, so that it is cut in two."""


@pytest.mark.parametrize("name", VARIANTS)
def test_cached_decoding_of_ragged_rows_equals_each_row_at_once(name: str, tmp_path: Path) -> None:
    loaded = ptir.load_model(folder_of(VARIANTS[name], tmp_path), backend=REF)
    prompts = [LONG, [5], [8, 9, 10]]
    for prompt, found in zip(
        prompts, loaded.generate_batch(prompts, max_tokens=12, ignore_eos=True), strict=True
    ):
        logits = loaded.forward([*prompt, *found.token_ids])
        assert logits[len(prompt) - 1 : -1].argmax(-1).tolist() == found.token_ids


@pytest.mark.parametrize("name", CONFIGS)
def test_words_of_weights_are_computed_with_as_they_are(name: str, tmp_path: Path) -> None:
    """Fused and interleaved weights too are quantized, all but norms, biases and tables."""
    folder = folder_of(CONFIGS[name], tmp_path)
    exact = ptir.load_model(folder, backend=REF)
    narrow = ptir.load_model(folder, backend=REF, quant="int8")
    names = set(exact.module.weights())
    matrices = {key for key, type_ in exact.module.parameters().items() if type_.rank == 2}
    assert names == {key for key in matrices if "embed" not in key}
    assert_close(narrow.forward(LONG), exact.forward(LONG), 0.1)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("pythia-160m", 162_322_944),
        ("pythia-1.4b", 1_414_647_808),
        ("falcon-7b", 6_921_720_704),
        ("opt-125m", 125_239_296),
        ("opt-1.3b", 1_315_758_080),
        ("stablelm-2-1_6b", 1_644_515_328),
        ("starcoder2-3b", 3_030_371_328),
        ("phi-2", 2_779_683_840),
    ],
)
def test_presets_have_the_published_sizes(name: str, parameters: int) -> None:
    architecture, config = preset(name)
    types = architecture.build(config).parameters().values()
    assert sum(type_.size for type_ in types) == parameters


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        (
            "gpt_neox",
            {"hidden_act": "mish"},
            "gpt_neox: hidden_act 'mish' is not implemented; silu",
        ),
        (
            "gpt_neox",
            {"num_attention_heads": 5},
            "hidden_size 32 must be a multiple of .* 5",
        ),
        ("gpt_neox", {"head_dim": 16}, "head_dim 16 is not implemented; only 8, hidden_size /"),
        ("phi", {"num_key_value_heads": 3}, "num_attention_heads 4 must be a multiple of the 3 he"),
        ("falcon", {"alibi": True}, "falcon: alibi true is not implemented; only false is"),
        (
            "falcon",
            {"num_ln_in_parallel_attn": 2},
            "num_ln_in_parallel_attn 2 and new_decoder_architecture false is not implemented",
        ),
        (
            "falcon",
            {"new_decoder_architecture": True, "parallel_attn": False},
            "falcon: parallel_attn false with num_ln_in_parallel_attn 2",
        ),
        ("opt", {"layer_norm_elementwise_affine": False}, "elementwise_affine false is not impl"),
        ("opt", {"word_embed_proj_dim": 0}, "word_embed_proj_dim 0 in config.json must be .* null"),
        (
            "stablelm",
            {"layer_norm_eps": -1},
            "layer_norm_eps -1 in config.json must be a num",
        ),
        ("starcoder2", {"sliding_window": 0}, "sliding_window 0 in config.json must be .* or null"),
    ],
)
def test_configuration_that_cannot_be_run_is_a_checkpoint_error(
    name: str, change: dict[str, Any], words: str, tmp_path: Path
) -> None:
    path = folder_of(CONFIGS[name], tmp_path)
    (path / "config.json").write_text(json.dumps({**CONFIGS[name], **change}), encoding="utf-8")
    with pytest.raises(CheckpointError, match=words):
        ptir.load_model(path, backend=REF)


@pytest.mark.parametrize(
    ("partial", "words"),
    [
        (2, "partial_rotary_factor 2 in config.json must be a number > 0 and <= 1"),
        ("all", "partial_rotary_factor 'all' in config.json must be a number"),
        (0.1, "partial_rotary_factor 0.1 rotates 0 of 8 dimensions; an even number >= 2 is needed"),
        (0.4, "partial_rotary_factor 0.4 rotates 3 of 8 dimensions; an even number >= 2"),
    ],
)
def test_a_part_of_a_head_that_cannot_rotate_is_named(partial: Any, words: str) -> None:
    rope = {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": partial}
    with pytest.raises(CheckpointError, match=words):
        definition("phi").build({**CONFIGS["phi"], "rope_parameters": rope})


def test_what_a_config_leaves_out_means_what_the_family_means() -> None:
    """A quarter of a head rotates in GPT-NeoX and StableLM, half of it in Phi, all in others."""
    rotated = {}
    for name, config in CONFIGS.items():
        rest = {key: value for key, value in config.items() if key != "rope_parameters"}
        architecture = definition(name)
        built = architecture.build({**architecture.defaults, **rest})
        rotated[name] = 2 * len(built.config.heads.frequencies)
    assert rotated == {
        "gpt_neox": 2,
        "falcon": 8,
        "opt": 0,
        "stablelm": 2,
        "starcoder2": 8,
        "phi": 4,
    }


def test_the_first_spelling_of_rotation_means_the_same() -> None:
    rest = {key: one for key, one in CONFIGS["gpt_neox"].items() if key != "rope_parameters"}
    old = {"rotary_pct": 0.5, "rotary_emb_base": 100}
    new = {"rope_theta": 100.0, "partial_rotary_factor": 0.5}
    built = [
        definition("gpt_neox").build(normalize_config({**rest, **one})).config for one in (old, new)
    ]
    assert built[0] == built[1]
    assert built[0].heads.frequencies == (1.0, pytest.approx(0.1))


def test_a_head_under_its_first_name_is_read(tmp_path: Path) -> None:
    """Pythia's files call it ``embed_out``."""
    new = ptir.load_model(folder_of(CONFIGS["gpt_neox"], tmp_path / "new"), backend=REF)
    source = new.checkpoint.source
    names = {name.replace("lm_head", "embed_out"): name for name in source.names()}
    assert "embed_out.weight" in names
    old = replace(new.checkpoint, source=RenamedSource(source, names))
    found = ptir.load_model(save_folder(old, tmp_path / "old"), backend=REF)
    assert np.array_equal(found.forward(LONG), new.forward(LONG))
