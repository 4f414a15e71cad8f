"""Qwen3.5 (Qwen team, 2026), its text: three layers of linear attention to each of attention.

Linear attention is the gated delta rule behind a short convolution. Attention has a gate, a norm of
each query and key head, and rotates a part of them. Attribute names are the keys of Hugging Face
checkpoints; projections store ``[outputs, inputs]``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from ptir import functional as F
from ptir.capture.tensor import Tensor
from ptir.errors import CheckpointError
from ptir.models import llama
from ptir.models.causal import CachePositions, Decoder, DecoderBlock
from ptir.models.fields import flag, listed, require_multiple, whole
from ptir.models.llama import norm_of
from ptir.models.nested import PREFIXES, RENAMED, SEEING, text_part
from ptir.models.nextn import HEAD, NextN, has_head
from ptir.models.rotation import FULL
from ptir.models.table import ModelDefinition, define_model
from ptir.nn import CausalConv1d, Linear, Module, cached_attention, fused_linear, param, softplus
from ptir.nn.state import Carried, KeysValues, LayerState, LayerTensors, Recurrent

LINEAR: Final = "linear_attention"
TILED: Final = "linear_values_tiled"
"""The key of a configuration that says whether heads of values stand one for each head of keys,
then the next for each: so GGUF files have them."""
LINEAR_SIZES: Final = {
    "linear_conv_kernel_dim": "taps",
    "linear_key_head_dim": "key_dim",
    "linear_value_head_dim": "value_dim",
    "linear_num_key_heads": "keys",
    "linear_num_value_heads": "values",
}
"""The keys of config.json for linear attention, and what they are called here."""


@dataclass(frozen=True)
class Config:
    """The part of ``config.json`` that shapes the computation.

    ``full`` is that of attention and of all that is Llama's; linear attention has as many ``keys``
    and ``values`` heads of their sizes, and a convolution of so many ``taps``. Heads of values that
    share one of keys stand beside each other; ``tiled`` ones stand one for each head of keys, then
    the next for each, as in GGUF files.
    """

    full: llama.Config
    kinds: tuple[str, ...]
    taps: int
    key_dim: int
    value_dim: int
    keys: int
    values: int
    tiled: bool = False

    @property
    def mixed(self) -> int:
        """How many channels the convolution has: queries, keys and values."""
        return 2 * self.keys * self.key_dim + self.values * self.value_dim

    def state(self, kind: str) -> LayerState:
        """Tail and matrices of linear attention, keys and values of the other."""
        if kind == LINEAR:
            matrices = Carried("matrices", (self.values, self.key_dim, self.value_dim))
            return Recurrent((CausalConv1d.tail(self.mixed, self.taps), matrices))
        rotation = self.full.rotations[0]
        limit = math.inf if rotation is None else rotation.limit
        return KeysValues(self.full.num_key_value_heads, self.full.head_dim, limit)

    @staticmethod
    def of(config: Mapping[str, Any]) -> Config:
        """Read ``config``; raises ``CheckpointError`` for what this file does not implement."""
        alike = {key: value for key, value in config.items() if key != "layer_types"}
        full = llama.Config.of(alike, partial=True)
        sizes = {key: whole(config, key) for key in LINEAR_SIZES}
        model = str(config.get("model_type"))
        if full.activation != "silu":
            raise CheckpointError(
                f"{model}: hidden_act {full.activation!r} is not implemented; only 'silu' is:"
                " choose a checkpoint that uses it"
            )
        require_multiple(sizes, "linear_num_value_heads", "linear_num_key_heads", model)
        return Config(
            replace(full, head_norms="head", norm_plus=1.0),
            kinds=_kinds(config, full.num_hidden_layers),
            tiled=flag(config, TILED),
            **{name: sizes[key] for key, name in LINEAR_SIZES.items()},
        )


def _kinds(config: Mapping[str, Any], layers: int) -> tuple[str, ...]:
    """The kind of each layer, as listed or with attention in every so manyth."""
    if config.get("layer_types") is not None:
        return listed(config, "layer_types", (LINEAR, FULL), layers)
    every = whole(config, "full_attention_interval")
    return tuple(LINEAR if (layer + 1) % every else FULL for layer in range(layers))


class GatedRMSNorm(Module):
    """Root-mean-square normalization over the last axis, then a gate."""

    def __init__(self, size: int, *, epsilon: float) -> None:
        self.weight = param(size)
        self.epsilon = epsilon

    def __call__(self, x: Tensor, gate: Tensor) -> Tensor:
        """Both f32[...,size]."""
        return F.swiglu(gate, F.rms_norm(x, self.weight, epsilon=self.epsilon))


def logistic(x: Tensor) -> Tensor:
    """``1 / (1 + exp(-x))``."""
    return 1.0 / (1.0 + F.exp(-x))


def _unit(x: Tensor) -> Tensor:
    """``x`` with its last axis at length 1."""
    return x * F.rsqrt((x * x).sum(axis=-1, keepdims=True) + 1e-6)


class GatedDeltaNet(Module):
    """Linear attention by the gated delta rule (Yang, Kautz and Hatamizadeh, 2025)."""

    def __init__(self, config: Config) -> None:
        size, width = config.full.hidden_size, config.values * config.value_dim
        self.keys, self.values, self.key_dim = config.keys, config.values, config.key_dim
        self.tiles = config.values // config.keys if config.tiled else 1
        self.declare_projections(config, size, width)
        self.conv1d = CausalConv1d(config.mixed, config.taps, bias=False)
        self.dt_bias = param(config.values)
        self.A_log = param(config.values)
        self.norm = GatedRMSNorm(config.value_dim, epsilon=config.full.epsilon)
        self.out_proj = Linear(width, size, bias=False)

    def declare_projections(self, config: Config, size: int, width: int) -> None:
        """The projections of what is ``size`` wide; values are ``width`` wide."""
        self.in_proj_qkv = Linear(size, config.mixed, bias=False)
        self.in_proj_z = Linear(size, width, bias=False)
        self.in_proj_b = Linear(size, config.values, bias=False)
        self.in_proj_a = Linear(size, config.values, bias=False)

    def projected(self, x: Tensor) -> tuple[Tensor, ...]:
        """What the convolution reads of f32[B,T,D], the gate, and each head's rate and decay."""
        return fused_linear(x, (self.in_proj_qkv, self.in_proj_z, self.in_proj_b, self.in_proj_a))

    def __call__(
        self, x: Tensor, state: LayerTensors, at: CachePositions
    ) -> tuple[Tensor, LayerTensors]:
        """f32[B,T,D], the tail and the matrices to f32[B,T,D] and the next ones."""
        (batch, length, _), (tail, matrices) = x.shape, state
        mixed, z, b, a = self.projected(x)
        mixed, tail = self.conv1d(mixed, tail, at.count)
        q, k, v = self._heads(F.silu(mixed))
        rate = logistic(b).transpose(0, 2, 1)
        decay = (-F.exp(self.A_log) * softplus(a + self.dt_bias)).transpose(0, 2, 1)
        q, k = _unit(q) * self.key_dim**-0.5, _unit(k)
        if self.tiles > 1:
            q, k = (F.concat([part] * self.tiles, axis=1) for part in (q, k))
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


