"""LFM2 (Liquid AI, 2025): short gated convolutions, and attention in some of the layers.

Attribute names are the keys of Hugging Face checkpoints; projections store ``[outputs, inputs]``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ptir import functional as F
from ptir.capture.tensor import Tensor
from ptir.errors import CheckpointError
from ptir.models.causal import CachePositions, Decoder, PartNames
from ptir.models.fields import FIELDS, flag, listed, real, require_multiple, whole
from ptir.models.rotation import FULL, frequencies
from ptir.models.table import ModelDefinition, define_model
from ptir.nn import CausalConv1d, Linear, Module, RMSNorm, cached_attention, fused_linear
from ptir.nn.state import KeysValues, LayerState, LayerTensors, Recurrent

CONV: Final = "conv"
SIZES: Final = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "max_position_embeddings",
    "conv_L_cache",
)


@dataclass(frozen=True)
class Config:
    """The part of ``config.json`` that shapes the computation."""

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    max_position_embeddings: int
    conv_L_cache: int  # noqa: N815  the key of config.json
    head_dim: int
    inner: int
    conv_bias: bool
    epsilon: float
    frequencies: tuple[float, ...]
    kinds: tuple[str, ...]

    @staticmethod
    def of(config: Mapping[str, Any]) -> Config:
        """Read ``config``; raises ``CheckpointError`` for what this file does not implement."""
        sizes = {name: whole(config, name) for name in SIZES}
        size, heads = sizes["hidden_size"], sizes["num_attention_heads"]
        require_multiple(sizes, "hidden_size", "num_attention_heads", "lfm2")
        require_multiple(sizes, "num_attention_heads", "num_key_value_heads", "lfm2")
        return Config(
            **sizes,
            head_dim=size // heads,
            inner=_inner(config),
            conv_bias=flag(config, "conv_bias"),
            epsilon=real(config, "norm_eps"),
            frequencies=frequencies(config, "lfm2", size // heads),
            kinds=_kinds(config, sizes["num_hidden_layers"]),
        )

    def state(self, kind: str) -> LayerState:
        """The tail of a convolution, or the keys and values of attention."""
        if kind == CONV:
            return Recurrent((CausalConv1d.tail(self.hidden_size, self.conv_L_cache),))
        return KeysValues(self.num_key_value_heads, self.head_dim)


def _inner(config: Mapping[str, Any]) -> int:
    """The width of the MLP: what is said, or two thirds of it rounded up to a multiple."""
    older = config.get("block_ff_dim") is not None
    said = whole(config, "block_ff_dim" if older else "intermediate_size")
    if not flag(config, "block_auto_adjust_ff_dim", True):
        return said
    adjusted = 2 * said // 3
    if config.get("block_ffn_dim_multiplier") is None:
        return adjusted
    of = whole(config, "block_multiple_of")
    width = int(real(config, "block_ffn_dim_multiplier") * adjusted)
    if not FIELDS["intermediate_size"].holds(width):
        raise CheckpointError(
            f"lfm2: block_ffn_dim_multiplier gives an MLP of width {width}, which must be"
            f" {FIELDS['intermediate_size']}; check config.json"
        )
    return of * -(-width // of)


def _kinds(config: Mapping[str, Any], layers: int) -> tuple[str, ...]:
    """The kind of each layer; ``full_attn_idxs`` is how older files say it."""
    if config.get("layer_types") is not None:
        return listed(config, "layer_types", (CONV, FULL), layers)
    given = config.get("full_attn_idxs")
    attend = range(layers) if given is None else given
    good = isinstance(attend, list | range) and all(type(n) is int for n in attend)
    if not good or any(not 0 <= n < layers for n in attend):
        raise CheckpointError(
            f"lfm2: full_attn_idxs must be a list of layers from 0 to {layers - 1}; check"
            " config.json"
        )
    return tuple(FULL if layer in set(attend) else CONV for layer in range(layers))


class ShortConv(Module):
    """A convolution over few tokens, with a gate before and another behind it."""

    def __init__(self, config: Config) -> None:
        size, bias = config.hidden_size, config.conv_bias
        self.in_proj = Linear(size, 3 * size, bias=bias)
        self.conv = CausalConv1d(size, config.conv_L_cache, bias=bias)
        self.out_proj = Linear(size, size, bias=bias)

    def __call__(
        self, x: Tensor, state: LayerTensors, at: CachePositions
    ) -> tuple[Tensor, LayerTensors]:
        """f32[B,T,D] and the tail to f32[B,T,D] and the next tail."""
        size = x.shape[2]
        fused = self.in_proj(x)
        before, behind, x = (fused[..., n * size : (n + 1) * size] for n in range(3))
        mixed, tail = self.conv(before * x, state[0], at.count)
        return self.out_proj(behind * mixed), (tail,)


class Attention(Module):
    """Causal self-attention over the cache, with a norm of each query and key head."""

    def __init__(self, config: Config) -> None:
        size, head = config.hidden_size, config.head_dim
        self.heads, self.groups = config.num_attention_heads, config.num_key_value_heads
        self.q_proj = Linear(size, self.heads * head, bias=False)
        self.k_proj = Linear(size, self.groups * head, bias=False)
        self.v_proj = Linear(size, self.groups * head, bias=False)
        self.out_proj = Linear(self.heads * head, size, bias=False)
        self.q_layernorm = RMSNorm(head, epsilon=config.epsilon)
        self.k_layernorm = RMSNorm(head, epsilon=config.epsilon)
        self.frequencies = config.frequencies

    def __call__(
        self, x: Tensor, cache: LayerTensors, at: CachePositions
    ) -> tuple[Tensor, LayerTensors]:
        """f32[B,T,D] and this layer's cache to f32[B,T,D] and the extended cache."""
        batch, length, _ = x.shape
        projected = fused_linear(x, (self.q_proj, self.k_proj, self.v_proj))
        q, k, v = (
            part.reshape(batch, length, heads, -1)
            for part, heads in zip(projected, (self.heads, self.groups, self.groups), strict=True)
        )
        q, k = self.q_layernorm(q), self.k_layernorm(k)
        q, k, v = (part.transpose(0, 2, 1, 3) for part in (q, k, v))
        table = F.constant(self.frequencies)
        q, k = (F.rope(part, at.positions, table) for part in (q, k))
        seen, cache = cached_attention(q, k, v, cache, at.start, at.count)
        return self.out_proj(seen.transpose(0, 2, 1, 3).reshape(batch, length, -1)), cache


