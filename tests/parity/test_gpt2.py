"""GPT-2 against Transformers: the same checkpoint folder, the same logits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import ptir
import ptir_backend_ref
from ptir.backend.contract import Target
from ptir.checkpoint import save_folder
from ptir.peers.definitions import GENERATE, open_peer
from ptir.runtime.specs import random_checkpoint, resolve

REF = Target(ptir_backend_ref.backend, ptir_backend_ref.backend.devices()[0])
LENGTH = 50


@pytest.mark.parametrize(
    "spec", ["demo", "random:gpt2-tiny", pytest.param("random:gpt2", marks=pytest.mark.slow)]
)
def test_logits_agree_with_transformers(spec: str, tmp_path: Path) -> None:
    folder = save_folder(resolve(spec, seed=5), tmp_path / "model")
    ours = ptir.load_model(folder, backend=REF)
    tokens = np.random.default_rng(0).integers(0, ours.checkpoint.config["vocab_size"], LENGTH)
    expected = open_peer(folder, GENERATE).output(tokens)
    found = ours.forward(tokens)
    assert found.shape == expected.shape == (LENGTH, ours.checkpoint.config["vocab_size"])
    assert np.abs(found - expected).max() <= 1e-4 * np.abs(expected).max()


def test_greedy_tokens_agree_with_transformers(tmp_path: Path) -> None:
    folder = save_folder(random_checkpoint("gpt2-tiny", 6), tmp_path / "model")
    theirs = open_peer(folder, GENERATE).network
    prompt = [5, 1000, 17, 50255]
    expected = theirs.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
        do_sample=False,
        max_new_tokens=20,
        repetition_penalty=1.2,
        pad_token_id=50256,
    )[0, len(prompt) :].tolist()
    ours = ptir.load_model(folder, backend=REF)
    found = ours.generate(prompt, max_tokens=20, repetition_penalty=1.2)
    assert found.token_ids == expected
