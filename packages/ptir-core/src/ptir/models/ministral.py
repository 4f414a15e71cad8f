"""Ministral 3 (Mistral AI, 2025): Llama with yarn, and queries that grow with their position.

``mistral3`` is the same beside a part that sees, which is left aside.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ptir.models.llama import Config, define_llama
from ptir.models.nested import PREFIXES, RENAMED, SEEING, text_part


def _yarn(factor: float, original: int, theta: float) -> dict[str, Any]:
    return {
        "rope_type": "yarn",
        "rope_theta": theta,
        "factor": factor,
        "original_max_position_embeddings": original,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "llama_4_scaling_beta": 0.1,
    }


DEFAULTS: Final[dict[str, Any]] = {
    "vocab_size": 131072,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 34,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 262144,
    "rms_norm_eps": 1e-5,
    "rope_parameters": _yarn(16.0, 16384, 1e6),
}
"""What config.json means when it leaves a key out."""

PRESETS: Final = {
    "ministral3-3b": {
        **DEFAULTS,
        "model_type": "ministral3",
        "hidden_size": 3072,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
    },
    "ministral3-tiny": {
        "model_type": "ministral3",
        "vocab_size": 512,
        "max_position_embeddings": 256,
        "hidden_size": 64,
        "intermediate_size": 160,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 24,
        "rms_norm_eps": 1e-5,
        "rope_parameters": _yarn(4.0, 64, 1e4),
        "tie_word_embeddings": False,
        "bos_token_id": 510,
        "eos_token_id": 511,
    },
}
"""Ministral 3 3B, and a small one."""


def _prepare(config: Mapping[str, Any]) -> dict[str, Any]:
    return text_part(config, "ministral3")


for _model_type in ("ministral3", "mistral3"):
    define_llama(
        _model_type,
        Config.of,
        defaults=DEFAULTS,
        presets=PRESETS if _model_type == "ministral3" else {},
        prepare=_prepare,
        prefixes=PREFIXES,
        renamed=RENAMED,
        ignored=("layers.*.self_attn.rotary_emb.inv_freq", *SEEING),
    )
