"""GPT-2 (Radford et al. 2019), batched, with a fixed-capacity key-value cache.

Attribute names are the keys of Hugging Face checkpoints; projections store ``[inputs, outputs]``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ptir import functional as F
from ptir.capture.tensor import Tensor
from ptir.errors import CheckpointError, short
from ptir.models.causal import CachePositions, Decoder, PartNames
from ptir.models.fields import flag, real, whole, whole_or_none
from ptir.models.table import ModelDefinition, define_model
from ptir.nn import Conv1D, Embedding, LayerNorm, Module, cached_attention
from ptir.nn.state import KeysValues, LayerTensors

SIZES = ("vocab_size", "n_positions", "n_embd", "n_layer", "n_head")
ACTIVATIONS = {"gelu_new": "tanh", "gelu_pytorch_tanh": "tanh", "gelu": "none"}


@dataclass(frozen=True)
class Config:
    """The part of ``config.json`` that shapes the computation."""

    vocab_size: int
    n_positions: int
    n_embd: int
    n_layer: int
    n_head: int
    inner: int
    epsilon: float
    activation: str
    scale_by_layer: bool

    @staticmethod
    def of(config: Mapping[str, Any]) -> Config:
        """Read ``config``; raises ``CheckpointError`` for what this file does not implement."""
        activation = config.get("activation_function", "gelu_new")
        if not isinstance(activation, str) or activation not in ACTIVATIONS:
            listed = ", ".join(ACTIVATIONS)
            raise CheckpointError(f"gpt2: activation_function {short(activation)}: one of {listed}")
        if flag(config, "add_cross_attention") or not flag(config, "scale_attn_weights", True):
            raise CheckpointError("gpt2: cross attention and unscaled attention are not supported")
        sizes = {name: whole(config, name) for name in SIZES}
        if sizes["n_embd"] % sizes["n_head"]:
            raise CheckpointError(
                f"gpt2: n_embd {sizes['n_embd']} must be a multiple of n_head {sizes['n_head']};"
                " check config.json"
            )
        return Config(
            **sizes,
            inner=whole_or_none(config, "n_inner") or 4 * sizes["n_embd"],
            epsilon=real(config, "layer_norm_epsilon", 1e-5),
            activation=ACTIVATIONS[activation],
            scale_by_layer=flag(config, "scale_attn_by_inverse_layer_idx"),
        )


class Attention(Module):
    """Causal self-attention over the cache."""

    def __init__(self, config: Config, layer: int) -> None:
        size = config.n_embd
        self.c_attn = Conv1D(size, 3 * size)
        self.c_proj = Conv1D(size, size)
        self.heads = config.n_head
        self.scale = (size // config.n_head) ** -0.5
        if config.scale_by_layer:
            self.scale /= layer + 1

    def __call__(
        self, x: Tensor, cache: LayerTensors, at: CachePositions
    ) -> tuple[Tensor, LayerTensors]:
        """f32[B,T,D] and this layer's cache to f32[B,T,D] and the extended cache."""
        batch, length, size = x.shape
        fused = self.c_attn(x).reshape(batch, length, 3, self.heads, size // self.heads)
        q, k, v = (fused[:, :, i].transpose(0, 2, 1, 3) for i in range(3))
        seen, cache = cached_attention(q, k, v, cache, at.start, at.count, scale=self.scale)
        merged = seen.transpose(0, 2, 1, 3).reshape(batch, length, size)
        return self.c_proj(merged), cache


class MLP(Module):
    """Two projections around GELU."""

    def __init__(self, config: Config) -> None:
        self.c_fc = Conv1D(config.n_embd, config.inner)
        self.c_proj = Conv1D(config.inner, config.n_embd)
        self.activation = config.activation

    def __call__(self, x: Tensor) -> Tensor:
        """f32[B,T,D] to f32[B,T,D]."""
        return self.c_proj(F.gelu(self.c_fc(x), approximate=self.activation))


class Block(Module):
    """Attention and MLP, each behind a norm and beside a residual."""

    def __init__(self, config: Config, layer: int) -> None:
        self.state = KeysValues(config.n_head, config.n_embd // config.n_head)
        self.ln_1 = LayerNorm(config.n_embd, epsilon=config.epsilon)
        self.attn = Attention(config, layer)
        self.ln_2 = LayerNorm(config.n_embd, epsilon=config.epsilon)
        self.mlp = MLP(config)

    def __call__(
        self, x: Tensor, cache: LayerTensors, at: CachePositions
    ) -> tuple[Tensor, LayerTensors]:
        """f32[B,T,D] and this layer's cache to f32[B,T,D] and the extended cache."""
        attended, cache = self.attn(self.ln_1(x), cache, at)
        x = x + attended
        return x + self.mlp(self.ln_2(x)), cache


class GPT2(Decoder):
    """The language model; its head is the token embedding unless the checkpoint has its own."""

    names = PartNames("wte", "h", "ln_f", "lm_head")

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = found = Config.of(config)
        super().__init__(
            found.vocab_size,
            found.n_embd,
            [Block(found, layer) for layer in range(found.n_layer)],
            LayerNorm(found.n_embd, epsilon=found.epsilon),
            tied=flag(config, "tie_word_embeddings", True),
        )
        self.wpe = Embedding(found.n_positions, found.n_embd)

    def embedded(self, tokens: Tensor, at: CachePositions) -> Tensor:
        """i32[B,T] to f32[B,T,D]: tokens and their positions."""
        return super().embedded(tokens, at) + self.wpe(at.positions)


_SIZES = {
    "gpt2": (768, 12, 12),
    "gpt2-medium": (1024, 24, 16),
    "gpt2-large": (1280, 36, 20),
    "gpt2-xl": (1600, 48, 25),
}


def _preset(size: int, layers: int, heads: int) -> dict[str, Any]:
    return {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "vocab_size": 50257,
        "n_positions": 1024,
        "n_embd": size,
        "n_layer": layers,
        "n_head": heads,
        "layer_norm_epsilon": 1e-5,
        "activation_function": "gelu_new",
        "bos_token_id": 50256,
        "eos_token_id": 50256,
        "tie_word_embeddings": True,
    }


define_model(
    ModelDefinition(
        "gpt2",
        build=GPT2,
        context=lambda config: Config.of(config).n_positions,
        prefixes=("transformer.",),
        ignored=("h.*.attn.bias", "h.*.attn.masked_bias"),
        tied={"lm_head.weight": "wte.weight"},
        layers={"n_layer": "h."},
        defaults={"tie_word_embeddings": True},
        presets={name: _preset(*sizes) for name, sizes in _SIZES.items()}
        | {"gpt2-tiny": _preset(64, 2, 4) | {"n_positions": 128}},
        tokenizer="gpt2",
    )
)
