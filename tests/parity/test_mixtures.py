"""Mixtures of experts against Transformers: the same logits and tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_llama import NEW, PROMPTS, REF, SMALL, theirs

import ptir

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "mixtral": ("mixtral", {"num_local_experts": 5, "num_experts_per_tok": 2}),
    "mixtral, one expert, a window": (
        "mixtral",
        {"num_local_experts": 3, "num_experts_per_tok": 1, "sliding_window": 7},
    ),
}


@pytest.mark.parametrize(("kind", "change"), CASES.values(), ids=CASES)
def test_logits_agree_with_transformers(kind: str, change: dict[str, Any], tmp_path: Path) -> None:
    tokens = np.random.default_rng(0).integers(0, SMALL["vocab_size"], (2, 60))
    with torch.no_grad():
        wanted = theirs(kind, change, tmp_path)(torch.from_numpy(tokens)).logits.numpy()
    found = ptir.load_model(tmp_path, backend=REF).forward(tokens)
    assert np.abs(found - wanted).max() <= 1e-4 * np.abs(wanted).max()


@pytest.mark.parametrize(("kind", "change"), CASES.values(), ids=CASES)
def test_greedy_tokens_of_ragged_prompts_agree(
    kind: str, change: dict[str, Any], tmp_path: Path
) -> None:
    model = theirs(kind, change, tmp_path)
    wanted = []
    for prompt in PROMPTS:
        ids = torch.tensor([prompt])
        made = model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=NEW
        )
        wanted.append(made[0, len(prompt) :].tolist())
    ours = ptir.load_model(tmp_path, backend=REF)
    found = ours.generate_batch(PROMPTS, max_tokens=NEW, ignore_eos=True)
    assert [one.token_ids for one in found] == wanted