class Attention(llama.Attention):
    """Llama's with norms of heads; beside its query each head has a gate of what it gives."""

    def __init__(self, config: llama.Config, layer: int) -> None:
        super().__init__(config, layer)
        self.q_proj = Linear(config.hidden_size, 2 * self.rows[0], bias=config.qkv_bias)

    def __call__(
        self, x: Tensor, cache: LayerTensors, at: CachePositions
    ) -> tuple[Tensor, LayerTensors]:
        """f32[B,T,D] and this layer's cache to f32[B,T,D] and the extended cache."""
        batch, length, _ = x.shape
        q, k, v = fused_linear(x, (self.q_proj, self.k_proj, self.v_proj))
        both = q.reshape(batch, length, self.heads, 2, -1)
        q, gate = both[:, :, :, 0], both[:, :, :, 1]
        k, v = (part.reshape(batch, length, self.groups, -1) for part in (k, v))
        q, k, v = (part.transpose(0, 2, 1, 3) for part in (self.q_norm(q), self.k_norm(k), v))
        if self.rotation is not None:
            q, k = self.rotation.rotated(q, k, at.positions, cache[0].shape[2])
        seen, cache = cached_attention(q, k, v, cache, at.start, at.count)
        gated = seen.transpose(0, 2, 1, 3) * logistic(gate)
        return self.o_proj(gated.reshape(batch, length, -1)), cache


