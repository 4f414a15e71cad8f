"""Llama (Touvron et al. 2023; Grattafiori et al. 2024) and what differs from it by options only.

Root-mean-square norms, rotary positions, heads that share keys, gated MLP. Mistral adds a window,
Qwen2 biases. Attribute names are the keys of Hugging Face checkpoints; projections store
``[outputs, inputs]``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ptir import functional as F
from ptir.capture.tensor import Tensor
from ptir.errors import CheckpointError, short
from ptir.models.fields import flag, real, whole, whole_or_none
from ptir.models.rotation import frequencies
from ptir.models.table import ModelDefinition, define_model
from ptir.nn import (
    Embedding,
    Linear,
    Module,
    RMSNorm,
    cached_attention,
    fused_linear,
    last_rows,
)
from ptir.nn.state import KeysValues, LayerTensors, State

SIZES: Final = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
)
COMPLETED: Final = ("num_key_value_heads", "head_dim")
"""Sizes that may be left out or null."""


@dataclass(frozen=True)
class Config:
    """The part of ``config.json`` that shapes the computation."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    epsilon: float
    frequencies: tuple[float, ...]
    windows: tuple[int | None, ...]
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool

    @staticmethod
    def of(config: Mapping[str, Any]) -> Config:
        """Read ``config``; raises ``CheckpointError`` for what this file does not implement."""
        model = str(config.get("model_type"))
        activation = config.get("hidden_act", "silu")
        if activation != "silu":
            raise CheckpointError(
                f"{model}: hidden_act {short(activation)} is not implemented; only 'silu' is:"
                " choose a checkpoint that uses it"
            )
        sizes = _sizes(config, model)
        attention = flag(config, "attention_bias")
        return Config(
            **sizes,
            epsilon=real(config, "rms_norm_eps", 1e-6),
            frequencies=frequencies(config, model, sizes["head_dim"]),
            windows=_windows(config, model, sizes["num_hidden_layers"]),
            qkv_bias=attention or model == "qwen2",
            output_bias=attention,
            mlp_bias=flag(config, "mlp_bias"),
        )


def _sizes(config: Mapping[str, Any], model: str) -> dict[str, int]:
    """The sizes, those that may be left out or null completed from the others."""
    given = {name: whole(config, name) for name in SIZES if name not in COMPLETED}
    heads, size = given["num_attention_heads"], given["hidden_size"]
    keys = whole_or_none(config, "num_key_value_heads") or heads
    head = whole_or_none(config, "head_dim")
    if head is None and size % heads:
        raise CheckpointError(
            f"{model}: hidden_size {size} is not a multiple of num_attention_heads {heads};"
            " config.json needs a head_dim then"
        )
    if heads % keys:
        raise CheckpointError(
            f"{model}: num_attention_heads {heads} must be a multiple of num_key_value_heads"
            f" {keys}; check config.json"
        )
    return {**given, "num_key_value_heads": keys, "head_dim": head or size // heads}


def _windows(config: Mapping[str, Any], model: str, layers: int) -> tuple[int | None, ...]:
    """How many positions each layer sees back, itself included; None for all."""
    used = flag(config, "use_sliding_window", True)
    window = whole_or_none(config, "sliding_window") if used else None
    first = whole_or_none(config, "max_window_layers") or 0
    kinds = config.get("layer_types")
    if kinds is None:
        numbers = range(layers)
        kinds = ["sliding_attention" if at >= first else "full_attention" for at in numbers]
    unknown = sorted(set(kinds) - {"full_attention", "sliding_attention"})
    if unknown or len(kinds) != layers:
        raise CheckpointError(
            f"{model}: layer_types must be full_attention or sliding_attention for each of the"
            f" {layers} layers; {len(kinds)} given, other kinds: {', '.join(unknown) or 'none'}"
        )
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


@dataclass(frozen=True)
class CachePositions:
    """Where the tokens of a step stand, and how many of each row are real."""

    start: Tensor
    count: Tensor
    positions: Tensor

    @staticmethod
    def of(start: Tensor, count: Tensor, length: int) -> CachePositions:
        """Those of ``length`` tokens of which ``count[b]`` are real, from ``start[b]`` on."""
        positions = start.reshape(-1, 1) + F.arange(length)
        return CachePositions(start, count, positions)


class Attention(Module):
    """Causal self-attention over the cache; query heads share keys and values in groups."""

    def __init__(self, config: Config, layer: int) -> None:
        size, head = config.hidden_size, config.head_dim
        self.heads, self.groups = config.num_attention_heads, config.num_key_value_heads
        self.q_proj = Linear(size, self.heads * head, bias=config.qkv_bias)
        self.k_proj = Linear(size, self.groups * head, bias=config.qkv_bias)
        self.v_proj = Linear(size, self.groups * head, bias=config.qkv_bias)
        self.o_proj = Linear(self.heads * head, size, bias=config.output_bias)
        self.frequencies = config.frequencies
        self.window = config.windows[layer]

    def __call__(
        self, x: Tensor, cache: LayerTensors, at: CachePositions
    ) -> tuple[Tensor, LayerTensors]:
        """f32[B,T,D] and this layer's cache to f32[B,T,D] and the extended cache."""
        batch, length, _ = x.shape
        projected = fused_linear(x, (self.q_proj, self.k_proj, self.v_proj))
        q, k, v = (
            part.reshape(batch, length, heads, -1).transpose(0, 2, 1, 3)
            for part, heads in zip(projected, (self.heads, self.groups, self.groups), strict=True)
        )
        frequencies = F.constant(self.frequencies)
        q, k = (F.rope(part, at.positions, frequencies) for part in (q, k))
        seen, cache = cached_attention(q, k, v, cache, at.start, at.count, window=self.window)
        merged = seen.transpose(0, 2, 1, 3).reshape(batch, length, -1)
        return self.o_proj(merged), cache


class MLP(Module):
    """A projection gated by another, and one back."""

    def __init__(self, config: Config) -> None:
        size, inner, bias = config.hidden_size, config.intermediate_size, config.mlp_bias
        self.gate_proj = Linear(size, inner, bias=bias)
        self.up_proj = Linear(size, inner, bias=bias)
        self.down_proj = Linear(inner, size, bias=bias)

    def __call__(self, x: Tensor) -> Tensor:
        """f32[B,T,D] to f32[B,T,D]."""
        return self.down_proj(F.swiglu(*fused_linear(x, (self.gate_proj, self.up_proj))))


class Block(Module):
    """Attention and MLP, each behind a norm and beside a residual."""

    def __init__(self, config: Config, layer: int) -> None:
        self.input_layernorm = RMSNorm(config.hidden_size, epsilon=config.epsilon)
        self.self_attn = Attention(config, layer)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, epsilon=config.epsilon)
        self.mlp = self.make_mlp(config)

    def make_mlp(self, config: Config) -> Module:
        """What stands in the MLP's place."""
        return MLP(config)

    def __call__(
        self, x: Tensor, cache: LayerTensors, at: CachePositions
    ) -> tuple[Tensor, LayerTensors]:
        """f32[B,T,D] and this layer's cache to f32[B,T,D] and the extended cache."""
        normed = self.input_layernorm(x)
        attended, cache = self.self_attn(normed, cache, at)
        x = x + attended
        return x + self.mlp(self.post_attention_layernorm(x)), cache


