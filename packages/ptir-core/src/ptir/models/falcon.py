"""Falcon (Almazrouei et al. 2023): attention and MLP beside each other, keys for many heads.

The 7B form has one norm and one key for all heads, ``new_decoder_architecture`` a norm for each and
keys for groups. Attribute names are the keys of Hugging Face checkpoints.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ptir.errors import CheckpointError
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
    refuse,
)
from ptir.models.fields import flag, real, whole, whole_or_none
from ptir.models.rotation import frequencies
from ptir.models.table import ModelDefinition, define_model


@dataclass(frozen=True)
class FalconConfig(Config):
    """What every family has, and how many norms a parallel block has."""

    num_ln_in_parallel_attn: int = 1


def read(config: Mapping[str, Any]) -> FalconConfig:
    """Read ``config``; raises ``CheckpointError`` for what this file does not implement."""
    refuse(config, "alibi", False)
    newer, bias = flag(config, "new_decoder_architecture"), flag(config, "bias")
    groups = 1 if flag(config, "multi_query", True) else None
    sizes = Sizes.of(
        config,
        groups=whole_or_none(config, "num_kv_heads") if newer else groups,
        inner=whole_or_none(config, "ffn_hidden_size") or 4 * whole(config, "hidden_size"),
    )
    speeds = frequencies(config, "falcon", sizes.head_dim)
    parallel = flag(config, "parallel_attn", True)
    return FalconConfig(
        sizes,
        Heads(sizes, bias=bias, output_bias=bias, frequencies=speeds),
        epsilon=real(config, "layer_norm_epsilon"),
        activation=activation(config, "activation"),
        parallel=parallel,
        num_ln_in_parallel_attn=_norms(config, newer, parallel),
    )


def _norms(config: Mapping[str, Any], newer: bool, parallel: bool) -> int:
    """The norms of a parallel block: attention's, and the MLP's where it has its own."""
    count = whole_or_none(config, "num_ln_in_parallel_attn") or (2 if newer else 1)
    if (newer and not parallel) or count > (2 if newer else 1):
        raise CheckpointError(
            f"falcon: parallel_attn {str(parallel).lower()} with num_ln_in_parallel_attn {count}"
            f" and new_decoder_architecture {str(newer).lower()} is not implemented; one norm is,"
            " two in the new architecture, whose attention is parallel: choose another checkpoint"
        )
    return count


NORMS: Final = {
    (True, 1): ("input_layernorm", ""),
    (True, 2): ("ln_attn", "ln_mlp"),
    (False, 1): ("input_layernorm", "post_attention_layernorm"),
}
"""What norms are called, by whether a block is parallel and how many it has then."""


class Block(ResidualBlock):
    """Attention and MLP behind one norm or two."""

    def __init__(self, config: FalconConfig) -> None:
        norms = NORMS[config.parallel, config.num_ln_in_parallel_attn]
        self.names = BlockNames("self_attention", "mlp", *norms)
        mlp = MLP(config, names=("dense_h_to_4h", "dense_4h_to_h"), bias=config.heads.bias)
        super().__init__(config, FusedAttention(config.heads), mlp)


class Falcon(LayerNormDecoder):
    """The language model."""

    names = PartNames("word_embeddings", "h", "ln_f")

    def __init__(self, config: Mapping[str, Any]) -> None:
        found = read(config)
        super().__init__(found, lambda: Block(found), tied=flag(config, "tie_word_embeddings"))


DEFAULTS: Final[dict[str, Any]] = {
    "max_position_embeddings": 2048,
    "layer_norm_epsilon": 1e-5,
    "activation": "gelu",
    "tie_word_embeddings": True,
}
"""What config.json means when it leaves a key out."""


def _preset(size: int, layers: int, heads: int, **changed: Any) -> dict[str, Any]:
    """The configuration of a model of the first form."""
    return {
        "model_type": "falcon",
        "architectures": ["FalconForCausalLM"],
        "vocab_size": 65024,
        "hidden_size": size,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "alibi": False,
        "bias": False,
        "multi_query": True,
        "new_decoder_architecture": False,
        "parallel_attn": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "bos_token_id": 11,
        "eos_token_id": 11,
        **DEFAULTS,
        **changed,
    }


PRESETS: Final = {
    "falcon-7b": _preset(4544, 32, 71),
    "falcon-tiny": _preset(
        64,
        2,
        4,
        vocab_size=512,
        max_position_embeddings=128,
        new_decoder_architecture=True,
        num_kv_heads=2,
    ),
}
"""Falcon 7B, and a small one of the new architecture."""

define_model(
    ModelDefinition(
        "falcon",
        build=Falcon,
        context=context(read),
        prefixes=("transformer.",),
        ignored=("h.*.self_attention.rotary_emb.inv_freq",),
        tied={"lm_head.weight": "word_embeddings.weight"},
        layers={"num_hidden_layers": "h."},
        defaults=DEFAULTS,
        presets=PRESETS,
        tokenizer="gpt2",
    )
)
