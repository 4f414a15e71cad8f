"""Families with layer norms against Transformers: its checkpoints, the same logits and tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from test_llama import assert_greedy_tokens_agree, assert_logits_agree

HEADS = {"hidden_size": 64, "num_attention_heads": 4}
LINEAR = {"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0, "partial_rotary_factor": 0.5}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt_neox": ("gpt_neox", {"rotary_emb_base": 300.0}),
    "gpt_neox, one after the other": (
        "gpt_neox",
        {"use_parallel_residual": False, "rotary_pct": 1.0, "hidden_act": "gelu_fast"},
    ),
    "gpt_neox, no biases, tied": (
        "gpt_neox",
        {"attention_bias": False, "rotary_pct": 0.5, "tie_word_embeddings": True},
    ),
    "gpt_neox, linear": ("gpt_neox", {"rope_scaling": LINEAR}),
    "falcon": ("falcon", {"ffn_hidden_size": 80}),
    "falcon, biases, one after the other": (
        "falcon",
        {"bias": True, "parallel_attn": False, "tie_word_embeddings": True},
    ),
    "falcon, a key head each": ("falcon", {"multi_query": False, "hidden_size": 56}),
    "falcon, new": ("falcon", {"new_decoder_architecture": True, "num_kv_heads": 2}),
    "falcon, new with one norm": (
        "falcon",
        {
            "new_decoder_architecture": True,
            "num_attention_heads": 6,
            "hidden_size": 60,
            "num_kv_heads": 3,
            "num_ln_in_parallel_attn": 1,
            "activation": "relu",
        },
    ),
    "opt": ("opt", {"ffn_dim": 80}),
    "opt, narrow tokens, norms behind": (
        "opt",
        {
            "ffn_dim": 80,
            "word_embed_proj_dim": 40,
            "do_layer_norm_before": False,
        },
    ),
    "opt, no biases, no last norm": (
        "opt",
        {
            "ffn_dim": 80,
            "enable_bias": False,
            "tie_word_embeddings": True,
            "_remove_final_layer_norm": True,
            "activation_function": "gelu",
        },
    ),
    "stablelm": ("stablelm", {"num_key_value_heads": 4}),
    "stablelm, biases, beside each other": (
        "stablelm",
        {"use_qkv_bias": True, "use_parallel_residual": True, "partial_rotary_factor": 0.5},
    ),
    "stablelm, norms of heads": ("stablelm", {"qk_layernorm": True, "hidden_act": "gelu"}),
    "starcoder2": ("starcoder2", {"norm_epsilon": 0.1}),
    "starcoder2, a window": ("starcoder2", {"sliding_window": 7, "tie_word_embeddings": True}),
    "starcoder2, no biases": ("starcoder2", {"use_bias": False, "num_key_value_heads": 1}),
    "phi": ("phi", {"num_key_value_heads": None}),
    "phi, norms of heads": (
        "phi",
        {"qk_layernorm": True, "num_key_value_heads": 2, "partial_rotary_factor": 0.25},
    ),
}


@pytest.mark.parametrize(("kind", "change"), CASES.values(), ids=CASES)
def test_logits_agree_with_transformers(kind: str, change: dict[str, Any], tmp_path: Path) -> None:
    assert_logits_agree(kind, {**HEADS, **change}, tmp_path)


@pytest.mark.parametrize(("kind", "change"), CASES.values(), ids=CASES)
def test_greedy_tokens_of_ragged_prompts_agree(
    kind: str, change: dict[str, Any], tmp_path: Path
) -> None:
    assert_greedy_tokens_agree(kind, {**HEADS, **change}, tmp_path, different=10)
