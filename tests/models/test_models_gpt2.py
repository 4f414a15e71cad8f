"""GPT-2 against a plain f64 NumPy model written from the paper, and the table of architectures."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ptir.errors import PluginError, UsageError
from ptir.models.table import MODELS, define_model, definition, preset
from running import assert_close, small

TOKENS = [3, 96, 0, 41, 41, 7, 63, 12, 88, 20, 5]


def norm(x: Any, weights: dict[str, Any], name: str, epsilon: float) -> Any:
    centred = x - x.mean(-1, keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + epsilon)
    return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def affine(x: Any, weights: dict[str, Any], name: str) -> Any:
    return x @ weights[f"{name}.weight"] + weights[f"{name}.bias"]


def gelu(x: Any, kind: str) -> Any:
    if kind == "gelu":
        return x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2
    return x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2


def witness(w: dict[str, Any], config: dict[str, Any], tokens: list[int]) -> Any:
    """Logits f64[T,V] of GPT-2, one head and one query at a time, no cache, no batch."""
    epsilon = config.get("layer_norm_epsilon", 1e-5)
    x = w["wte.weight"][tokens] + w["wpe.weight"][: len(tokens)]
    size = config["n_embd"] // config["n_head"]
    for layer in range(config["n_layer"]):
        name = f"h.{layer}"
        fused = affine(norm(x, w, f"{name}.ln_1", epsilon), w, f"{name}.attn.c_attn")
        q, k, v = np.split(fused, 3, axis=-1)
        merged = np.zeros_like(x)
        for head in range(config["n_head"]):
            part = slice(head * size, (head + 1) * size)
            for t in range(len(tokens)):
                scores = k[: t + 1, part] @ q[t, part] / math.sqrt(size)
                if config.get("scale_attn_by_inverse_layer_idx"):
                    scores = scores / (layer + 1)
                weights = np.exp(scores - scores.max())
                merged[t, part] = weights / weights.sum() @ v[: t + 1, part]
        x = x + affine(merged, w, f"{name}.attn.c_proj")
        hidden = affine(norm(x, w, f"{name}.ln_2", epsilon), w, f"{name}.mlp.c_fc")
        hidden = gelu(hidden, config.get("activation_function", "gelu_new"))
        x = x + affine(hidden, w, f"{name}.mlp.c_proj")
    return norm(x, w, "ln_f", epsilon) @ w["wte.weight"].T


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"activation_function": "gelu"},
        {"scale_attn_by_inverse_layer_idx": True, "n_layer": 3},
        {"layer_norm_epsilon": 0.1, "n_head": 1, "n_inner": 40},
    ],
)
def test_logits_equal_those_of_a_plain_model(config: dict[str, Any], tmp_path: Path) -> None:
    loaded = small(tmp_path, **config)
    source = loaded.checkpoint.source
    weights = {name: source.read(name).astype(np.float64) for name in source.names()}
    expected = witness(weights, dict(loaded.checkpoint.config), TOKENS)
    assert_close(loaded.forward(TOKENS), expected)


def test_parameter_names_are_the_keys_of_checkpoints() -> None:
    architecture, config = preset("gpt2-tiny")
    found = architecture.build(config).parameters()
    parts = ("ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj")
    layers = [f"h.{i}.{part}" for i in range(2) for part in parts]
    pairs = {f"{name}.{what}" for name in [*layers, "ln_f"] for what in ("weight", "bias")}
    assert set(found) == {"wte.weight", "wpe.weight"} | pairs
    assert str(found["h.1.attn.c_attn.weight"]) == "f32[64,192]"


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("gpt2", 124_439_808), ("gpt2-medium", 354_823_168), ("gpt2-xl", 1_557_611_200)],
)
def test_presets_have_the_published_sizes(name: str, parameters: int) -> None:
    architecture, config = preset(name)
    types = architecture.build(config).parameters().values()
    assert sum(type_.size for type_ in types) == parameters
    assert architecture.context(config) == 1024


def test_unknown_names_name_what_exists() -> None:
    with pytest.raises(UsageError, match=r"unknown model_type 'gpt' .nearest: gpt2"):
        definition("gpt")
    with pytest.raises(UsageError, match=r"unknown random model 'gpt2-tin' .nearest: gpt2-tiny"):
        preset("gpt2-tin")


def test_model_type_cannot_be_defined_twice() -> None:
    definition("gpt2")
    with pytest.raises(PluginError, match="'gpt2' is defined twice"):
        define_model(MODELS["gpt2"])
