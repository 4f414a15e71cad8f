"""Qwen3.5 (Qwen team, 2026), its text: three layers of linear attention to each of attention.

Linear attention is the gated delta rule behind a short convolution. Attention has a gate, a norm of
each query and key head, and rotates a part of them. Attribute names are the keys of Hugging Face
checkpoints; projections store ``[outputs, inputs]``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ptir import functional as F
from ptir.capture.tensor import Tensor
from ptir.errors import CheckpointError, short
from ptir.models.fields import flag, listed, real, require_multiple, whole
from ptir.models.llama import CachePositions
from ptir.models.rotation import frequencies
from ptir.models.table import ModelDefinition, define_model
from ptir.nn import (
    CausalConv1d,
    Embedding,
    Linear,
    Module,
    cached_attention,
    fused_linear,
    last_rows,
    param,
)
from ptir.nn.state import Carried, KeysValues, LayerState, LayerTensors, Recurrent, State

LINEAR: Final = "linear_attention"
FULL: Final = "full_attention"
SIZES: Final = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
    "linear_conv_kernel_dim",
    "linear_key_head_dim",
    "linear_value_head_dim",
    "linear_num_key_heads",
    "linear_num_value_heads",
)


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
    linear_conv_kernel_dim: int
    linear_key_head_dim: int
    linear_value_head_dim: int
    linear_num_key_heads: int
    linear_num_value_heads: int
    epsilon: float
    bias: bool
    rotary: int
    frequencies: tuple[float, ...]
    kinds: tuple[str, ...]

    @property
    def mixed(self) -> int:
        """How many channels the convolution of linear attention has: queries, keys and values."""
        keys = self.linear_num_key_heads * self.linear_key_head_dim
        return 2 * keys + self.linear_num_value_heads * self.linear_value_head_dim

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
        sizes = {name: whole(config, name) for name in SIZES}
        require_multiple(sizes, "num_attention_heads", "num_key_value_heads", model)
        require_multiple(sizes, "linear_num_value_heads", "linear_num_key_heads", model)
        rotary, table = _rotation(config, model, sizes["head_dim"])
        return Config(
            **sizes,
            epsilon=real(config, "rms_norm_eps", 1e-6),
            bias=flag(config, "attention_bias"),
            rotary=rotary,
            frequencies=table,
            kinds=_kinds(config, sizes["num_hidden_layers"]),
        )


def _rotation(config: Mapping[str, Any], model: str, head: int) -> tuple[int, tuple[float, ...]]:
    """How many dimensions of a head are rotated, and the frequencies of their pairs."""
    given = config.get("rope_parameters", {FULL: {"rope_theta": 10000.0}})
    entries = [value for value in given.values() if isinstance(value, Mapping)] or [given]
    entry = given.get(FULL, entries[0])
    factor = real({**config, **entry}, "partial_rotary_factor")
    rest = {key: value for key, value in entry.items() if key != "partial_rotary_factor"}
    rotary = int(head * factor)
    if rotary < 2 or rotary % 2:
        raise CheckpointError(
            f"{model}: partial_rotary_factor {factor:g} of head_dim {head} rotates {rotary}"
            " dimensions; they must be pairs: check config.json"
        )
    return rotary, frequencies({**config, "rope_parameters": rest}, model, rotary)


def _kinds(config: Mapping[str, Any], layers: int) -> tuple[str, ...]:
    """The kind of each layer, as listed or with attention in every so manyth."""
    if config.get("layer_types") is not None:
        return listed(config, "layer_types", (LINEAR, FULL), layers)
    every = whole(config, "full_attention_interval")
    return tuple(LINEAR if (layer + 1) % every else FULL for layer in range(layers))


class ZeroCenteredRMSNorm(Module):
    """Root-mean-square normalization over the last axis; what is stored is added to 1."""

    def __init__(self, size: int, *, epsilon: float) -> None:
        self.weight = param(size)
        self.epsilon = epsilon

    def __call__(self, x: Tensor) -> Tensor:
        """Apply the layer to f32[...,size]."""
        return F.rms_norm(x, 1.0 + self.weight, epsilon=self.epsilon)


class GatedRMSNorm(Module):
    """Root-mean-square normalization over the last axis, then a gate."""

    def __init__(self, size: int, *, epsilon: float) -> None:
        self.weight = param(size)
        self.epsilon = epsilon

    def __call__(self, x: Tensor, gate: Tensor) -> Tensor:
        """Both f32[...,size]."""
        return F.swiglu(gate, F.rms_norm(x, self.weight, epsilon=self.epsilon))


def _logistic(x: Tensor) -> Tensor:
    return 1.0 / (1.0 + F.exp(-x))


def _softplus(x: Tensor) -> Tensor:
    """``log(1 + exp(x))``, also where exp(x) is infinite."""
    return F.maximum(x, 0.0) + F.log1p(F.exp(-abs(x)))


def _unit(x: Tensor) -> Tensor:
    """``x`` with its last axis at length 1."""
    return x * F.rsqrt((x * x).sum(axis=-1, keepdims=True) + 1e-6)


class GatedDeltaNet(Module):
    """Linear attention by the gated delta rule (Yang, Kautz and Hatamizadeh, 2025)."""

    def __init__(self, config: Config) -> None:
        size, values = config.hidden_size, config.linear_num_value_heads
        width, taps = values * config.linear_value_head_dim, config.linear_conv_kernel_dim
        self.keys, self.values = config.linear_num_key_heads, values
        self.key_dim = config.linear_key_head_dim
        self.in_proj_qkv = Linear(size, config.mixed, bias=False)
        self.in_proj_z = Linear(size, width, bias=False)
        self.in_proj_b = Linear(size, values, bias=False)
        self.in_proj_a = Linear(size, values, bias=False)
        self.conv1d = CausalConv1d(config.mixed, taps, bias=False)
        self.dt_bias = param(values)
        self.A_log = param(values)
        self.norm = GatedRMSNorm(config.linear_value_head_dim, epsilon=config.epsilon)
        self.out_proj = Linear(width, size, bias=False)

    def __call__(
        self, x: Tensor, state: LayerTensors, at: CachePositions
    ) -> tuple[Tensor, LayerTensors]:
        """f32[B,T,D], the tail and the matrices to f32[B,T,D] and the next ones."""
        (batch, length, _), (tail, matrices) = x.shape, state
        projections = (self.in_proj_qkv, self.in_proj_z, self.in_proj_b, self.in_proj_a)
        mixed, z, b, a = fused_linear(x, projections)
        mixed, tail = self.conv1d(mixed, tail, at.count)
        q, k, v = self._heads(F.silu(mixed))
        rate = _logistic(b).transpose(0, 2, 1)
        decay = (-F.exp(self.A_log) * _softplus(a + self.dt_bias)).transpose(0, 2, 1)
        q, k = _unit(q) * self.key_dim**-0.5, _unit(k)
        seen, matrices = F.gated_delta_rule(q, k, v, decay, rate, matrices, at.count)
        seen = seen.transpose(0, 2, 1, 3)
        gated = self.norm(seen, z.reshape(*seen.shape)).reshape(batch, length, -1)
        return self.out_proj(gated), (tail, matrices)

    def _heads(self, mixed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of [B,T,C], each [B,heads,T,size]."""
        batch, length, _ = mixed.shape
        end = self.keys * self.key_dim
        parts = (mixed[..., :end], mixed[..., end : 2 * end], mixed[..., 2 * end :])
        q, k, v = (
            part.reshape(batch, length, heads, -1).transpose(0, 2, 1, 3)
            for part, heads in zip(parts, (self.keys, self.keys, self.values), strict=True)
        )
        return q, k, v


