"""Gemma 1 to 3 (Google DeepMind, 2024 and 2025), the language models of Gemma 3 alone.

Llama with scaled embeddings, norms whose weights count from 1, and a gate bent by GELU. Gemma 2 has
norms on both sides of attention and MLP, caps, and windows in every other layer; Gemma 3 norms of
heads for caps, and five layers with a window and a rotation of their own for one without.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from ptir.errors import CheckpointError
from ptir.models.fields import flag, real, whole
from ptir.models.llama import SLIDING, Config, define_llama
from ptir.models.nested import PREFIXES, RENAMED, SEEING, text_part
from ptir.models.rotation import FULL

THETAS: Final = {FULL: 1e6, SLIDING: 1e4}
"""Of Gemma 3's rotations."""


def _shared(config: Mapping[str, Any]) -> Config:
    """What all have: norms that count from 1, embeddings times the root of their width."""
    if flag(config, "use_bidirectional_attention"):
        raise CheckpointError(
            f"{config.get('model_type')}: use_bidirectional_attention true is not implemented; only"
            " false is: choose another checkpoint"
        )
    read = Config.of(config)
    return replace(read, norm_plus=1.0, embedding_scale=math.sqrt(read.hidden_size))


def _gemma(config: Mapping[str, Any]) -> Config:
    """Configurations of Gemma 1 say ``gelu`` and mean the one by tanh."""
    read = _shared(config)
    exact = read.activation == "gelu"
    return replace(read, activation="gelu_pytorch_tanh" if exact else read.activation)


def _gemma2(config: Mapping[str, Any]) -> Config:
    layers = whole(config, "num_hidden_layers")
    kinds = [FULL if layer % 2 else SLIDING for layer in range(layers)]
    return replace(
        _shared({"layer_types": kinds, **config}),
        norms="both",
        attention_scale=real(config, "query_pre_attn_scalar") ** -0.5,
        attention_cap=_cap(config, "attn_logit_softcapping"),
        logits_cap=_cap(config, "final_logit_softcapping"),
    )


def _gemma3(config: Mapping[str, Any]) -> Config:
    if _cap(config, "attn_logit_softcapping") is not None:
        raise CheckpointError(
            "gemma3: attn_logit_softcapping is not implemented; only null is: choose another"
            " checkpoint"
        )
    return replace(_gemma2(config), head_norms="head")


def _cap(config: Mapping[str, Any], key: str) -> float | None:
    return None if config.get(key) is None else real(config, key)


def _prepare(config: Mapping[str, Any]) -> dict[str, Any]:
    """The text's part, with a pattern of layers and what the rotations mean without a base."""
    found = text_part(config, "gemma3_text")
    if found.get("layer_types") is None and found.get("sliding_window_pattern") is None:
        found["sliding_window_pattern"] = 6
    rope = found.get("rope_parameters")
    if not isinstance(rope, Mapping):
        bases = {"rope_theta": THETAS[FULL], "rope_local_base_freq": THETAS[SLIDING]}
        return {**found, **{key: one for key, one in bases.items() if found.get(key) is None}}
    entries = {kind: rope.get(kind) or {} for kind in THETAS}
    if all(isinstance(one, Mapping) for one in entries.values()) and set(rope) <= set(THETAS):
        found["rope_parameters"] = {
            kind: {"rope_theta": THETAS[kind], **one} for kind, one in entries.items()
        }
    return found


_COMMON: Final[dict[str, Any]] = {"head_dim": 256, "tie_word_embeddings": True}
DEFAULTS: Final[dict[str, dict[str, Any]]] = {
    "gemma": {
        **_COMMON,
        "hidden_act": "gelu_pytorch_tanh",
        "max_position_embeddings": 8192,
        "num_key_value_heads": 16,
    },
    "gemma2": {
        **_COMMON,
        "hidden_activation": "gelu_pytorch_tanh",
        "max_position_embeddings": 8192,
        "num_key_value_heads": 4,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
    },
    "gemma3": {
        **_COMMON,
        "vocab_size": 262208,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "hidden_activation": "gelu_pytorch_tanh",
        "max_position_embeddings": 131072,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
    },
}
"""What config.json means when it leaves a key out."""


