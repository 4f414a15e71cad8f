"""Mixtures of experts against Transformers: the same logits and tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from test_llama import assert_greedy_tokens_agree, assert_logits_agree

import ptir
from ptir.checkpoint import save_folder
from ptir.runtime.published import with_files
from ptir.runtime.specs import random_checkpoint

YARN = {
    "rope_type": "yarn",
    "rope_theta": 500.0,
    "factor": 8.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 20,
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "mixtral": ("mixtral", {"num_local_experts": 5, "num_experts_per_tok": 2}),
    "mixtral, one expert, a window": (
        "mixtral",
        {"num_local_experts": 3, "num_experts_per_tok": 1, "sliding_window": 7},
    ),
    "qwen3_moe": (
        "qwen3_moe",
        {
            "num_experts": 6,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 24,
            "head_dim": 16,
            "norm_topk_prob": True,
        },
    ),
    "qwen3_moe, layers without experts, weights as they are": (
        "qwen3_moe",
        {
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
            "head_dim": 16,
            "mlp_only_layers": [1],
        },
    ),
    "granitemoe": (
        "granitemoe",
        {
            "num_local_experts": 5,
            "num_experts_per_tok": 2,
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.6,
            "attention_multiplier": 0.2,
            "logits_scaling": 2.0,
        },
    ),
    "gpt_oss": (
        "gpt_oss",
        {
            "num_local_experts": 5,
            "num_experts_per_tok": 2,
            "head_dim": 16,
            "sliding_window": 7,
            "swiglu_limit": 0.7,
            "rope_parameters": YARN,
        },
    ),
}


@pytest.mark.parametrize(("kind", "change"), CASES.values(), ids=CASES)
def test_logits_agree_with_transformers(kind: str, change: dict[str, Any], tmp_path: Path) -> None:
    assert_logits_agree(kind, change, tmp_path)


@pytest.mark.parametrize(("kind", "change"), CASES.values(), ids=CASES)
def test_greedy_tokens_of_ragged_prompts_agree(
    kind: str, change: dict[str, Any], tmp_path: Path
) -> None:
    assert_greedy_tokens_agree(kind, change, tmp_path, different=3)


@pytest.mark.parametrize(
    "preset",
    ["mixtral-tiny", "qwen3_moe-tiny", "granitemoe-tiny", "qwen3.5-moe-tiny", "qwen3_next-tiny"],
)
def test_transformers_read_the_folders_that_are_written(preset: str, tmp_path: Path) -> None:
    """Experts have the names of their family, not those of the matrices of all of them."""
    folder = save_folder(with_files(random_checkpoint(preset, 0)), tmp_path / "folder")
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    tokens = [*range(1, 30)]
    with torch.no_grad():
        wanted = model(torch.tensor([tokens])).logits[0].numpy()
    found = ptir.load_model(folder, backend="ref", dtype="f32").forward(tokens)
    assert np.abs(found - wanted).max() <= 1e-4 * np.abs(wanted).max()
