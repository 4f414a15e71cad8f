"""Families that differ from Llama by options: caches, what their configs may say, their sizes."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

import ptir
from ptir.checkpoint import normalize_config
from ptir.errors import CheckpointError
from ptir.models.rotation import rotation
from ptir.models.table import definition, preset
from ptir.nn.state import KeysValues, SharedState, WindowKeysValues
from ptir.runtime import Model
from ptir.runtime.load import prepared
from ptir.runtime.specs import resolve
from running import REF, llama_folder

LONG = [3, 96, 0, 41, 41, 7, 63, 12, 88, 20, 5, *range(32)]
"""More than a chunk, so that it is cut in two."""
YARN: Final = {
    "rope_type": "yarn",
    "rope_theta": 100.0,
    "factor": 4.0,
    "original_max_position_embeddings": 16,
    "llama_4_scaling_beta": 0.5,
}
LONGROPE: Final = {
    "rope_type": "longrope",
    "rope_theta": 100.0,
    "short_factor": [1.0, 1.5],
    "long_factor": [2.0, 5.0],
    "partial_rotary_factor": 0.5,
}
WINDOWS: Final = {
    "layer_types": ["sliding_attention", "full_attention"],
    "sliding_window": 6,
    "head_dim": 8,
    "query_pre_attn_scalar": 12,
}
CONFIGS: Final[dict[str, dict[str, Any]]] = {
    "qwen3": {"head_dim": 12},
    "smollm3": {"no_rope_layers": [0, 1], "use_sliding_window": True, "sliding_window": 7},
    "granite": {
        "embedding_multiplier": 3.0,
        "residual_multiplier": 0.5,
        "attention_multiplier": 0.2,
        "logits_scaling": 2.0,
    },
    "olmo2": {},
    "ministral3": {"head_dim": 8, "rope_parameters": YARN},
    "phi3": {
        "rope_parameters": LONGROPE,
        "original_max_position_embeddings": 64,
        "max_position_embeddings": 128,
    },
    "gemma": {"head_dim": 12, "hidden_act": "gelu"},
    "gemma2": {
        **WINDOWS,
        "hidden_activation": "gelu_pytorch_tanh",
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
    },
    "gemma3_text": {
        **WINDOWS,
        "hidden_activation": "gelu_pytorch_tanh",
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 10.0},
            "full_attention": {"rope_type": "linear", "rope_theta": 100.0, "factor": 8.0},
        },
    },
    "gemma4_text": {
        "num_hidden_layers": 5,
        "layer_types": [*["sliding_attention", "full_attention"] * 2, "full_attention"],
        "sliding_window": 6,
        "head_dim": 8,
        "global_head_dim": 12,
        "num_kv_shared_layers": 3,
        "use_double_wide_mlp": True,
        "attention_k_eq_v": False,
        "num_global_key_value_heads": 1,
        "hidden_size_per_layer_input": 4,
        "vocab_size_per_layer_input": 97,
        "final_logit_softcapping": 30.0,
        "hidden_activation": "gelu_pytorch_tanh",
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 10.0},
            "full_attention": {
                "rope_type": "proportional",
                "rope_theta": 100.0,
                "partial_rotary_factor": 0.5,
            },
        },
    },
}
"""By ``model_type``: what is said beside the sizes."""


def small(name: str, folder: Path, **more: Any) -> Model:
    config = {"tie_word_embeddings": False, **CONFIGS[name], **more}
    return ptir.load_model(llama_folder(folder, model_type=name, **config), backend=REF)


@pytest.mark.parametrize("name", CONFIGS)
def test_cached_decoding_of_ragged_rows_equals_each_row_at_once(name: str, tmp_path: Path) -> None:
    loaded = small(name, tmp_path)
    prompts = [LONG, [5], [8, 9, 10]]
    rows = loaded.generate_batch(prompts, max_tokens=12, ignore_eos=True)
    for prompt, found in zip(prompts, rows, strict=True):
        logits = loaded.forward([*prompt, *found.token_ids])
        assert logits[len(prompt) - 1 : -1].argmax(-1).tolist() == found.token_ids


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("qwen3-0.6b", 596_049_920),
        ("qwen3-8b", 8_190_735_360),
        ("smollm3-3b", 3_075_098_624),
        ("granite-3.3-2b", 2_533_539_840),
        ("olmo2-1b", 1_484_916_736),
        ("phi3-mini", 3_821_079_552),
        ("phi4-mini", 3_836_021_760),
        ("gemma-2b", 2_506_172_416),
        ("gemma2-2b", 2_614_341_888),
        ("gemma3-270m", 268_098_176),
        ("gemma3-1b", 999_885_952),
        ("gemma4-e2b", 4_628_569_379),
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
            "smollm3",
            {"no_rope_layers": [1]},
            r"no_rope_layers \[1\] in config.json must have a 0 o",
        ),
        ("smollm3", {"no_rope_layers": [1, 2]}, "for each of the 2 layers, 1 for one that rotates"),
        ("granite", {"logits_scaling": 0}, "logits_scaling 0 in config.json must be a number > 0"),
        ("ministral3", {"text_config": [1]}, r"text_config \[1\] must be an object"),
        (
            "phi3",
            {"original_max_position_embeddings": "4"},
            "original_max.* '4' in config.json mus",
        ),
        (
            "gemma2",
            {"query_pre_attn_scalar": -1},
            "query_pre_attn_scalar -1 in config.json must be",
        ),
        (
            "gemma2",
            {"attn_logit_softcapping": 0},
            "attn_logit_softcapping 0 in config.json must be",
        ),
        ("gemma", {"use_bidirectional_attention": True}, "use_bidirectional_attention true is not"),
        (
            "gemma3_text",
            {"attn_logit_softcapping": 5.0},
            "attn_logit_softcapping is not implemente",
        ),
        (
            "gemma3_text",
            {"hidden_activation": "relu"},
            "hidden_activation 'relu' is not implemente",
        ),
        ("gemma4_text", {"enable_moe_block": True}, "num_experts None .* must be an integer >= 1"),
        ("gemma4_text", {"use_bidirectional_attention": "all"}, "attention 'all' is not implement"),
        ("gemma4_text", {"num_kv_shared_layers": 4}, "4 of 5 leaves no layer of full_attention"),
        ("gemma4_text", {"num_kv_shared_layers": 5}, "of full_attention, sliding_attention with"),
        ("gemma4_text", {"vocab_size_per_layer_input": 96}, "input 96 must be at least vocab_size"),
        ("gemma4_text", {"layer_types": ["conv"] * 5}, "layer_types .* must be a list of 5, each"),
        ("gemma4_text", {"per_layer_config": [1]}, r"per_layer_config \[1\] must be an object"),
        (
            "gemma4_text",
            {"per_layer_config": {"1": {"head_dim": 4}}},
            "layers of full_attention have the same head_dim",
        ),
        (
            "gemma4_text",
            {"per_layer_config": {"0": {"vocab_size": 4}, "2": {"vocab_size": 4}}},
            "layers of sliding_attention have the same head_dim and num_key_value_heads, and no mo",
        ),
        (
            "gemma4_text",
            {"per_layer_config": {"0": []}},
            "layers of sliding_attention have the sam",
        ),
    ],
)
def test_configuration_that_cannot_be_run_is_a_checkpoint_error(
    name: str, change: dict[str, Any], words: str, tmp_path: Path
) -> None:
    path = llama_folder(tmp_path, model_type=name, tie_word_embeddings=False, **CONFIGS[name])
    held = json.loads((path / "config.json").read_text(encoding="utf-8"))
    (path / "config.json").write_text(json.dumps({**held, **change}), encoding="utf-8")
    with pytest.raises(CheckpointError, match=words):
        ptir.load_model(path, backend=REF)


def test_longrope_is_chosen_by_what_a_cache_has_room_for() -> None:
    """Short factors up to the first context, long ones for all tokens of what may be longer."""
    config = {"rope_parameters": LONGROPE, "max_position_embeddings": 64}
    found = rotation({**config, "original_max_position_embeddings": 32}, "phi3", 8)
    assert (found.size, found.original) == (4, 32)
    assert found.frequencies == (1.0, pytest.approx(0.1 / 1.5))
    assert found.long == (0.5, pytest.approx(0.1 / 5))
    assert found.attention_factor == pytest.approx(math.sqrt(1 + math.log(2) / math.log(32)))


def test_a_text_beyond_the_first_context_has_long_factors_from_its_first_token(
    tmp_path: Path,
) -> None:
    loaded = small("phi3", tmp_path)
    prompt = [*LONG, *LONG]
    found = loaded.generate(prompt, max_tokens=12, ignore_eos=True).token_ids
    logits = loaded.forward([*prompt, *found])
    assert logits[len(prompt) - 1 : -1].argmax(-1).tolist() == found
    assert not np.allclose(logits[: len(LONG)], loaded.forward(LONG), atol=1e-3)


def test_a_talk_that_outgrows_the_first_context_is_as_one_that_began_beyond_it(
    tmp_path: Path,
) -> None:
    """Keys that short factors rotated do not stand beside those of long ones."""
    loaded = small("phi3", tmp_path)
    state = loaded.new_state(1, 64)
    said = loaded.generate(LONG, max_tokens=8, ignore_eos=True, state=state).token_ids
    text = [*LONG, *said]
    found = loaded.generate(text, max_tokens=40, ignore_eos=True, state=state)
    wanted = loaded.generate(text, max_tokens=40, ignore_eos=True)
    assert (found.token_ids, found.stats.cached_tokens) == (wanted.token_ids, 0)


def test_yarn_keeps_quick_pairs_and_divides_slow_ones() -> None:
    entry = {**YARN, "original_max_position_embeddings": 1024, "beta_fast": 8.0}
    found = rotation({"rope_parameters": entry}, "ministral3", 32)
    plain = [100.0 ** (-pair / 16) for pair in range(16)]
    assert found.frequencies[0] == plain[0]
    assert found.frequencies[-1] > plain[-1] / 4
    assert found.attention_factor == pytest.approx(0.1 * math.log(4) + 1)
    assert (found.growth, found.original) == (0.5, 1024)


def test_what_gemma_3_leaves_out_means_five_windows_and_two_bases(tmp_path: Path) -> None:
    text = {"hidden_size": 24, "num_hidden_layers": 7, "sliding_window": 5, "vocab_size": 9}
    said = {
        "model_type": "gemma3",
        "text_config": text,
        "vision_config": {},
        "eos_token_id": [1, 7],
    }
    model = definition("gemma3")
    prepared = model.prepare(
        {**said, "text_config": {**text, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}}
    )
    assert prepared["model_type"] == "gemma3_text" and prepared["eos_token_id"] == [1, 7]
    assert model.prepare(prepared) == prepared
    built = model.build({**model.defaults, **normalize_config(prepared)}).config
    assert built.windows == (5, 5, 5, 5, 5, None, 5)
    slow, quick = built.rotations[5], built.rotations[0]
    assert slow is not None and quick is not None
    assert slow.frequencies[1] == pytest.approx(1e6 ** (-1 / 128) / 8)
    assert quick.frequencies[1] == pytest.approx(1e4 ** (-1 / 128))


def test_gemma_4_reads_keys_of_the_last_layer_of_a_kind_with_own() -> None:
    said = {"num_hidden_layers": 8, "num_kv_shared_layers": 2, "hidden_size_per_layer_input": 0}
    model = definition("gemma4")
    prepared = model.prepare({"model_type": "gemma4", "text_config": said, "audio_config": None})
    assert model.prepare(prepared) == prepared
    built = model.build({**model.defaults, **normalize_config(prepared)})
    wide, narrow = KeysValues(4, 512), WindowKeysValues(4, 256, 512)
    own = [narrow] * 5 + [wide]
    assert built.states() == (*own, SharedState(4), SharedState(5))
    windows = [one.config.windows[layer] for layer, one in enumerate(built.options.layers)]
    assert windows == [512] * 5 + [None, 512, None]  # the last layer is full, as every sixth
    frequencies = built.layers[5].self_attn.rotation.frequencies
    assert frequencies[:2] == (1.0, pytest.approx(1e6 ** (-1 / 256)))
    assert frequencies[63] > 0 and frequencies[64:] == (0.0,) * 192


def test_entries_of_layers_say_what_two_keys_say(tmp_path: Path) -> None:
    """Transformers writes sizes that differ between layers so."""
    entries = {str(layer): {"head_dim": 12} for layer in (1, 3, 4)}
    plain = small("gemma4_text", tmp_path)
    prompt = [3, 96, 0, 41, 41, 7, 63]
    path = tmp_path / "small" / "config.json"
    held = json.loads(path.read_text(encoding="utf-8"))
    del held["global_head_dim"]
    path.write_text(json.dumps({**held, "per_layer_config": entries}), encoding="utf-8")
    found = ptir.load_model(tmp_path / "small", backend=REF)
    assert (found.forward(prompt) == plain.forward(prompt)).all()


def test_how_many_tokens_there_are_is_known_where_a_configuration_leaves_it_out() -> None:
    said = {"model_type": "gemma3", "text_config": {"hidden_size": 24}}
    checkpoint = replace(resolve("random:gemma3-tiny"), config=said)
    assert prepared(checkpoint).config["vocab_size"] == 262208
    said["text_config"] = {"vocab_size": 9}
    assert prepared(checkpoint).config["vocab_size"] == 9


@pytest.mark.parametrize("name", ["gemma3-tiny", "lfm2-tiny", "llama-tiny", "mixtral-tiny"])
@pytest.mark.parametrize("value", [None, 0, math.nan, "text", [1]])
def test_rotations_and_layer_types_of_another_kind_are_checkpoint_errors(
    name: str, value: Any
) -> None:
    model, config = preset(name)
    for change in ({"rope_parameters": value}, {"layer_types": value or 7}, {"layer_types": [[]]}):
        with pytest.raises(CheckpointError, match=f"{next(iter(change))} .*must be"):
            model.build({**model.defaults, **config, **change})