def _preset(family: str, model_type: str, **said: Any) -> dict[str, Any]:
    ids = {"bos_token_id": 2, "eos_token_id": [1]}
    return {"model_type": model_type, **DEFAULTS[family], **ids, **said}


_TINY: Final[dict[str, Any]] = {
    "vocab_size": 512,
    "max_position_embeddings": 256,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 24,
    "bos_token_id": 510,
    "eos_token_id": 511,
}
_ROPE: Final = {"rope_type": "default", "rope_theta": 10000.0}
_ROPES: Final = {kind: {"rope_type": "default", "rope_theta": one} for kind, one in THETAS.items()}


def _layers(layers: int, every: int) -> list[str]:
    return [SLIDING if (layer + 1) % every else FULL for layer in range(layers)]


GEMMA: Final = {
    "gemma-2b": _preset(
        "gemma",
        "gemma",
        vocab_size=256000,
        hidden_size=2048,
        intermediate_size=16384,
        num_hidden_layers=18,
        num_attention_heads=8,
        num_key_value_heads=1,
        rope_parameters=_ROPE,
    ),
    "gemma-tiny": _preset("gemma", "gemma", num_hidden_layers=3, rope_parameters=_ROPE, **_TINY),
}
"""Gemma 2B, and a small one."""
GEMMA2: Final = {
    "gemma2-2b": _preset(
        "gemma2",
        "gemma2",
        vocab_size=256000,
        hidden_size=2304,
        intermediate_size=9216,
        num_hidden_layers=26,
        num_attention_heads=8,
        rope_parameters=_ROPE,
    ),
    "gemma2-tiny": _preset(
        "gemma2",
        "gemma2",
        num_hidden_layers=3,
        **{**_TINY, "sliding_window": 24, "query_pre_attn_scalar": 16},
        rope_parameters=_ROPE,
    ),
}
"""Gemma 2 2B, and a small one."""
GEMMA3: Final = {
    "gemma3-270m": _preset(
        "gemma3",
        "gemma3_text",
        vocab_size=262144,
        hidden_size=640,
        intermediate_size=2048,
        num_hidden_layers=18,
        num_attention_heads=4,
        num_key_value_heads=1,
        max_position_embeddings=32768,
        sliding_window=512,
        layer_types=_layers(18, 6),
        rope_parameters=_ROPES,
    ),
    "gemma3-1b": _preset(
        "gemma3",
        "gemma3_text",
        vocab_size=262144,
        hidden_size=1152,
        intermediate_size=6912,
        num_attention_heads=4,
        num_key_value_heads=1,
        max_position_embeddings=32768,
        sliding_window=512,
        layer_types=_layers(26, 6),
        rope_parameters=_ROPES,
    ),
    "gemma3-tiny": _preset(
        "gemma3",
        "gemma3_text",
        num_hidden_layers=3,
        layer_types=_layers(3, 2),
        rope_parameters=_ROPES,
        **{**_TINY, "sliding_window": 24, "query_pre_attn_scalar": 16},
    ),
}
"""Gemma 3 270M and 1B, and a small one."""

define_llama("gemma", _gemma, defaults=DEFAULTS["gemma"], presets=GEMMA)
define_llama("gemma2", _gemma2, defaults=DEFAULTS["gemma2"], presets=GEMMA2)
for _model_type in ("gemma3", "gemma3_text"):
    define_llama(
        _model_type,
        _gemma3,
        defaults=DEFAULTS["gemma3"],
        presets=GEMMA3 if _model_type == "gemma3_text" else {},
        prepare=_prepare,
        prefixes=PREFIXES,
        renamed=RENAMED,
        ignored=("layers.*.self_attn.rotary_emb.inv_freq", *SEEING),
    )
