"""StarCoder2 (Lozhkov et al. 2024): layer norms, biases, heads that share keys, a window.

Attribute names are the keys of Hugging Face checkpoints.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ptir.models.decoder import (
    MLP,
    Config,
    Heads,
    LayerNormDecoder,
    ResidualBlock,
    Sizes,
    SplitAttention,
    activation,
    context,
)
from ptir.models.fields import flag, real, whole_or_none
from ptir.models.rotation import frequencies
from ptir.models.table import ModelDefinition, define_model


def read(config: Mapping[str, Any]) -> Config:
    """Read ``config``; raises ``CheckpointError`` for what this file does not implement."""
    sizes = Sizes.of(config, groups=whole_or_none(config, "num_key_value_heads"))
    bias = flag(config, "use_bias", True)
    heads = Heads(
        sizes,
        bias=bias,
        output_bias=bias,
        frequencies=frequencies(config, "starcoder2", sizes.head_dim),
        window=whole_or_none(config, "sliding_window"),
    )
    epsilon = real(config, "norm_epsilon")
    return Config(sizes, heads, epsilon=epsilon, activation=activation(config, "hidden_act"))


class Block(ResidualBlock):
    """Attention and MLP, each behind a norm."""

    def __init__(self, config: Config) -> None:
        mlp = MLP(config, names=("c_fc", "c_proj"), bias=config.heads.bias)
        super().__init__(config, SplitAttention(config.heads, output="o_proj"), mlp)


class Starcoder2(LayerNormDecoder):
    """The language model."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        found = read(config)
        super().__init__(found, lambda: Block(found), tied=flag(config, "tie_word_embeddings"))


DEFAULTS: Final[dict[str, Any]] = {
    "max_position_embeddings": 4096,
    "num_key_value_heads": 2,
    "hidden_act": "gelu_pytorch_tanh",
    "norm_epsilon": 1e-5,
    "tie_word_embeddings": True,
}
"""What config.json means when it leaves a key out."""


def _preset(**changed: Any) -> dict[str, Any]:
    """The configuration of StarCoder2 3B, changed."""
    return {
        "model_type": "starcoder2",
        "architectures": ["Starcoder2ForCausalLM"],
        "vocab_size": 49152,
        "hidden_size": 3072,
        "intermediate_size": 12288,
        "num_hidden_layers": 30,
        "num_attention_heads": 24,
        "sliding_window": 4096,
        "rope_parameters": {"rope_type": "default", "rope_theta": 999999.4420358813},
        "use_bias": True,
        "bos_token_id": 0,
        "eos_token_id": 0,
        **DEFAULTS,
        "max_position_embeddings": 16384,
        **changed,
    }


PRESETS: Final = {
    "starcoder2-3b": _preset(),
    "starcoder2-tiny": _preset(
        vocab_size=512,
        max_position_embeddings=128,
        hidden_size=64,
        intermediate_size=160,
        num_hidden_layers=2,
        num_attention_heads=4,
        sliding_window=16,
    ),
}
"""StarCoder2 3B, and a small one."""

define_model(
    ModelDefinition(
        "starcoder2",
        build=Starcoder2,
        context=context(read),
        prefixes=("model.",),
        ignored=("layers.*.self_attn.rotary_emb.inv_freq",),
        tied={"lm_head.weight": "embed_tokens.weight"},
        layers={"num_hidden_layers": "layers."},
        defaults=DEFAULTS,
        presets=PRESETS,
        tokenizer="gpt2",
    )
)
