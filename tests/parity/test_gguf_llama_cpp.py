"""GGUF files that are written are opened by llama.cpp, which says the same of every token.

Needs ``pip install llama-cpp-python`` besides, which builds llama.cpp; skipped without.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

import ptir
from gguf_models import GEMMA4_EXPERTS
from ptir.models.table import definition
from ptir.params.source import ArraySource
from ptir.runtime.gguf_file import save_gguf
from ptir.runtime.specs import random_checkpoint

llama_cpp = pytest.importorskip("llama_cpp")
SQUARE: Final = {"linear_value_head_dim": 16}
"""llama.cpp takes heads of values that are as wide as those of keys."""
LONG: Final = {"original_max_position_embeddings": 256, "max_position_embeddings": 1024}
"""Contexts of llama.cpp have 256 positions at least, and choose the factors by that."""
CASES: Final[dict[str, tuple[str, dict[str, Any], float]]] = {
    "qwen35": ("qwen3.5-tiny", SQUARE, 1e-4),
    "qwen35, six heads of values": (
        "qwen3.5-tiny",
        {**SQUARE, "linear_num_value_heads": 6, "mtp_num_hidden_layers": 0},
        1e-4,
    ),
    "qwen35moe": ("qwen3.5-moe-tiny", SQUARE, 1e-4),
    "qwen3next": ("qwen3_next-tiny", {**SQUARE, "mlp_only_layers": []}, 1e-4),
    "gemma3": ("gemma3-tiny", {"query_pre_attn_scalar": 24}, 3e-3),
    "gemma4": ("gemma4-tiny", {"num_kv_shared_layers": 3}, 3e-3),
    "gemma4, experts": ("gemma4-tiny", GEMMA4_EXPERTS, 3e-3),
    "lfm2": ("lfm2-tiny", {}, 1e-3),
    "mamba2": ("mamba2-tiny", {}, 1e-4),
    "mistral, no window": ("mistral-tiny", {"sliding_window": None}, 1e-4),
    "ministral3": ("ministral3-tiny", {}, 1e-3),
    "phi3, longrope": ("phi3-tiny", LONG, 1e-4),
}
"""The preset, what is changed, and how far logits may be off over the greatest: llama.cpp looks
GELU up in a table of f16."""
NEW: Final = 24


@pytest.mark.parametrize("name", CASES)
def test_llama_cpp_says_the_same_of_a_written_file(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    preset, change, bound = CASES[name]
    family: Any = definition(str(random_checkpoint(preset, 3).config["model_type"])).presets
    monkeypatch.setitem(family, "written", {**family[preset], **change})
    given, rng = random_checkpoint("written", 3), np.random.default_rng(0)
    arrays = {one: given.source.read(one) for one in given.source.names()}
    for one, array in arrays.items():
        noise = rng.normal(0, 0.1, array.shape).astype("f4")
        arrays[one] = np.asarray(array * 3 if array.ndim > 1 else array + noise, np.float32)
    path = save_gguf(replace(given, source=ArraySource(arrays)), tmp_path / "m.gguf")
    ours = ptir.load_model(path, backend="ref")
    prompt = rng.integers(0, 500, 20).tolist()
    made = ours.generate(prompt, max_tokens=NEW, ignore_eos=True).token_ids
    wanted = ours.forward([*prompt, *made])
    found = theirs(path, [*prompt, *made])
    assert np.abs(found - wanted).max() <= bound * np.abs(wanted).max()
    behind = found[len(prompt) - 1 : -1]
    chosen, best = (np.take_along_axis(behind, one[:, None], 1)
                    for one in (np.array(made), behind.argmax(1)))  # fmt: skip
    assert (best - chosen).max() <= bound * np.abs(wanted).max()  # the same token, or a tie


def theirs(path: Path, tokens: list[int]) -> Any:
    """llama.cpp's logits of every token, a token at a time behind the first twenty."""
    options = {"n_ctx": 64, "n_threads": 2, "type_k": 0, "type_v": 0, "verbose": False}
    model = llama_cpp.Llama(str(path), logits_all=True, **options)
    model.eval(tokens[:20])
    for token in tokens[20:]:
        model.eval([token])
    return np.array(model.scores[: len(tokens)])
