"""Llama and its relatives against Transformers: checkpoints of either side, the same logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import ptir
import ptir_backend_ref
from ptir.backend.contract import Target
from ptir.checkpoint import save_folder
from ptir.peers.definitions import GENERATE, open_peer
from ptir.runtime.specs import random_checkpoint
from window_models import with_room

REF = Target(ptir_backend_ref.backend, ptir_backend_ref.backend.devices()[0])
SMALL: dict[str, Any] = {
    "vocab_size": 131,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 160,
    "rope_theta": 500.0,
    "tie_word_embeddings": False,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("llama", {}),
    "one key head": ("llama", {"num_key_value_heads": 1}),
    "a key head each": ("llama", {"num_key_value_heads": 4}),
    "groups of three, wide heads": (
        "llama",
        {"num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 20},
    ),
    "llama3": ("llama", {"rope_scaling": LLAMA3}),
    "linear": ("llama", {"rope_scaling": {"rope_type": "linear", "factor": 4.0}}),
    "tied": ("llama", {"tie_word_embeddings": True}),
    "biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "large epsilon": ("llama", {"rms_norm_eps": 0.1}),
    "mistral": ("mistral", {"sliding_window": 7}),
    "mistral without a window": ("mistral", {"sliding_window": None}),
    "qwen2": ("qwen2", {}),
    "qwen2 with a window": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
    ),
}
PROMPTS = [[7, 100, 3, 55, 55, 9, 23, 1, 64, 11], [2], [130, 8, 41, 19, 77]]
NEW = 36


def theirs(kind: str, change: dict[str, Any], folder: Path) -> Any:
    """A random model of Transformers, saved in ``folder`` too, with nothing left at 0 or 1."""
    config = transformers.AutoConfig.for_model(
        kind, **{**SMALL, **change}, pad_token_id=0, eos_token_id=None, bos_token_id=1
    )
    torch.manual_seed(4)
    found = transformers.AutoModelForCausalLM.from_config(
        config, attn_implementation="eager", dtype=torch.float32
    ).eval()
    with torch.no_grad():
        kept = [row for row in found.named_buffers() if row[0] in found.state_dict()]
        for name, value in (*found.named_parameters(), *kept):
            is_norm = value.ndim == 1 and name.endswith(("weight", "layer_scalar"))
            value.normal_(float(is_norm), 0.2)
    found.save_pretrained(folder)
    return found


def assert_logits_agree(
    kind: str, change: dict[str, Any], folder: Path, *, length: int = 60
) -> None:
    """Those of two rows of ``length`` tokens, within 1e-4 of the largest."""
    tokens = np.random.default_rng(0).integers(0, SMALL["vocab_size"], (2, length))
    with torch.no_grad():
        wanted = theirs(kind, change, folder)(torch.from_numpy(tokens)).logits.numpy()
    found = ptir.load_model(folder, backend=REF).forward(tokens)
    assert found.shape == wanted.shape
    assert np.abs(found - wanted).max() <= 1e-4 * np.abs(wanted).max()


def assert_greedy_tokens_agree(
    kind: str, change: dict[str, Any], folder: Path, *, different: int = 20
) -> None:
    """Those that follow prompts of unequal lengths, more than ``different`` of which differ."""
    model = theirs(kind, change, folder)
    wanted = []
    for prompt in PROMPTS:
        ids = torch.tensor([prompt])
        made = model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=NEW
        )
        wanted.append(made[0, len(prompt) :].tolist())
    for swa_full in (False, True):
        ours = with_room(ptir.load_model(folder, backend=REF, swa_full=swa_full))
        found = ours.generate_batch(PROMPTS, max_tokens=NEW, ignore_eos=True)
        assert [one.token_ids for one in found] == wanted
    assert len({token for row in wanted for token in row}) > different


@pytest.mark.parametrize(("kind", "change"), CASES.values(), ids=CASES)
def test_logits_agree_with_transformers(kind: str, change: dict[str, Any], tmp_path: Path) -> None:
    assert_logits_agree(kind, change, tmp_path)


@pytest.mark.parametrize(("kind", "change"), CASES.values(), ids=CASES)
def test_greedy_tokens_of_ragged_prompts_agree(
    kind: str, change: dict[str, Any], tmp_path: Path
) -> None:
    assert_greedy_tokens_agree(kind, change, tmp_path)


def test_a_checkpoint_of_ours_is_read_by_transformers(tmp_path: Path) -> None:
    folder = save_folder(random_checkpoint("llama-tiny", 6), tmp_path / "model")
    ours = ptir.load_model(folder, backend=REF)
    tokens = np.random.default_rng(1).integers(0, 512, 100)
    wanted = open_peer(folder, GENERATE).output(tokens)
    found = ours.forward(tokens)
    assert np.abs(found - wanted).max() <= 1e-4 * np.abs(wanted).max()