class Block(Module):
    """Attention of either kind and an MLP, each behind a norm and beside a residual."""

    def __init__(self, config: Config, layer: int) -> None:
        linear, full = config.kinds[layer] == LINEAR, config.full
        self.state = config.state(config.kinds[layer])
        self.input_layernorm = norm_of(full, full.hidden_size)
        self.linear_attn = self.make_linear(config) if linear else None
        self.self_attn = None if linear else Attention(full, layer)
        self.post_attention_layernorm = norm_of(full, full.hidden_size)
        self.mlp = self.make_mlp(full)

    def make_linear(self, config: Config) -> GatedDeltaNet:
        """Linear attention."""
        return GatedDeltaNet(config)

    def make_mlp(self, config: llama.Config) -> Any:
        """The module in the MLP's place: f32[B,T,D] to f32[B,T,D]."""
        return llama.MLP(config)

    def __call__(
        self, x: Tensor, state: LayerTensors, at: CachePositions
    ) -> tuple[Tensor, LayerTensors]:
        """f32[B,T,D] and this layer's state to f32[B,T,D] and the next state."""
        attend = self.self_attn if self.linear_attn is None else self.linear_attn
        assert attend is not None
        attended, state = attend(self.input_layernorm(x), state, at)
        x = x + attended
        return x + self.mlp(self.post_attention_layernorm(x)), state


class Qwen35(Decoder):
    """The language model; its head is the token embedding where the checkpoint ties them."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = Config.of(config)
        full = self.config.full
        super().__init__(
            full.vocab_size,
            full.hidden_size,
            [self.make_block(layer) for layer in range(full.num_hidden_layers)],
            norm_of(full, full.hidden_size),
            tied=flag(config, "tie_word_embeddings"),
        )
        self.mtp = self._head() if has_head(config) else None

    def make_block(self, layer: int) -> DecoderBlock:
        """The module of a layer."""
        return Block(self.config, layer)

    def make_head_block(self, config: Config) -> DecoderBlock:
        """The block of the head that predicts further tokens, whose only layer is of attention."""
        return Block(config, 0)

    def _head(self) -> NextN:
        full = self.config.full
        first, second, third = (norm_of(full, full.hidden_size) for _ in range(3))
        block = self.make_head_block(replace(self.config, kinds=(FULL,)))
        return NextN(full.hidden_size, block, (first, second, third))


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
            "rope_type": "default",
            "rope_theta": 1e7,
            "partial_rotary_factor": 0.25,
        },
        "hidden_act": "silu",
        "eos_token_id": 248044,
        "tie_word_embeddings": tied,
        "mtp_num_hidden_layers": 1,
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


def prepare(config: Mapping[str, Any], model_type: str = "qwen3_5_text") -> dict[str, Any]:
    """The text's part, its heads rotated in part where nothing is said."""
    found = text_part(config, model_type)
    rope = found.get("rope_parameters")
    said = found if not isinstance(rope, Mapping) else {**rope, **found}
    factor = {} if said.get("partial_rotary_factor") else {"partial_rotary_factor": 0.25}
    return {"rope_theta": 10000.0, **found, **factor}


for _model_type in ("qwen3_5", "qwen3_5_text"):
    define_model(
        ModelDefinition(
            _model_type,
            build=Qwen35,
            context=lambda config: Config.of(config).full.max_position_embeddings,
            prefixes=PREFIXES,
            renamed=RENAMED,
            ignored=(*SEEING, "model.visual.*", "visual.*", f"{HEAD}*"),
            tied={"lm_head.weight": "embed_tokens.weight"},
            layers={"num_hidden_layers": "layers."},
            defaults=DEFAULTS,
            presets=PRESETS if _model_type == "qwen3_5_text" else {},
            prepare=prepare,
            tokenizer="gpt2",
        )
    )