class Attention(Module):
    """Causal self-attention over the cache, with norms of heads and a gate of what it gives."""

    def __init__(self, config: Config) -> None:
        size, head, bias = config.hidden_size, config.head_dim, config.bias
        self.heads, self.groups = config.num_attention_heads, config.num_key_value_heads
        self.q_proj = Linear(size, 2 * self.heads * head, bias=bias)
        self.k_proj = Linear(size, self.groups * head, bias=bias)
        self.v_proj = Linear(size, self.groups * head, bias=bias)
        self.o_proj = Linear(self.heads * head, size, bias=bias)
        self.q_norm = ZeroCenteredRMSNorm(head, epsilon=config.epsilon)
        self.k_norm = ZeroCenteredRMSNorm(head, epsilon=config.epsilon)
        self.rotary, self.frequencies = config.rotary, config.frequencies

    def __call__(
        self, x: Tensor, cache: LayerTensors, at: CachePositions
    ) -> tuple[Tensor, LayerTensors]:
        """f32[B,T,D] and this layer's cache to f32[B,T,D] and the extended cache."""
        batch, length, _ = x.shape
        q, k, v = fused_linear(x, (self.q_proj, self.k_proj, self.v_proj))
        both = q.reshape(batch, length, self.heads, 2, -1)
        k, v = (part.reshape(batch, length, self.groups, -1) for part in (k, v))
        q, k, v = (
            part.transpose(0, 2, 1, 3)
            for part in (self.q_norm(both[:, :, :, 0]), self.k_norm(k), v)
        )
        table = F.constant(self.frequencies)
        q, k = (F.rope(part, at.positions, table, rotary=self.rotary) for part in (q, k))
        seen, cache = cached_attention(q, k, v, cache, at.start, at.count)
        gated = seen.transpose(0, 2, 1, 3) * _logistic(both[:, :, :, 1])
        return self.o_proj(gated.reshape(batch, length, -1)), cache


class MLP(Module):
    """A projection gated by another, and one back."""

    def __init__(self, config: Config) -> None:
        size, inner = config.hidden_size, config.intermediate_size
        self.gate_proj = Linear(size, inner, bias=False)
        self.up_proj = Linear(size, inner, bias=False)
        self.down_proj = Linear(inner, size, bias=False)

    def __call__(self, x: Tensor) -> Tensor:
        """f32[B,T,D] to f32[B,T,D]."""
        return self.down_proj(F.swiglu(*fused_linear(x, (self.gate_proj, self.up_proj))))


