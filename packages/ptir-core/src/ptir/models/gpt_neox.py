"""GPT-NeoX (Black et al. 2022), as which Pythia models are stored: a part of each head rotates.

Attention and MLP read the same input, each behind its own norm, unless a config says otherwise.
Attribute names are the keys of Hugging Face checkpoints.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ptir.models.causal import PartNames
from ptir.models.decoder import (
    MLP,
    BlockNames,
    Config,
    FusedAttention,
    Heads,
    LayerNormDecoder,
    ResidualBlock,
    Sizes,
    activation,
    context,
    rotated,
)
from ptir.models.fields import flag, real
from ptir.models.table import ModelDefinition, define_model


def read(config: Mapping[str, Any]) -> Config:
    """Read ``config``; raises ``CheckpointError`` for what this file does not implement."""
    sizes = Sizes.of(config, groups=None)
    bias = flag(config, "attention_bias", True)
    speeds = rotated(config, sizes.head_dim)
    return Config(
        sizes,
        Heads(sizes, bias=bias, output_bias=bias, frequencies=speeds),
        epsilon=real(config, "layer_norm_eps"),
        activation=activation(config, "hidden_act"),
        parallel=flag(config, "use_parallel_residual", True),
    )


class Block(ResidualBlock):
    """Attention and MLP, each behind a norm."""

    names = BlockNames(attention="attention")

    def __init__(self, config: Config) -> None:
        mlp = MLP(config, names=("dense_h_to_4h", "dense_4h_to_h"), bias=True)
        super().__init__(config, FusedAttention(config.heads), mlp)


class GPTNeoX(LayerNormDecoder):
    """The language model."""

    names = PartNames(embedding="embed_in", norm="final_layer_norm")

    def __init__(self, config: Mapping[str, Any]) -> None:
        found = read(config)
        super().__init__(found, lambda: Block(found), tied=flag(config, "tie_word_embeddings"))


DEFAULTS: Final[dict[str, Any]] = {
    "max_position_embeddings": 2048,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}
"""What config.json means when it leaves a key out."""
PARTIAL: Final = 0.25
"""How much of a head rotates then."""


def _preset(size: int, layers: int, heads: int, **changed: Any) -> dict[str, Any]:
    """The configuration of a Pythia model."""
    return {
        "model_type": "gpt_neox",
        "architectures": ["GPTNeoXForCausalLM"],
        "vocab_size": 50304,
        "hidden_size": size,
        "intermediate_size": 4 * size,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": PARTIAL,
        },
        "use_parallel_residual": True,
        "bos_token_id": 0,
        "eos_token_id": 0,
        **DEFAULTS,
        **changed,
    }


PRESETS: Final = {
    "pythia-160m": _preset(768, 12, 12),
    "pythia-1.4b": _preset(2048, 24, 16),
    "gpt_neox-tiny": _preset(64, 2, 2, vocab_size=512, max_position_embeddings=128),
}
"""Pythia of two sizes, and the smallest that has everything they have."""

define_model(
    ModelDefinition(
        "gpt_neox",
        build=GPTNeoX,
        context=context(read),
        prefixes=("gpt_neox.",),
        ignored=(
            "layers.*.attention.bias",
            "layers.*.attention.masked_bias",
            "layers.*.attention.rotary_emb.inv_freq",
        ),
        renamed={"embed_out.weight": "lm_head.weight"},
        tied={"lm_head.weight": "embed_in.weight"},
        layers={"num_hidden_layers": "layers."},
        defaults={**DEFAULTS, "partial_rotary_factor": PARTIAL},
        presets=PRESETS,
        tokenizer="gpt2",
    )
)
