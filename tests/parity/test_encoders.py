"""Encoders against Transformers, their tokenizers, and sentence-transformers' folders.

A folder that sentence-transformers saved is opened, so that what it writes today is read.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import ptir
from ptir.runtime import TextModel

pytestmark = pytest.mark.parity

BACKENDS = ("ref", "c", "opencl")
SIZES = {
    "vocab_size": 97,
    "hidden_size": 36,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "intermediate_size": 50,
    "max_position_embeddings": 190,
}
DISTILLED = {
    "vocab_size": 97,
    "dim": 36,
    "n_layers": 3,
    "n_heads": 3,
    "hidden_dim": 50,
    "max_position_embeddings": 190,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "bert": {**SIZES, "hidden_act": "gelu_new", "layer_norm_eps": 1e-5},
    "roberta": {**SIZES, "type_vocab_size": 1, "pad_token_id": 1},
    "xlm-roberta": {**SIZES, "type_vocab_size": 1, "pad_token_id": 1, "hidden_act": "relu"},
    "distilbert": DISTILLED,
    "mpnet": {**SIZES, "pad_token_id": 1},
    "modernbert": {
        **SIZES,
        "num_hidden_layers": 4,
        "local_attention": 10,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "cls_token_id": 1,
        "sep_token_id": 2,
    },
    "modernbert, biases": {
        **SIZES,
        "num_hidden_layers": 4,
        "local_attention": 8,
        "pad_token_id": 0,
        "attention_bias": True,
        "mlp_bias": True,
        "norm_bias": True,
        "classifier_bias": True,
        "classifier_pooling": "mean",
        "bos_token_id": 1,
        "eos_token_id": 2,
        "cls_token_id": 1,
        "sep_token_id": 2,
    },
}
LENGTHS = (177, 1, 30, 64, 7)
"""Tokens of the rows of a batch."""


def noisy(model: Any) -> Any:
    """The model with values that let nothing go unnoticed."""
    torch.manual_seed(0)
    with torch.no_grad():
        for name, value in model.named_parameters():
            scales = value.ndim == 1 and "norm" in name.lower() and name.endswith("weight")
            wide = value.shape[-1] ** -0.5 if value.ndim > 1 and "embed" not in name else 0.3
            value.normal_(float(scales), 1.3 * wide)
    return model.eval()


def made(name: str, kind: str, folder: Path, **more: Any) -> Any:
    """A model of a family for ``AutoModelFor...`` in ``folder``."""
    config = transformers.AutoConfig.for_model(name.split(",")[0], **FAMILIES[name], **more)
    model = noisy(getattr(transformers, kind).from_config(config, attn_implementation="eager"))
    model.save_pretrained(folder)
    return model


def rows(model: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of unequal lengths, and which of their tokens are real."""
    ids = np.random.default_rng(3).integers(3, 97, (len(LENGTHS), max(LENGTHS)))
    mask = np.arange(max(LENGTHS)) < np.array(LENGTHS)[:, None]
    return torch.tensor(np.where(mask, ids, model.config.pad_token_id)), torch.tensor(mask)


def ours(folder: Path, backend: str) -> TextModel:
    model = ptir.load_model(folder, backend=backend)
    assert isinstance(model, TextModel)
    return model


def run(model: TextModel, ids: torch.Tensor, mask: torch.Tensor) -> np.ndarray[Any, Any]:
    """What the network gives for a padded batch."""
    count = mask.sum(1).numpy().astype(np.int32)
    tokens = ids.numpy().astype(np.int32)
    given = (model._tensor(one) for one in (tokens, np.zeros_like(tokens), count))
    with model.policies():
        found: np.ndarray[Any, Any] = model._output(*given).numpy()
    return found


def assert_alike(found: Any, wanted: Any) -> None:
    assert np.abs(found - wanted).max() <= 1e-4 * np.abs(wanted).max()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", FAMILIES)
def test_vectors_of_tokens_are_those_of_transformers(
    name: str, backend: str, tmp_path: Path
) -> None:
    model = made(name, "AutoModel", tmp_path)
    ids, mask = rows(model)
    with torch.no_grad():
        wanted = model(ids, attention_mask=mask.long()).last_hidden_state.numpy()
    found = run(ours(tmp_path, backend), ids, mask)
    assert_alike(found[mask.numpy()], wanted[mask.numpy()])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", FAMILIES)
def test_scores_of_texts_and_tokens_are_those_of_transformers(
    name: str, backend: str, tmp_path: Path
) -> None:
    for kind in ("AutoModelForSequenceClassification", "AutoModelForTokenClassification"):
        folder = tmp_path / kind
        model = made(name, kind, folder, num_labels=5)
        ids, mask = rows(model)
        with torch.no_grad():
            wanted = model(ids, attention_mask=mask.long()).logits.numpy()
        found = run(ours(folder, backend), ids, mask)
        real = mask.numpy() if wanted.ndim == 3 else np.ones(len(LENGTHS), bool)
        assert_alike(found[real], wanted[real])


@pytest.mark.parametrize("name", ["bert", "roberta", "modernbert"])
def test_a_model_for_masked_words_is_read_as_an_encoder(name: str, tmp_path: Path) -> None:
    model = made(name, "AutoModelForMaskedLM", tmp_path)
    ids, mask = rows(model)
    with torch.no_grad():
        wanted = model.base_model(ids, attention_mask=mask.long()).last_hidden_state.numpy()
    found = run(ours(tmp_path, "ref"), ids, mask)
    assert_alike(found[mask.numpy()], wanted[mask.numpy()])