class MLP(Module):
    """A projection gated by another, and one back."""

    def __init__(self, config: Config) -> None:
        self.w1 = Linear(config.hidden_size, config.inner, bias=False)
        self.w3 = Linear(config.hidden_size, config.inner, bias=False)
        self.w2 = Linear(config.inner, config.hidden_size, bias=False)

    def __call__(self, x: Tensor) -> Tensor:
        """f32[B,T,D] to f32[B,T,D]."""
        return self.w2(F.swiglu(*fused_linear(x, (self.w1, self.w3))))


class Block(Module):
    """A convolution or attention, and an MLP, each behind a norm and beside a residual."""

    def __init__(self, config: Config, kind: str) -> None:
        self.state = config.state(kind)
        self.operator_norm = RMSNorm(config.hidden_size, epsilon=config.epsilon)
        self.conv = ShortConv(config) if kind == CONV else None
        self.self_attn = Attention(config) if kind == FULL else None
        self.ffn_norm = RMSNorm(config.hidden_size, epsilon=config.epsilon)
        self.feed_forward = MLP(config)

    def __call__(
        self, x: Tensor, state: LayerTensors, at: CachePositions
    ) -> tuple[Tensor, LayerTensors]:
        """f32[B,T,D] and this layer's state to f32[B,T,D] and the next state."""
        mix = self.self_attn if self.conv is None else self.conv
        assert mix is not None
        mixed, state = mix(self.operator_norm(x), state, at)
        x = x + mixed
        return x + self.feed_forward(self.ffn_norm(x)), state


class Lfm2(Decoder):
    """The language model; its head is the token embedding where the checkpoint ties them."""

    names = PartNames(norm="embedding_norm")

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = found = Config.of(config)
        super().__init__(
            found.vocab_size,
            found.hidden_size,
            [Block(found, kind) for kind in found.kinds],
            RMSNorm(found.hidden_size, epsilon=found.epsilon),
            tied=flag(config, "tie_word_embeddings"),
        )


DEFAULTS: Final[dict[str, Any]] = {
    "num_key_value_heads": 8,
    "max_position_embeddings": 128000,
    "norm_eps": 1e-5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
    "tie_word_embeddings": True,
    "conv_L_cache": 3,
    "block_multiple_of": 256,
    "block_ffn_dim_multiplier": 1.0,
}
"""What config.json means when it leaves a key out."""


def _preset(attend: tuple[int, ...], **sizes: int) -> dict[str, Any]:
    """A configuration with attention in the layers ``attend``."""
    layers = sizes["num_hidden_layers"]
    return {
        "model_type": "lfm2",
        "architectures": ["Lfm2ForCausalLM"],
        "vocab_size": 65536,
        **DEFAULTS,
        "layer_types": [FULL if layer in attend else CONV for layer in range(layers)],
        "bos_token_id": 1,
        "eos_token_id": 7,
        **sizes,
    }


_ATTEND: Final = (2, 5, 8, 10, 12, 14)

PRESETS: Final = {
    "lfm2-350m": _preset(
        _ATTEND,
        hidden_size=1024,
        intermediate_size=6656,
        num_hidden_layers=16,
        num_attention_heads=16,
    ),
    "lfm2-1.2b": _preset(
        _ATTEND,
        hidden_size=2048,
        intermediate_size=12288,
        num_hidden_layers=16,
        num_attention_heads=32,
    ),
    "lfm2-tiny": _preset(
        (1, 3),
        vocab_size=512,
        max_position_embeddings=256,
        hidden_size=64,
        intermediate_size=240,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        block_multiple_of=32,
        bos_token_id=510,
        eos_token_id=511,
    ),
}

define_model(
    ModelDefinition(
        "lfm2",
        build=Lfm2,
        context=lambda config: Config.of(config).max_position_embeddings,
        prefixes=("model.",),
        tied={"lm_head.weight": "embed_tokens.weight"},
        layers={"num_hidden_layers": "layers."},
        defaults=DEFAULTS,
        presets=PRESETS,
        tokenizer="gpt2",
    )
)
