"""Phi-3 and Phi-4 (Microsoft, 2024 and 2025): Llama with fused matrices and longrope."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from ptir.models.llama import Config, define_llama

OLD_NAMES: Final = ("su", "yarn")
"""What early configurations call longrope."""


def _read(config: Mapping[str, Any]) -> Config:
    """Queries, keys and values are one matrix, gate and up another."""
    return replace(Config.of(config, partial=True), fused=True)


def _prepare(config: Mapping[str, Any]) -> dict[str, Any]:
    """Longrope under its name."""
    found = dict(config)
    for key in ("rope_scaling", "rope_parameters"):
        given = found.get(key)
        if not isinstance(given, Mapping):
            continue
        kind = given.get("rope_type", given.get("type"))
        if isinstance(kind, str) and kind in OLD_NAMES:
            found[key] = {**given, "rope_type": "longrope"}
    return found


DEFAULTS: Final[dict[str, Any]] = {
    "vocab_size": 32064,
    "hidden_size": 3072,
    "intermediate_size": 8192,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 4096,
    "original_max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
}
"""What config.json means when it leaves a key out."""


def _longrope(brief: list[float], long: list[float], partial: float) -> dict[str, Any]:
    return {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": brief,
        "long_factor": long,
        "partial_rotary_factor": partial,
    }


def _preset(**said: Any) -> dict[str, Any]:
    return {"model_type": "phi3", **DEFAULTS, "tie_word_embeddings": False, **said}


PRESETS: Final = {
    "phi3-mini": _preset(
        num_key_value_heads=32,
        sliding_window=2047,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        bos_token_id=1,
        eos_token_id=32000,
    ),
    "phi4-mini": _preset(
        vocab_size=200064,
        num_attention_heads=24,
        num_key_value_heads=8,
        max_position_embeddings=131072,
        rope_parameters=_longrope(
            [1.0] * 48, [1.0 + 47 * pair / 47 for pair in range(48)], partial=0.75
        ),
        tie_word_embeddings=True,
        bos_token_id=199999,
        eos_token_id=199999,
    ),
    "phi3-tiny": _preset(
        vocab_size=512,
        max_position_embeddings=256,
        original_max_position_embeddings=64,
        hidden_size=64,
        intermediate_size=160,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        sliding_window=48,
        rope_parameters=_longrope(
            [1.0, 1.1, 1.3, 1.6, 2.0, 2.5], [1.0, 1.5, 2.2, 3.0, 4.0, 6.0], partial=0.75
        ),
        bos_token_id=510,
        eos_token_id=511,
        pad_token_id=509,
    ),
}
"""Phi-3 mini of 4,096 positions; Phi-4 mini, with long factors of ours; and a small one."""

define_llama("phi3", _read, defaults=DEFAULTS, presets=PRESETS, prepare=_prepare)
