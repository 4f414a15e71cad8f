"""StableLM (Stability AI, 2023 and 2024): layer norms, a part of each head rotates, a gated MLP.

Attribute names are the keys of Hugging Face checkpoints.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ptir import functional as F
from ptir.capture.tensor import Tensor
from ptir.models.decoder import (
    ACTIVATIONS,
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
from ptir.nn import LayerNorm, Linear, Module, fused_linear


@dataclass(frozen=True)
class StableLmConfig(Config):
    """What every family has, and whether each head of queries and keys has a norm."""

    head_norms: bool = False


def read(config: Mapping[str, Any]) -> StableLmConfig:
    """Read ``config``; raises ``CheckpointError`` for what this file does not implement."""
    sizes = Sizes.of(config, groups=whole_or_none(config, "num_key_value_heads"))
    bias = flag(config, "use_qkv_bias")
    speeds = rotated(config, sizes.head_dim)
    return StableLmConfig(
        sizes,
        Heads(sizes, bias=bias, output_bias=False, frequencies=speeds),
        epsilon=real(config, "layer_norm_eps"),
        activation=activation(config, "hidden_act"),
        parallel=flag(config, "use_parallel_residual"),
        head_norms=flag(config, "qk_layernorm"),
    )


class HeadNorms(Module):
    """A layer norm without bias for each head."""

    def __init__(self, heads: int, size: int, epsilon: float) -> None:
        self.norms = [LayerNorm(size, epsilon=epsilon, bias=False) for _ in range(heads)]
        self.size, self.epsilon = size, epsilon

    def __call__(self, x: Tensor) -> Tensor:
        """F32[B,H,T,D] to the same, all heads at once."""
        one, zero = (F.full((self.size,), value) for value in (1.0, 0.0))
        normed = F.layer_norm(x, one, zero, epsilon=self.epsilon)
        return normed * F.stack([norm.weight for norm in self.norms]).reshape(-1, 1, self.size)


class Attention(SplitAttention):
    """Attention whose queries and keys may be normed head by head."""

    def __init__(self, config: StableLmConfig) -> None:
        super().__init__(config.heads, output="o_proj")
        sizes, epsilon = config.sizes, config.epsilon
        self.q_layernorm: HeadNorms | None = None
        self.k_layernorm: HeadNorms | None = None
        if config.head_norms:
            self.q_layernorm = HeadNorms(sizes.num_attention_heads, sizes.head_dim, epsilon)
            self.k_layernorm = HeadNorms(sizes.groups, sizes.head_dim, epsilon)

    def normed(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Queries and keys f32[B,H,T,D] before they are rotated."""
        if self.q_layernorm is None or self.k_layernorm is None:
            return q, k
        return self.q_layernorm(q), self.k_layernorm(k)


class MLP(Module):
    """A projection gated by another, and one back."""

    def __init__(self, config: StableLmConfig) -> None:
        size, inner = config.sizes.hidden_size, config.sizes.intermediate_size
        self.gate_proj = Linear(size, inner, bias=False)
        self.up_proj = Linear(size, inner, bias=False)
        self.down_proj = Linear(inner, size, bias=False)
        self.activation = config.activation

    def __call__(self, x: Tensor) -> Tensor:
        """f32[B,T,D] to f32[B,T,D]."""
        gate, up = fused_linear(x, (self.gate_proj, self.up_proj))
        return self.down_proj(ACTIVATIONS[self.activation](gate) * up)


class Block(ResidualBlock):
    """Attention and MLP behind one norm where they are beside each other, else behind two."""

    def __init__(self, config: StableLmConfig) -> None:
        self.names = BlockNames(second="") if config.parallel else BlockNames()
        super().__init__(config, Attention(config), MLP(config))


class StableLm(LayerNormDecoder):
    """The language model."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        found = read(config)
        super().__init__(found, lambda: Block(found), tied=flag(config, "tie_word_embeddings"))


DEFAULTS: Final[dict[str, Any]] = {
    "max_position_embeddings": 4096,
    "num_key_value_heads": 32,
    "hidden_act": "silu",
    "layer_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}
"""What config.json means when it leaves a key out."""
PARTIAL: Final = 0.25
"""How much of a head rotates then."""


def _preset(**changed: Any) -> dict[str, Any]:
    """The configuration of StableLM 2 1.6B, changed."""
    return {
        "model_type": "stablelm",
        "architectures": ["StableLmForCausalLM"],
        "vocab_size": 100352,
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "num_hidden_layers": 24,
        "num_attention_heads": 32,
        "use_qkv_bias": True,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": PARTIAL,
        },
        "bos_token_id": 100257,
        "eos_token_id": 100257,
        **DEFAULTS,
        **changed,
    }


PRESETS: Final = {
    "stablelm-2-1_6b": _preset(),
    "stablelm-tiny": _preset(
        vocab_size=512,
        max_position_embeddings=128,
        hidden_size=64,
        intermediate_size=160,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        bos_token_id=510,
        eos_token_id=511,
    ),
}
"""StableLM 2 1.6B, and a small one."""

define_model(
    ModelDefinition(
        "stablelm",
        build=StableLm,
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