class Block(Module):
    """Attention of either kind and an MLP, each behind a norm and beside a residual."""

    def __init__(self, config: Config, kind: str) -> None:
        self.input_layernorm = ZeroCenteredRMSNorm(config.hidden_size, epsilon=config.epsilon)
        self.linear_attn = GatedDeltaNet(config) if kind == LINEAR else None
        self.self_attn = Attention(config) if kind == FULL else None
        self.post_attention_layernorm = ZeroCenteredRMSNorm(
            config.hidden_size, epsilon=config.epsilon
        )
        self.mlp = MLP(config)

    def __call__(
        self, x: Tensor, state: LayerTensors, at: CachePositions
    ) -> tuple[Tensor, LayerTensors]:
        """f32[B,T,D] and this layer's state to f32[B,T,D] and the next state."""
        attend = self.self_attn if self.linear_attn is None else self.linear_attn
        assert attend is not None
        attended, state = attend(self.input_layernorm(x), state, at)
        x = x + attended
        return x + self.mlp(self.post_attention_layernorm(x)), state


class Qwen35(Module):
    """The language model; its head is the token embedding where the checkpoint ties them."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = Config.of(config)
        tied = flag(config, "tie_word_embeddings")
        size, vocab = self.config.hidden_size, self.config.vocab_size
        self.embed_tokens = Embedding(vocab, size, is_head=tied)
        self.layers = [Block(self.config, kind) for kind in self.config.kinds]
        self.norm = ZeroCenteredRMSNorm(size, epsilon=self.config.epsilon)
        self.lm_head = None if tied else Linear(size, vocab, bias=False)

    def states(self) -> tuple[LayerState, ...]:
        """Tail and matrices of linear attention, keys and values of the other."""
        config = self.config
        heads, values = config.linear_num_value_heads, config.linear_value_head_dim
        matrices = Carried("matrices", (heads, config.linear_key_head_dim, values))
        kinds = {
            LINEAR: Recurrent(
                (CausalConv1d.tail(config.mixed, config.linear_conv_kernel_dim), matrices)
            ),
            FULL: KeysValues(config.num_key_value_heads, config.head_dim),
        }
        return tuple(kinds[kind] for kind in config.kinds)

    def __call__(
        self, tokens: Tensor, state: State, start: Tensor, count: Tensor, *, every: bool = False
    ) -> tuple[Tensor, State]:
        """Logits and the next state; see ``CausalModel``."""
        at = CachePositions.of(start, count, tokens.shape[1])
        x = self.embed_tokens(tokens)
        after: list[LayerTensors] = []
        for block, before in zip(self.layers, state, strict=True):
            x, left = block(x, before, at)
            after.append(left)
        if not every:
            x = last_rows(x, count)
        x = self.norm(x)
        head = self.embed_tokens.weight if self.lm_head is None else self.lm_head.weight
        return F.linear(x, head, layout="oi"), tuple(after)


DEFAULTS: Final[dict[str, Any]] = {
    "max_position_embeddings": 32768,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "full_attention_interval": 4,
    "partial_rotary_factor": 0.25,
    "tie_word_embeddings": False,
}
"""What config.json means when it leaves a key out."""


def _preset(tied: bool, **sizes: int) -> dict[str, Any]:
    return {
        "model_type": "qwen3_5_text",
        "architectures": ["Qwen3_5ForCausalLM"],
        "vocab_size": 248320,
        **DEFAULTS,
        "max_position_embeddings": 262144,
        "rope_parameters": {
            FULL: {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25}
        },
        "hidden_act": "silu",
        "eos_token_id": 248044,
        "tie_word_embeddings": tied,
        **sizes,
    }


PRESETS: Final = {
    "qwen3.5-0.8b": _preset(
        True,
        hidden_size=1024,
        intermediate_size=3584,
        num_hidden_layers=24,
        num_attention_heads=8,
        num_key_value_heads=2,
        linear_num_value_heads=16,
    ),
    "qwen3.5-9b": _preset(
        False,
        hidden_size=4096,
        intermediate_size=12288,
        num_hidden_layers=32,
    ),
    "qwen3.5-tiny": _preset(
        True,
        vocab_size=512,
        max_position_embeddings=256,
        hidden_size=64,
        intermediate_size=160,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        linear_key_head_dim=16,
        linear_value_head_dim=24,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        full_attention_interval=3,
        eos_token_id=511,
    ),
}

for _model_type in ("qwen3_5", "qwen3_5_text"):
    define_model(
        ModelDefinition(
            _model_type,
            build=Qwen35,
            context=lambda config: Config.of(config).max_position_embeddings,
            prefixes=("model.language_model.", "model."),
            ignored=("model.visual.*", "visual.*", "mtp.*"),
            tied={"lm_head.weight": "embed_tokens.weight"},
            layers=("num_hidden_layers", "layers."),
            defaults=DEFAULTS,
            presets=PRESETS if _model_type == "qwen3_5_text" else {},
            tokenizer="gpt2",
        )
    )
