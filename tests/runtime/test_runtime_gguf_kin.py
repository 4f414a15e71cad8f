"""GGUF files of families that are like Llama give the logits of the same numbers in a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind
from test_runtime_gguf import folder_model

import ptir
from gguf_models import kind_of_matrices, write
from ptir.checkpoint import open_checkpoint
from ptir.errors import CheckpointError
from ptir.runtime.gguf_file import save_gguf
from running import REF, assert_close, llama_folder

TOKENS = list(range(0, 60, 3))
YARN: Final[dict[str, Any]] = {
    "rope_type": "yarn",
    "rope_theta": 100.0,
    "factor": 4.0,
    "original_max_position_embeddings": 16,
    "beta_fast": 2.0,
    "beta_slow": 0.25,
    "mscale": 1.0,
    "mscale_all_dim": 0.5,
    "llama_4_scaling_beta": 0.5,
}
YARN_KEYS: Final = {
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": 16,
    "rope.scaling.yarn_beta_fast": 2.0,
    "rope.scaling.yarn_beta_slow": 0.25,
    "rope.scaling.yarn_log_multiplier": 0.5,
    "attention.temperature_scale": 0.5,
}
FACTORS: Final = {"short_factor": [1.0, 1.5], "long_factor": [2.0, 5.0]}
PHI3: Final[dict[str, Any]] = {
    "original_max_position_embeddings": 32,
    "sliding_window": 12,
    "rope_parameters": {
        "rope_type": "longrope",
        "rope_theta": 100.0,
        "partial_rotary_factor": 0.5,
        "attention_factor": 1.25,
        **FACTORS,
    },
}
WINDOW: Final = {"head_dim": 8, "sliding_window": 6, "tie_word_embeddings": True}
CAPS: Final = {"attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0}
CASES: Final[dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]]] = {
    "qwen3": ({"head_dim": 16}, {}, {}),
    "smollm3": (
        {"num_hidden_layers": 5, "use_sliding_window": False, "no_rope_layer_interval": 4},
        {},
        {},
    ),
    "granite": (
        {
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.5,
            "attention_multiplier": 0.2,
            "logits_scaling": 2.0,
        },
        {},
        {},
    ),
    "olmo2": ({}, {}, {}),
    "ministral3": ({"head_dim": 8, "rope_parameters": YARN}, YARN_KEYS, {}),
    "phi3": (
        PHI3,
        {
            "rope.dimension_count": 4,
            "rope.scaling.type": "longrope",
            "rope.scaling.attn_factor": 1.25,
            "rope.scaling.original_context_length": 32,
        },
        {
            f"rope_factors_{name}.weight": np.array(FACTORS[f"{name}_factor"], np.float32)
            for name in ("long", "short")
        },
    ),
    "gemma": ({"head_dim": 8, "tie_word_embeddings": True}, {}, {}),
    "gemma2": ({**WINDOW, **CAPS, "query_pre_attn_scalar": 8}, {}, {}),
    "gemma3_text": (
        {
            **WINDOW,
            "query_pre_attn_scalar": 8,
            "sliding_window_pattern": 2,
            "rope_local_base_freq": 10.0,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        },
        {"rope.scaling.type": "linear", "rope.scaling.factor": 8.0},
        {},
    ),
}
"""By ``model_type``: what a configuration says, and the keys and tensors that say it in a file."""


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("kind", [Kind.F32, Kind.Q8_0], ids=lambda kind: kind.name)
def test_a_file_gives_the_logits_of_the_folder(tmp_path: Path, name: str, kind: Kind) -> None:
    config, keys, extra = CASES[name]
    config = {"tie_word_embeddings": False, "rms_norm_eps": 1e-4, **config}
    checkpoint = open_checkpoint(llama_folder(tmp_path, model_type=name, **config))
    written = write(tmp_path / "m.gguf", checkpoint, kind_of_matrices(kind), keys=keys, extra=extra)
    found = ptir.load_model(written.path, backend=REF)
    wanted = folder_model(tmp_path, checkpoint, written).forward(TOKENS)
    assert_close(found.forward(TOKENS), wanted)
    assert found.context == ptir.load_model(tmp_path / "same", backend=REF).context


@pytest.mark.parametrize("name", CASES)
def test_a_folder_becomes_a_file_of_the_same_logits(tmp_path: Path, name: str) -> None:
    config = {"tie_word_embeddings": False, **CASES[name][0]}
    checkpoint = open_checkpoint(llama_folder(tmp_path, model_type=name, **config))
    path = save_gguf(checkpoint, tmp_path / "m.gguf")
    wanted = ptir.load_model(checkpoint.path, backend=REF).forward(TOKENS)
    assert_close(ptir.load_model(path, backend=REF).forward(TOKENS), wanted)


def test_what_a_file_cannot_say_is_not_written(tmp_path: Path) -> None:
    config = {"no_rope_layers": [0, 1], "tie_word_embeddings": False}
    checkpoint = open_checkpoint(llama_folder(tmp_path, model_type="smollm3", **config))
    with pytest.raises(CheckpointError, match="a GGUF file of this architecture says rotations"):
        save_gguf(checkpoint, tmp_path / "m.gguf")
