"""Families that differ from Llama by options against Transformers: the same logits and tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from test_llama import REF, SMALL, assert_greedy_tokens_agree, assert_logits_agree

import ptir

YARN = {
    "rope_type": "yarn",
    "rope_theta": 500.0,
    "factor": 4.0,
    "original_max_position_embeddings": 16,
    "beta_fast": 4.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 0.5,
}
LONG = {"rope_type": "longrope", "short_factor": [1.0, 1.2, 2.0], "long_factor": [1.0, 3.0, 5.0]}
GEMMA = {"head_dim": 20, "sliding_window": 7, "query_pre_attn_scalar": 12}
WINDOW, FULL = "sliding_attention", "full_attention"
GEMMA4 = {
    "head_dim": 12,
    "global_head_dim": 20,
    "sliding_window": 7,
    "vocab_size_per_layer_input": 131,
    "hidden_size_per_layer_input": 6,
    "tie_word_embeddings": True,
}
SHARING = {
    **GEMMA4,
    "num_hidden_layers": 6,
    "layer_types": [WINDOW, FULL, WINDOW, WINDOW, FULL, FULL],
    "num_kv_shared_layers": 3,
    "use_double_wide_mlp": True,
    "final_logit_softcapping": 5.0,
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3": ("qwen3", {"head_dim": 20}),
    "qwen3, biases, a window": (
        "qwen3",
        {
            "head_dim": 20,
            "attention_bias": True,
            "use_sliding_window": True,
            "sliding_window": 5,
            "max_window_layers": 1,
        },
    ),
    "smollm3": ("smollm3", {"no_rope_layer_interval": 2}),
    "smollm3, windows, tied": (
        "smollm3",
        {
            "no_rope_layers": [0, 1, 0],
            "use_sliding_window": True,
            "sliding_window": 6,
            "tie_word_embeddings": True,
        },
    ),
    "granite": (
        "granite",
        {
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.3,
            "attention_multiplier": 0.1,
            "logits_scaling": 2.0,
        },
    ),
    "olmo2": ("olmo2", {"rms_norm_eps": 0.01}),
    "ministral3": (
        "ministral3",
        {"head_dim": 20, "rope_parameters": {**YARN, "llama_4_scaling_beta": 0.3}},
    ),
    "yarn of factors alone": (
        "llama",
        {"rope_scaling": {**YARN, "mscale": None, "truncate": False}},
    ),
    "yarn with a factor of attention": (
        "llama",
        {"rope_scaling": {**YARN, "attention_factor": 1.3}},
    ),
    "phi3": ("phi3", {"sliding_window": 9}),
    "phi3, long": (
        "phi3",
        {
            "partial_rotary_factor": 0.5,
            "original_max_position_embeddings": 32,
            "rope_scaling": LONG,
        },
    ),
    "phi3, short, tied": (
        "phi3",
        {
            "partial_rotary_factor": 0.5,
            "original_max_position_embeddings": 64,
            "rope_scaling": {**LONG, "type": "su"},
            "tie_word_embeddings": True,
        },
    ),
    "gemma": ("gemma", {"head_dim": 20, "tie_word_embeddings": True}),
    "gemma2": ("gemma2", GEMMA),
    "gemma2 without caps": (
        "gemma2",
        {**GEMMA, "attn_logit_softcapping": None, "final_logit_softcapping": None},
    ),
    "gemma3": ("gemma3_text", {**GEMMA, "sliding_window_pattern": 2}),
    "gemma3, linear": (
        "gemma3_text",
        {
            **GEMMA,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 900.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
            },
            "final_logit_softcapping": 3.0,
        },
    ),
    "gemma4": ("gemma4_text", {**GEMMA4, "num_hidden_layers": 7}),
    "gemma4, shared keys": ("gemma4_text", SHARING),
    "gemma4, keys are values, no layer's own inputs, a head": (
        "gemma4_text",
        {
            **GEMMA4,
            "layer_types": [FULL, WINDOW, WINDOW],
            "attention_k_eq_v": True,
            "num_global_key_value_heads": 1,
            "hidden_size_per_layer_input": 0,
            "attention_bias": True,
            "tie_word_embeddings": False,
            "rope_parameters": {
                FULL: {
                    "rope_type": "proportional",
                    "rope_theta": 300.0,
                    "partial_rotary_factor": 0.5,
                    "factor": 2.0,
                },
                WINDOW: {"rope_type": "default", "rope_theta": 50.0},
            },
        },
    ),
    "gemma4 with experts": (
        "gemma4_text",
        {
            "num_hidden_layers": 4,
            "head_dim": 20,
            "global_head_dim": 24,
            "sliding_window": 7,
            "layer_types": [WINDOW, FULL, WINDOW, FULL],
            "hidden_size_per_layer_input": 0,
            "attention_k_eq_v": True,
            "num_global_key_value_heads": 1,
            "enable_moe_block": True,
            "num_experts": 5,
            "top_k_experts": 2,
            "moe_intermediate_size": 24,
        },
    ),
}


@pytest.mark.parametrize(("kind", "change"), CASES.values(), ids=CASES)
def test_logits_agree_with_transformers(kind: str, change: dict[str, Any], tmp_path: Path) -> None:
    assert_logits_agree(kind, change, tmp_path)


@pytest.mark.parametrize(
    ("kind", "change"),
    [case for name, case in CASES.items() if name != "phi3, long"],
    ids=[name for name in CASES if name != "phi3, long"],
)
def test_greedy_tokens_of_ragged_prompts_agree(
    kind: str, change: dict[str, Any], tmp_path: Path
) -> None:
    """Not where a text grows beyond the first context: Transformers keeps short keys then."""
    assert_greedy_tokens_agree(kind, change, tmp_path, different=10)


VISION = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
SEEING: dict[str, tuple[str, dict[str, Any]]] = {
    "mistral3, whose text is a Mistral": ("mistral", {"head_dim": 20, "sliding_window": 7}),
    "gemma3": ("gemma3_text", {**GEMMA, "sliding_window_pattern": 2}),
    "gemma4": ("gemma4_text", SHARING),
    "mistral3": (
        "ministral3",
        {"head_dim": 20, "rope_parameters": {**YARN, "llama_4_scaling_beta": 0.3}},
    ),
}


@pytest.mark.parametrize("case", SEEING)
def test_a_model_that_sees_too_reads_text_as_transformers(case: str, tmp_path: Path) -> None:
    kind, (text, change) = case.partition(",")[0], SEEING[case]
    more = {"vision_feature_layer": -1} if kind == "mistral3" else {"mm_tokens_per_image": 4}
    config = transformers.AutoConfig.for_model(
        kind,
        text_config={"model_type": text, **SMALL, **change, "pad_token_id": 0, "eos_token_id": 1},
        vision_config=VISION,
        **more,
    )
    torch.manual_seed(4)
    model = transformers.AutoModelForImageTextToText.from_config(
        config, attn_implementation="eager", dtype=torch.float32
    ).eval()
    with torch.no_grad():
        for value in model.parameters():
            value.normal_(float(value.ndim == 1), 0.2)
    model.save_pretrained(tmp_path)
    tokens = np.random.default_rng(0).integers(2, SMALL["vocab_size"], (2, 60))
    with torch.no_grad():
        wanted = model(torch.from_numpy(tokens)).logits.numpy()
    found = ptir.load_model(tmp_path, backend=REF).forward(tokens)
    assert np.abs(found - wanted).max() <= 1e-4 * np.abs(wanted).max()
