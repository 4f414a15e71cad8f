"""OPT (Zhang et al. 2022): learned positions, and ReLU.

Attribute names are the keys of Hugging Face checkpoints. The 350M model norms after each residual,
and its embedding is narrower than its blocks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ptir.capture.tensor import Tensor
from ptir.models.causal import CachePositions, PartNames
from ptir.models.decoder import (
    ACTIVATIONS,
    Config,
    Heads,
    LayerNormDecoder,
    Sizes,
    SplitAttention,
    activation,
    context,
    refuse,
)
from ptir.models.fields import flag, whole, whole_or_none
from ptir.models.table import ModelDefinition, define_model
from ptir.nn import Embedding, LayerNorm, Linear, Module
from ptir.nn.state import LayerTensors

OFFSET: Final = 2
"""Rows of the table of positions before that of the first one."""


@dataclass(frozen=True)
class OptConfig(Config):
    """What every family has; the width of tokens, where norms stand, whether one is at the end."""

    width: int = 0
    before: bool = True
    last_norm: bool = True


def read(config: Mapping[str, Any]) -> OptConfig:
    """Read ``config``; raises ``CheckpointError`` for what this file does not implement."""
    refuse(config, "layer_norm_elementwise_affine", True)
    sizes = Sizes.of(config, inner=whole(config, "ffn_dim"))
    bias = flag(config, "enable_bias", True)
    before = flag(config, "do_layer_norm_before", True)
    return OptConfig(
        sizes,
        Heads(sizes, bias=bias, output_bias=bias),
        epsilon=1e-5,
        activation=activation(config, "activation_function"),
        width=whole_or_none(config, "word_embed_proj_dim") or sizes.hidden_size,
        before=before,
        last_norm=before and not flag(config, "_remove_final_layer_norm"),
    )


class Block(Module):
    """Attention and two projections, each behind a norm, or before one, and beside a residual."""

    def __init__(self, config: OptConfig) -> None:
        size, inner, bias = (
            config.sizes.hidden_size,
            config.sizes.intermediate_size,
            config.heads.bias,
        )
        self.state = config.state
        self.self_attn = SplitAttention(config.heads, output="out_proj")
        self.self_attn_layer_norm = LayerNorm(size, epsilon=config.epsilon)
        self.fc1 = Linear(size, inner, bias=bias)
        self.fc2 = Linear(inner, size, bias=bias)
        self.final_layer_norm = LayerNorm(size, epsilon=config.epsilon)
        self.activation, self.before = config.activation, config.before

    def __call__(
        self, x: Tensor, cache: LayerTensors, at: CachePositions
    ) -> tuple[Tensor, LayerTensors]:
        """f32[B,T,D] and this layer's cache to f32[B,T,D] and the extended cache."""
        normed = self.self_attn_layer_norm(x) if self.before else x
        attended, cache = self.self_attn(normed, cache, at)
        x = x + attended
        x = x if self.before else self.self_attn_layer_norm(x)
        normed = self.final_layer_norm(x) if self.before else x
        x = x + self.fc2(ACTIVATIONS[self.activation](self.fc1(normed)))
        return (x if self.before else self.final_layer_norm(x)), cache


class Opt(LayerNormDecoder):
    """The language model; tokens may be narrower than what the blocks read."""

    names = PartNames(norm="final_layer_norm")

    def __init__(self, config: Mapping[str, Any]) -> None:
        found = read(config)
        super().__init__(
            found,
            lambda: Block(found),
            tied=flag(config, "tie_word_embeddings"),
            width=found.width,
            last_norm=found.last_norm,
        )
        size, width = found.sizes.hidden_size, found.width
        self.embed_positions = Embedding(found.sizes.max_position_embeddings + OFFSET, size)
        other = width != size
        self.project_in = Linear(width, size, bias=False) if other else None
        self.project_out = Linear(size, width, bias=False) if other else None

    def embedded(self, tokens: Tensor, at: CachePositions) -> Tensor:
        """i32[B,T] to f32[B,T,D]: tokens, widened if need be, and their positions."""
        x = super().embedded(tokens, at)
        x = x if self.project_in is None else self.project_in(x)
        return x + self.embed_positions(at.positions + OFFSET)

    def narrowed(self, x: Tensor) -> Tensor:
        """What the head reads of the last norm's output f32[...,D]."""
        return x if self.project_out is None else self.project_out(x)


DEFAULTS: Final[dict[str, Any]] = {
    "max_position_embeddings": 2048,
    "activation_function": "relu",
    "tie_word_embeddings": True,
}
"""What config.json means when it leaves a key out."""


def _preset(size: int, layers: int, heads: int, **changed: Any) -> dict[str, Any]:
    return {
        "model_type": "opt",
        "architectures": ["OPTForCausalLM"],
        "vocab_size": 50272,
        "hidden_size": size,
        "ffn_dim": 4 * size,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "word_embed_proj_dim": size,
        "do_layer_norm_before": True,
        "bos_token_id": 2,
        "eos_token_id": 2,
        **DEFAULTS,
        **changed,
    }


PRESETS: Final = {
    "opt-125m": _preset(768, 12, 12),
    "opt-1.3b": _preset(2048, 24, 32),
    "opt-tiny": _preset(64, 2, 4, vocab_size=512, max_position_embeddings=128),
}
"""Two of the published sizes, and a small one."""

define_model(
    ModelDefinition(
        "opt",
        build=Opt,
        context=context(read),
        prefixes=("model.decoder.", "decoder."),
        tied={"lm_head.weight": "embed_tokens.weight"},
        layers={"num_hidden_layers": "layers."},
        defaults=DEFAULTS,
        presets=PRESETS,
        tokenizer="gpt2",
    )
)
