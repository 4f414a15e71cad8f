"""Phi-1, Phi-1.5 and Phi-2 (Gunasekar et al. 2023): attention and MLP beside each other, one norm.

A part of each head rotates, and the head has a bias. Attribute names are the keys of Hugging Face
checkpoints.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ptir.capture.tensor import Tensor
from ptir.models.causal import PartNames
from ptir.models.decoder import (
    MLP,
    BlockNames,
    Config,
    Heads,
    LayerNormDecoder,
    ResidualBlock,
    Sizes,
    SplitAttention,
    activation,
    context,
    rotated,
)
from ptir.models.fields import flag, real, whole_or_none
from ptir.models.table import ModelDefinition, define_model
from ptir.nn import LayerNorm


@dataclass(frozen=True)
class PhiConfig(Config):
    """What every family has, and whether queries and keys are normed."""

    head_norms: bool = False


def read(config: Mapping[str, Any]) -> PhiConfig:
    """Read ``config``; raises ``CheckpointError`` for what this file does not implement."""
    sizes = Sizes.of(config, groups=whole_or_none(config, "num_key_value_heads"))
    speeds = rotated(config, sizes.head_dim)
    return PhiConfig(
        sizes,
        Heads(sizes, bias=True, output_bias=True, frequencies=speeds),
        epsilon=real(config, "layer_norm_eps"),
        activation=activation(config, "hidden_act"),
        parallel=True,
        head_norms=flag(config, "qk_layernorm"),
    )


class Attention(SplitAttention):
    """Attention whose queries and keys may be normed, all heads alike."""

    def __init__(self, config: PhiConfig) -> None:
        super().__init__(config.heads, output="dense")
        self.q_layernorm: LayerNorm | None = None
        self.k_layernorm: LayerNorm | None = None
        if config.head_norms:
            self.q_layernorm = LayerNorm(config.sizes.head_dim, epsilon=config.epsilon)
            self.k_layernorm = LayerNorm(config.sizes.head_dim, epsilon=config.epsilon)

    def normed(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Queries and keys f32[B,H,T,D] before they are rotated."""
        if self.q_layernorm is None or self.k_layernorm is None:
            return q, k
        return self.q_layernorm(q), self.k_layernorm(k)


class Block(ResidualBlock):
    """Attention and MLP behind one norm."""

    names = BlockNames(second="")

    def __init__(self, config: PhiConfig) -> None:
        super().__init__(config, Attention(config), MLP(config, names=("fc1", "fc2"), bias=True))


class Phi(LayerNormDecoder):
    """The language model."""

    names = PartNames(norm="final_layernorm")

    def __init__(self, config: Mapping[str, Any]) -> None:
        found, tied = read(config), flag(config, "tie_word_embeddings")
        super().__init__(found, lambda: Block(found), tied=tied, head_bias=True)


DEFAULTS: Final[dict[str, Any]] = {
    "max_position_embeddings": 2048,
    "hidden_act": "gelu_new",
    "layer_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}
"""What config.json means when it leaves a key out."""
PARTIAL: Final = 0.5
"""How much of a head rotates then."""


def _preset(partial: float, **changed: Any) -> dict[str, Any]:
    """The configuration of Phi-2, changed."""
    return {
        "model_type": "phi",
        "architectures": ["PhiForCausalLM"],
        "vocab_size": 51200,
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": partial,
        },
        "bos_token_id": 50256,
        "eos_token_id": 50256,
        **DEFAULTS,
        **changed,
    }


PRESETS: Final = {
    "phi-2": _preset(0.4),
    "phi-tiny": _preset(
        PARTIAL,
        vocab_size=512,
        max_position_embeddings=128,
        hidden_size=64,
        intermediate_size=160,
        num_hidden_layers=2,
        num_attention_heads=4,
    ),
}
"""Phi-2, and a small one."""

define_model(
    ModelDefinition(
        "phi",
        build=Phi,
        context=context(read),
        prefixes=("model.",),
        ignored=("layers.*.self_attn.rotary_emb.inv_freq",),
        tied={"lm_head.weight": "embed_tokens.weight"},
        layers={"num_hidden_layers": "layers."},
        defaults={**DEFAULTS, "partial_rotary_factor": PARTIAL},
        presets=PRESETS,
        tokenizer="gpt2",
    )
)
