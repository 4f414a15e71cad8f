"""Families that are Llama with a few options: what each reads, leaves out, and is called."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from ptir.errors import CheckpointError, short
from ptir.models.fields import real, whole
from ptir.models.llama import SLIDING, Config, define_llama
from ptir.models.nested import PREFIXES, RENAMED, SEEING
from ptir.models.rotation import FULL


def _preset(factor: float, tied: bool, **sizes: int) -> dict[str, Any]:
    """The configuration of a Llama 3 model: positions as trained with, times ``factor``."""
    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": 128256,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 500000.0,
            "factor": factor,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
        "hidden_act": "silu",
        "bos_token_id": 128000,
        "eos_token_id": [128001, 128008, 128009],
        "tie_word_embeddings": tied,
        **sizes,
    }


PRESETS: Final = {
    "llama-1b": _preset(
        32.0,
        True,
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=16,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=64,
    ),
    "llama-8b": _preset(
        8.0,
        False,
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=128,
    ),
    "llama-tiny": _preset(
        32.0,
        False,
        vocab_size=512,
        max_position_embeddings=256,
        hidden_size=64,
        intermediate_size=160,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        bos_token_id=510,
        eos_token_id=511,
    ),
}
"""Llama 3.2 1B, Llama 3.1 8B, and the smallest that has everything they have."""


def _sized(model_type: str, **said: Any) -> dict[str, Any]:
    """The configuration of a model of a family, ``said`` and what all have."""
    return {"model_type": model_type, "tie_word_embeddings": False, **said}


def _tiny(model_type: str, **said: Any) -> dict[str, Any]:
    """The smallest model of a family."""
    sizes = {
        "vocab_size": 512,
        "max_position_embeddings": 256,
        "hidden_size": 64,
        "intermediate_size": 160,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "bos_token_id": 510,
        "eos_token_id": 511,
    }
    return _sized(model_type, **{**sizes, **said})


def _theta(theta: float) -> dict[str, Any]:
    return {"rope_type": "default", "rope_theta": theta}


def _qwen3(config: Mapping[str, Any]) -> Config:
    """Queries and keys are normed head by head."""
    return replace(Config.of(config), head_norms="head")


def _smollm3(config: Mapping[str, Any]) -> Config:
    """Some layers, every fourth unless told otherwise, do not rotate and may see a window."""
    layers = whole(config, "num_hidden_layers")
    given = config.get("no_rope_layers")
    if given is None:
        interval = whole(config, "no_rope_layer_interval")
        given = [int((layer + 1) % interval != 0) for layer in range(layers)]
    if (
        not isinstance(given, list)
        or len(given) < layers
        or any(one not in (0, 1) for one in given)
    ):
        raise CheckpointError(
            f"smollm3: no_rope_layers {short(given)} in config.json must have a 0 or a 1 for each"
            f" of the {layers} layers, 1 for one that rotates; check it"
        )
    kinds = [FULL if turns else SLIDING for turns in given[:layers]]
    read = Config.of({"layer_types": kinds, **config})
    pairs = zip(read.rotations, given, strict=False)
    return replace(read, rotations=tuple(one if turns else None for one, turns in pairs))


def granite(config: Mapping[str, Any]) -> Config:
    """Embeddings, residuals, scores and logits are multiplied by numbers of the configuration."""
    return replace(
        Config.of(config),
        embedding_scale=real(config, "embedding_multiplier"),
        residual_scale=real(config, "residual_multiplier"),
        attention_scale=real(config, "attention_multiplier"),
        logits_divisor=real(config, "logits_scaling"),
    )


def _olmo2(config: Mapping[str, Any]) -> Config:
    """Norms after attention and MLP, and of queries and keys over all heads together."""
    return replace(Config.of(config), norms="after", head_norms="width")


DEFAULTS: Final[dict[str, dict[str, Any]]] = {
    "llama": {"max_position_embeddings": 2048},
    "mistral": {
        "max_position_embeddings": 131072,
        "num_key_value_heads": 8,
        "sliding_window": 4096,
    },
    "qwen2": {
        "max_position_embeddings": 32768,
        "use_sliding_window": False,
        "sliding_window": 4096,
        "max_window_layers": 28,
    },
    "qwen3": {
        "max_position_embeddings": 32768,
        "num_key_value_heads": 32,
        "head_dim": 128,
        "use_sliding_window": False,
        "sliding_window": 4096,
        "max_window_layers": 28,
    },
    "smollm3": {
        "vocab_size": 128256,
        "hidden_size": 2048,
        "intermediate_size": 11008,
        "num_hidden_layers": 36,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "max_position_embeddings": 32768,
        "rope_parameters": _theta(2e6),
        "use_sliding_window": False,
        "no_rope_layer_interval": 4,
        "tie_word_embeddings": True,
    },
    "granite": {
        "max_position_embeddings": 2048,
        "embedding_multiplier": 1.0,
        "residual_multiplier": 1.0,
        "attention_multiplier": 1.0,
        "logits_scaling": 1.0,
    },
    "olmo2": {"max_position_embeddings": 2048, "rms_norm_eps": 1e-5},
}
"""By ``model_type``: what config.json means when it leaves a key out."""

MISTRAL: Final = {
    "mistral-7b": _sized(
        "mistral",
        vocab_size=32768,
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        max_position_embeddings=32768,
        rms_norm_eps=1e-5,
        rope_parameters=_theta(1e6),
        sliding_window=None,
        bos_token_id=1,
        eos_token_id=2,
    ),
    "mistral-tiny": _tiny("mistral", rope_parameters=_theta(1e4), sliding_window=12),
}
"""Mistral 7B 0.3, and the smallest with a window."""

QWEN2: Final = {
    "qwen2.5-0.5b": _sized(
        "qwen2",
        vocab_size=151936,
        hidden_size=896,
        intermediate_size=4864,
        num_hidden_layers=24,
        num_attention_heads=14,
        num_key_value_heads=2,
        max_position_embeddings=32768,
        rms_norm_eps=1e-6,
        rope_parameters=_theta(1e6),
        tie_word_embeddings=True,
        eos_token_id=151643,
    ),
    "qwen2-tiny": _tiny("qwen2", rope_parameters=_theta(1e6)),
}
"""Qwen2.5 0.5B, and the smallest."""

QWEN3: Final = {
    "qwen3-0.6b": _sized(
        "qwen3",
        vocab_size=151936,
        hidden_size=1024,
        intermediate_size=3072,
        num_hidden_layers=28,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=40960,
        rope_parameters=_theta(1e6),
        tie_word_embeddings=True,
        bos_token_id=151643,
        eos_token_id=151645,
    ),
    "qwen3-8b": _sized(
        "qwen3",
        vocab_size=151936,
        hidden_size=4096,
        intermediate_size=12288,
        num_hidden_layers=36,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=40960,
        rope_parameters=_theta(1e6),
        bos_token_id=151643,
        eos_token_id=151645,
    ),
    "qwen3-tiny": _tiny("qwen3", head_dim=24, rope_parameters=_theta(1e4)),
}
"""Qwen3 0.6B and 8B, and a small one."""
SMOLLM3: Final = {
    "smollm3-3b": _sized(
        "smollm3",
        vocab_size=128256,
        hidden_size=2048,
        intermediate_size=11008,
        num_hidden_layers=36,
        num_attention_heads=16,
        num_key_value_heads=4,
        max_position_embeddings=65536,
        rope_parameters=_theta(5e6),
        no_rope_layer_interval=4,
        use_sliding_window=False,
        tie_word_embeddings=True,
        bos_token_id=128000,
        eos_token_id=128012,
    ),
    "smollm3-tiny": _tiny(
        "smollm3",
        no_rope_layer_interval=2,
        use_sliding_window=False,
        tie_word_embeddings=True,
        pad_token_id=0,
    ),
}
"""SmolLM3 3B, and a small one."""
GRANITE: Final = {
    "granite-3.3-2b": _sized(
        "granite",
        vocab_size=49159,
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=40,
        num_attention_heads=32,
        num_key_value_heads=8,
        max_position_embeddings=131072,
        rms_norm_eps=1e-5,
        rope_parameters=_theta(1e7),
        embedding_multiplier=12.0,
        residual_multiplier=0.22,
        attention_multiplier=0.015625,
        logits_scaling=8.0,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=0,
    ),
    "granite-tiny": _tiny(
        "granite",
        embedding_multiplier=12.0,
        residual_multiplier=0.22,
        attention_multiplier=0.125,
        logits_scaling=8.0,
        tie_word_embeddings=True,
    ),
}
"""Granite 3.3 2B, and a small one."""
OLMO2: Final = {
    "olmo2-1b": _sized(
        "olmo2",
        vocab_size=100352,
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=16,
        num_attention_heads=16,
        num_key_value_heads=16,
        max_position_embeddings=4096,
        rms_norm_eps=1e-6,
        rope_parameters=_theta(5e5),
        eos_token_id=100257,
    ),
    "olmo2-tiny": _tiny("olmo2", rms_norm_eps=1e-6),
}
"""OLMo 2 1B, and a small one."""

define_llama("llama", defaults=DEFAULTS["llama"], presets=PRESETS)
define_llama(  # which is also the text of Mistral 3.1 and 3.2 (``mistral3``)
    "mistral",
    defaults=DEFAULTS["mistral"],
    presets=MISTRAL,
    prefixes=PREFIXES,
    renamed=RENAMED,
    ignored=("layers.*.self_attn.rotary_emb.inv_freq", *SEEING),
)
define_llama("qwen2", defaults=DEFAULTS["qwen2"], presets=QWEN2)
define_llama("qwen3", _qwen3, defaults=DEFAULTS["qwen3"], presets=QWEN3)
define_llama("smollm3", _smollm3, defaults=DEFAULTS["smollm3"], presets=SMOLLM3)
define_llama("granite", granite, defaults=DEFAULTS["granite"], presets=GRANITE)
define_llama("olmo2", _olmo2, defaults=DEFAULTS["olmo2"], presets=OLMO2)
