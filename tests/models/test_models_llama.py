"""Llama and its relatives against a plain f64 NumPy model, and what their configs may say."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ptir
from ptir.errors import CheckpointError, TypeRuleError
from ptir.functional import concat_weights
from ptir.functional.linear import QuantizedWeight
from ptir.models.rotation import frequencies
from ptir.models.table import definition, preset
from ptir.params.quantized import quantization, round_to_nearest
from ptir.runtime import Model
from running import LLAMA, REF, assert_close, llama_folder

TOKENS = [3, 96, 0, 41, 41, 7, 63, 12, 88, 20, 5]
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}


def small(folder: Path, **config: Any) -> Model:
    return ptir.load_model(llama_folder(folder, **config), backend=REF)


def norm(x: Any, weight: Any, epsilon: float) -> Any:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon) * weight


def turned(head: Any, position: int, theta: float) -> Any:
    """A head with its pairs (i, i + half) as complex numbers, turned by multiplication."""
    half = len(head) // 2
    speeds = theta ** (-np.arange(half) / half)
    pairs = (head[:half] + 1j * head[half:]) * np.exp(1j * position * speeds)
    return np.concatenate([pairs.real, pairs.imag])


def witness(w: dict[str, Any], config: dict[str, Any], tokens: list[int]) -> Any:
    """Logits f64[T,V], one head and one query at a time, no cache, no batch."""
    epsilon, theta = config.get("rms_norm_eps", 1e-6), config["rope_theta"]
    heads, groups = config["num_attention_heads"], config["num_key_value_heads"]
    size = config.get("head_dim", config["hidden_size"] // heads)
    window = config.get("sliding_window") or len(tokens)

    def affine(x: Any, name: str) -> Any:
        return x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", 0.0)

    x = w["embed_tokens.weight"][tokens]
    for layer in range(config["num_hidden_layers"]):
        name = f"layers.{layer}"
        normed = norm(x, w[f"{name}.input_layernorm.weight"], epsilon)
        q, k, v = (
            affine(normed, f"{name}.self_attn.{part}_proj").reshape(len(x), -1, size)
            for part in "qkv"
        )
        merged = np.zeros((len(x), heads, size))
        for head in range(heads):
            group = head // (heads // groups)
            for t in range(len(x)):
                seen = range(max(0, t - window + 1), t + 1)
                query = turned(q[t, head], t, theta)
                keys = np.array([turned(k[s, group], s, theta) for s in seen])
                scores = keys @ query / math.sqrt(size)
                weights = np.exp(scores - scores.max())
                merged[t, head] = weights / weights.sum() @ v[seen, group]
        x = x + affine(merged.reshape(len(x), -1), f"{name}.self_attn.o_proj")
        normed = norm(x, w[f"{name}.post_attention_layernorm.weight"], epsilon)
        gate, up = (affine(normed, f"{name}.mlp.{part}_proj") for part in ("gate", "up"))
        x = x + affine(gate / (1 + np.exp(-gate)) * up, f"{name}.mlp.down_proj")
    head = w.get("lm_head.weight", w["embed_tokens.weight"])
    return norm(x, w["norm.weight"], epsilon) @ head.T


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"tie_word_embeddings": True, "num_key_value_heads": 4},
        {"num_key_value_heads": 1, "head_dim": 6, "rms_norm_eps": 0.1},
        {"attention_bias": True, "mlp_bias": True},
        {"model_type": "mistral", "sliding_window": 3},
        {"model_type": "qwen2"},
    ],
    ids=["plain", "tied", "one key head", "biases", "mistral", "qwen2"],
)
def test_logits_equal_those_of_a_plain_model(config: dict[str, Any], tmp_path: Path) -> None:
    loaded = small(tmp_path, **config)
    source = loaded.checkpoint.source
    weights = {name: source.read(name).astype(np.float64) for name in source.names()}
    assert_close(loaded.forward(TOKENS), witness(weights, {**LLAMA, **config}, TOKENS))


def test_cached_decoding_of_ragged_rows_equals_each_row_at_once(tmp_path: Path) -> None:
    loaded = small(tmp_path, rope_parameters={**LLAMA3, "rope_theta": 100.0})
    prompts = [TOKENS, [5], [8, 9, 10]]
    for prompt, found in zip(
        prompts, loaded.generate_batch(prompts, max_tokens=30, ignore_eos=True), strict=True
    ):
        logits = loaded.forward([*prompt, *found.token_ids])
        assert logits[len(prompt) - 1 : -1].argmax(-1).tolist() == found.token_ids


def test_projections_appear_in_traces_though_they_are_computed_together(tmp_path: Path) -> None:
    found = small(tmp_path).trace(TOKENS)
    assert found["layers.1.self_attn.k_proj"].shape == (1, len(TOKENS), 16)
    gate, up = found["layers.0.mlp.gate_proj"], found["layers.0.mlp.up_proj"]
    assert gate.shape == up.shape == (1, len(TOKENS), 64) and not np.array_equal(gate, up)


def test_parameter_names_are_the_keys_of_checkpoints() -> None:
    architecture, config = preset("llama-tiny")
    found = architecture.build(config).parameters()
    projections = [f"self_attn.{part}_proj" for part in "qkvo"]
    projections += [f"mlp.{part}_proj" for part in ("gate", "up", "down")]
    parts = (*projections, "input_layernorm", "post_attention_layernorm")
    layers = {f"layers.{i}.{part}.weight" for i in range(3) for part in parts}
    assert set(found) == {"embed_tokens.weight", "norm.weight", "lm_head.weight"} | layers
    assert str(found["layers.1.self_attn.k_proj.weight"]) == "f32[32,64]"


@pytest.mark.parametrize(
    ("name", "parameters"), [("llama-1b", 1_235_814_400), ("llama-8b", 8_030_261_248)]
)
def test_presets_have_the_published_sizes(name: str, parameters: int) -> None:
    architecture, config = preset(name)
    types = architecture.build(config).parameters().values()
    assert sum(type_.size for type_ in types) == parameters
    assert architecture.context(config) == 131072


def test_llama3_slows_down_slow_pairs_and_leaves_quick_ones() -> None:
    config = {"rope_parameters": {**LLAMA3, "rope_theta": 100.0}}
    plain = [100.0 ** (-pair / 4) for pair in range(4)]
    turns = [32 * frequency / (2 * math.pi) for frequency in plain]
    assert turns[0] > 4 > turns[1] > 1 > turns[2] > turns[3]
    found = frequencies(config, "llama", 8)
    assert found[0] == plain[0]
    assert found[2:] == (plain[2] / 4, plain[3] / 4)
    quick = (turns[1] - 1) / 3
    assert found[1] == pytest.approx(plain[1] * (quick + (1 - quick) / 4))


@pytest.mark.parametrize("kind", ["mistral", "qwen2"])
def test_what_a_config_leaves_out_means_what_the_family_means(kind: str, tmp_path: Path) -> None:
    """Mistral sees a window and has eight key heads unless told otherwise, Qwen2 sees all."""
    sizes = {name: LLAMA[name] for name in LLAMA if name != "num_key_value_heads"}
    wide = {**sizes, "model_type": kind, "num_attention_heads": 8, "max_position_embeddings": 9000}
    config = {**definition(kind).defaults, **wide}
    built = definition(kind).build(config)
    assert built.config.windows == ((4096,) * 2 if kind == "mistral" else (None,) * 2)
    assert built.config.num_key_value_heads == 8
    assert ("layers.0.self_attn.q_proj.bias" in built.parameters()) == (kind == "qwen2")
    assert "layers.0.self_attn.o_proj.bias" not in built.parameters()


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"hidden_act": "mish"}, "llama: hidden_act 'mish' is not implemented; silu, gelu, gelu_n"),
        (
            {"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}},
            r"llama: rope_type 'dynamic' is not implemented; default, divided, linear, llama3, lon",
        ),
        (
            {"rope_scaling": {"rope_type": "yarn", "factor": -4.0}},
            r"rope_type 'yarn': factor -4.0 in config.json must be a number > 0",
        ),
        (
            {"rope_scaling": {"rope_type": "longrope", "short_factor": [1.0] * 3}},
            r"rope_type 'longrope': short_factor must be a list of 4, one for each pair",
        ),
        (
            {"rope_scaling": {"type": "llama3", "factor": 8.0}},
            "rope_type 'llama3': low_freq_factor None in config.json must be a number > 0",
        ),
        (
            {"rope_scaling": {**LLAMA3, "low_freq_factor": 4.0}},
            "low_freq_factor 4 must be less than high_freq_factor 4",
        ),
        ({"partial_rotary_factor": 0.4}, "partial_rotary_factor 0.4 rotates 3 of 8 dimensions; an"),
        ({"partial_rotary_factor": 0.5}, "rotates 4 of 8 dimensions, which is not implemented for"),
        ({"partial_rotary_factor": 2}, "partial_rotary_factor 2 in config.json must be .* <= 1"),
        ({"num_key_value_heads": 3}, "num_attention_heads 4 must be a multiple of.*heads 3"),
        ({"num_attention_heads": 5}, "hidden_size 32 is not a multiple of num_attention_heads 5"),
        ({"head_dim": 7}, "head_dim 7 must be even"),
        ({"intermediate_size": None}, "intermediate_size None in config.json must be an integer"),
        ({"num_hidden_layers": "2"}, "num_hidden_layers '2' in config.json must be an integer"),
        ({"rms_norm_eps": 0}, "rms_norm_eps 0 in config.json must be a number > 0 and <= 1;"),
        ({"attention_bias": True}, "tensors missing .layers.0.self_attn.q_proj.bias"),
        ({"sliding_window": 0}, "sliding_window 0 in config.json must be .* or null; correct"),
        (
            {"layer_types": ["full_attention", "chunked_attention"]},
            "layer_types must be .*for each of the 2 layers; 2 given, other kinds: chunked_att",
        ),
    ],
)
def test_configuration_that_cannot_be_run_is_a_checkpoint_error(
    config: dict[str, Any], words: str, tmp_path: Path
) -> None:
    path = llama_folder(tmp_path)
    held = json.loads((path / "config.json").read_text(encoding="utf-8"))
    (path / "config.json").write_text(json.dumps({**held, **config}), encoding="utf-8")
    with pytest.raises(CheckpointError, match=words):
        ptir.load_model(path, backend=REF)


def test_a_window_that_is_not_used_may_be_anything(tmp_path: Path) -> None:
    loaded = small(tmp_path, model_type="qwen2", use_sliding_window=False, sliding_window=0)
    assert loaded.module.config.windows == (None, None)


@pytest.mark.parametrize(
    ("options", "share"), [({"dtype": "bf16"}, 0.05), ({"quant": "int8"}, 0.1)]
)
def test_narrow_weights_give_logits_near_f32(
    options: dict[str, str], share: float, tmp_path: Path
) -> None:
    path = llama_folder(tmp_path)
    exact = ptir.load_model(path, backend=REF).forward(TOKENS)
    narrow = ptir.load_model(path, backend=REF, **options).forward(TOKENS)
    assert_close(narrow, exact, share)
    assert not np.array_equal(narrow, exact)


@pytest.mark.parametrize("quant", ["int8", "int4"])
def test_quantized_weights_are_computed_with_as_they_are_rounded(
    quant: str, tmp_path: Path
) -> None:
    """Rounding all weights first and computing in f32 gives the same logits."""
    path = llama_folder(tmp_path)
    plain = ptir.load_model(path, backend=REF)
    how, source = quantization(quant), plain.checkpoint.source
    axes = definition("llama").build(LLAMA).weights()
    weights = {}
    for name in source.names():
        value = source.read(name).astype(np.float64)
        if name in axes:
            words, scale = round_to_nearest(source.read(name), axes[name], how)
            per, mask = 32 // how.bits, 2**how.bits - 1
            steps = (words[..., None] >> (np.arange(per, dtype=np.uint32) * how.bits)) & mask
            levels = steps.reshape(value.shape).astype(np.float64) - how.zero
            value = levels * np.repeat(scale.astype(np.float64), how.group, axis=-1)
        weights[name] = value
    assert len(axes) == 7 * 2 + 1
    found = ptir.load_model(path, backend=REF, quant=quant).forward(TOKENS)
    assert_close(found, witness(weights, LLAMA, TOKENS))


def test_weights_that_are_stored_unlike_cannot_be_joined() -> None:
    words = ptir.tensor(np.zeros((4, 4), np.uint32), backend=REF)
    scale, dense = (ptir.tensor(np.zeros((4, n), "f4"), backend=REF) for n in (1, 16))
    eight = QuantizedWeight(words, scale, axis=1, bits=8, group=16, zero=128)
    four = QuantizedWeight(words, scale, axis=1, bits=4, group=32, zero=8)
    for weights in ([eight, four], [eight, dense]):
        with pytest.raises(
            TypeRuleError, match=r"concat_weights.*stored alike.*join those that are"
        ):
            concat_weights(weights, axis=0)