class Llama(Module):
    """The language model; its head is the token embedding where the checkpoint ties them."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = Config.of(config)
        tied = flag(config, "tie_word_embeddings")
        size, vocab = self.config.hidden_size, self.config.vocab_size
        self.embed_tokens = Embedding(vocab, size, is_head=tied)
        numbers = range(self.config.num_hidden_layers)
        self.layers = [self.make_block(layer) for layer in numbers]
        self.norm = RMSNorm(size, epsilon=self.config.epsilon)
        self.lm_head: Linear | None = None
        if not tied:
            self.lm_head = Linear(size, vocab, bias=False)

    def make_block(self, layer: int) -> Module:
        """The block of a layer."""
        return Block(self.config, layer)

    def states(self) -> tuple[KeysValues, ...]:
        """Keys and values of every layer."""
        config = self.config
        return (KeysValues(config.num_key_value_heads, config.head_dim),) * config.num_hidden_layers

    def __call__(
        self, tokens: Tensor, state: State, start: Tensor, count: Tensor, *, every: bool = False
    ) -> tuple[Tensor, State]:
        """Logits and the next state; see ``CausalModel``."""
        at = CachePositions.of(start, count, tokens.shape[1])
        x = self.embed_tokens(tokens)
        extended: list[LayerTensors] = []
        for block, cache in zip(self.layers, state, strict=True):
            x, cache = block(x, cache, at)
            extended.append(cache)
        if not every:
            x = last_rows(x, count)
        x = self.norm(x)
        head = self.embed_tokens.weight if self.lm_head is None else self.lm_head.weight
        return F.linear(x, head, layout="oi"), tuple(extended)


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
}
"""By ``model_type``: what config.json means when it leaves a key out."""

for _model_type, _defaults in DEFAULTS.items():
    define_model(
        ModelDefinition(
            _model_type,
            build=Llama,
            context=lambda config: Config.of(config).max_position_embeddings,
            prefixes=("model.",),
            ignored=("layers.*.self_attn.rotary_emb.inv_freq",),
            tied={"lm_head.weight": "embed_tokens.weight"},
            layers=("num_hidden_layers", "layers."),
            defaults={"tie_word_embeddings": False, **_defaults},
            presets=PRESETS if _model_type == "llama" else {},
            tokenizer="gpt2",
        )
    )
