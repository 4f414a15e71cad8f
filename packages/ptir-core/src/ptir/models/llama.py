"""Llama (Touvron et al. 2023; Grattafiori et al. 2024) and what differs from it by options only.

Root-mean-square norms, rotary positions, heads that share keys, gated MLP. Mistral adds a window,
Qwen2 biases; ``llama_kin`` and other files have families with more options (``Config``).
Attribute names are the keys of Hugging Face checkpoints; projections store ``[outputs, inputs]``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ptir import functional as F
from ptir.capture.tensor import Tensor
from ptir.errors import CheckpointError, short
from ptir.models.causal import CachePositions, Decoder, DecoderBlock
from ptir.models.fields import flag, real, whole, whole_or_none
from ptir.models.rotation import FULL, Rotation, rotation
from ptir.models.table import ModelDefinition, define_model
from ptir.nn import Linear, Module, RMSNorm, cached_attention, fused_linear, param
from ptir.nn.state import LayerState, LayerTensors, keys_values

SLIDING: Final = "sliding_attention"
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


def _gelu_by_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


ACTIVATIONS: Final[Mapping[str, Callable[[Tensor], Tensor]]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_new": _gelu_by_tanh,
    "gelu_pytorch_tanh": _gelu_by_tanh,
}
"""Of gated MLPs, by the name that a configuration gives it."""

NormNames = tuple[str, str]
NORMS: Final[Mapping[str, tuple[NormNames, NormNames]]] = {
    "before": (("input_layernorm", ""), ("post_attention_layernorm", "")),
    "after": (("", "post_attention_layernorm"), ("", "post_feedforward_layernorm")),
    "both": (
        ("input_layernorm", "post_attention_layernorm"),
        ("pre_feedforward_layernorm", "post_feedforward_layernorm"),
    ),
}
"""By where a block has its norms: those before and after attention, before and after the MLP."""


@dataclass(frozen=True)
class Config:
    """The part of ``config.json`` that shapes the computation.

    Each layer has a rotation and a window, or None for none. ``head_norms`` says over what queries
    and keys are normed: "head", "width" (all heads together) or nothing. ``norms`` is a name of
    ``NORMS``, ``norm_plus`` what is added to their weights. ``attention_scale`` None means
    1 / sqrt(head_dim). Caps bend what is near them to c * tanh(x / c). ``fused`` checkpoints store
    queries, keys and values as one matrix, and gate and up as one. ``sinks``: each head has one.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    epsilon: float
    rotations: tuple[Rotation | None, ...]
    windows: tuple[int | None, ...]
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    activation: str = "silu"
    head_norms: str = ""
    norms: str = "before"
    norm_plus: float = 0.0
    attention_scale: float | None = None
    attention_cap: float | None = None
    logits_cap: float | None = None
    logits_divisor: float = 1.0
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    fused: bool = False
    sinks: bool = False

    @staticmethod
    def of(config: Mapping[str, Any], *, partial: bool = False) -> Config:
        """Read ``config``, of a family of which a ``partial`` head may be rotated.

        Raises ``CheckpointError`` for what this file does not implement.
        """
        model = str(config.get("model_type"))
        sizes = _sizes(config, model)
        attention = flag(config, "attention_bias")
        window, kinds = _layer_types(config, model, sizes["num_hidden_layers"])
        turning = {kind: rotation(config, model, sizes["head_dim"], kind) for kind in kinds}
        for one in turning.values():
            _check_whole(model, one, sizes["head_dim"], partial)
        return Config(
            **sizes,
            epsilon=real(config, "rms_norm_eps", 1e-6),
            rotations=tuple(turning[kind] for kind in kinds),
            windows=tuple(window if kind == SLIDING else None for kind in kinds),
            qkv_bias=attention or model == "qwen2",
            output_bias=attention,
            mlp_bias=flag(config, "mlp_bias"),
            activation=_activation(config, model),
        )

    def state(self, layer: int) -> LayerState:
        """What a layer keeps; all of it where its rotation asks what a text may become."""
        rotation = self.rotations[layer]
        original = math.inf if rotation is None else rotation.limit
        window = self.windows[layer]
        return keys_values(self.num_key_value_heads, self.head_dim, window, original)


Read = Callable[[Mapping[str, Any]], Config]


def _check_whole(model: str, found: Rotation, head: int, partial: bool) -> None:
    if found.size != head and not partial:
        raise CheckpointError(
            f"{model}: partial_rotary_factor rotates {found.size} of {head} dimensions, which is"
            " not implemented for this family; only 1 is: choose another checkpoint"
        )


def _activation(config: Mapping[str, Any], model: str) -> str:
    key = "hidden_activation" if config.get("hidden_activation") is not None else "hidden_act"
    found = config.get(key, "silu")
    if not isinstance(found, str) or found not in ACTIVATIONS:
        raise CheckpointError(
            f"{model}: {key} {short(found)} is not implemented; {', '.join(ACTIVATIONS)} are:"
            " choose a checkpoint with one of these"
        )
    return found


def _sizes(config: Mapping[str, Any], model: str) -> dict[str, Any]:
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


def _layer_types(
    config: Mapping[str, Any], model: str, layers: int
) -> tuple[int | None, list[str]]:
    """How many positions a sliding layer sees back, itself included, and the type of each layer.

    All layers are full where there is no window.
    """
    used = flag(config, "use_sliding_window", True)
    window = whole_or_none(config, "sliding_window") if used else None
    first = whole_or_none(config, "max_window_layers") or 0
    kinds = config.get("layer_types")
    if kinds is None:
        numbers = range(layers)
        kinds = [SLIDING if window and at >= first else FULL for at in numbers]
    if not isinstance(kinds, list):
        raise CheckpointError(f"{model}: layer_types {short(kinds)} must be a list of names")
    others = {kind if isinstance(kind, str) else short(kind) for kind in kinds}
    unknown = sorted(others - {FULL, SLIDING})
    if unknown or len(kinds) != layers:
        raise CheckpointError(
            f"{model}: layer_types must be full_attention or sliding_attention for each of the"
            f" {layers} layers; {len(kinds)} given, other kinds: {', '.join(unknown) or 'none'}"
        )
    return window, kinds


class Attention(Module):
    """Causal self-attention over the cache; query heads share keys and values in groups."""

    def __init__(self, config: Config, layer: int) -> None:
        size, head = config.hidden_size, config.head_dim
        self.heads, self.groups = config.num_attention_heads, config.num_key_value_heads
        rows, bias = (self.heads * head, self.groups * head), config.qkv_bias
        if config.fused:
            self.qkv_proj = Linear(size, rows[0] + 2 * rows[1], bias=bias)
        else:
            self.q_proj = Linear(size, rows[0], bias=bias)
            self.k_proj = Linear(size, rows[1], bias=bias)
            self.v_proj = Linear(size, rows[1], bias=bias)
        self.o_proj = Linear(rows[0], size, bias=config.output_bias)
        self.fused, self.head_norms = config.fused, config.head_norms
        if config.head_norms:
            over = rows if config.head_norms == "width" else (head, head)
            self.q_norm, self.k_norm = (norm_of(config, width) for width in over)
        self.rotation, self.rows = config.rotations[layer], rows
        self.sinks = param(self.heads) if config.sinks else None
        self.options = {
            "window": config.windows[layer],
            "scale": config.attention_scale,
            "soft_cap": config.attention_cap,
        }

    def projected(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """f32[B,T,D] to queries f32[B,H,T,head_dim], keys and values f32[B,G,T,head_dim]."""
        batch, length, _ = x.shape
        if self.fused:
            q, k, v = split(self.qkv_proj(x), (self.rows[0], self.rows[1], self.rows[1]))
        else:
            q, k, v = fused_linear(x, (self.q_proj, self.k_proj, self.v_proj))
        if self.head_norms == "width":
            q, k = self.q_norm(q), self.k_norm(k)
        q, k, v = (
            part.reshape(batch, length, heads, -1).transpose(0, 2, 1, 3)
            for part, heads in zip((q, k, v), (self.heads, self.groups, self.groups), strict=True)
        )
        if self.head_norms == "head":
            q, k = self.q_norm(q), self.k_norm(k)
        return q, k, v

    def __call__(
        self, x: Tensor, cache: LayerTensors, at: CachePositions
    ) -> tuple[Tensor, LayerTensors]:
        """f32[B,T,D] and this layer's cache to f32[B,T,D] and the extended cache."""
        batch, length, _ = x.shape
        q, k, v = self.projected(x)
        if self.rotation is not None:
            q, k = self.rotation.rotated(q, k, at.positions, cache[0].shape[2])
        seen, cache = cached_attention(
            q, k, v, cache, at.start, at.count, sinks=self.sinks, **self.options
        )
        merged = seen.transpose(0, 2, 1, 3).reshape(batch, length, -1)
        return self.o_proj(merged), cache


class MLP(Module):
    """A projection gated by another, and one back."""

    def __init__(self, config: Config) -> None:
        size, inner, bias = config.hidden_size, config.intermediate_size, config.mlp_bias
        self.fused, self.inner, self.activation = config.fused, inner, config.activation
        if config.fused:
            self.gate_up_proj = Linear(size, 2 * inner, bias=bias)
        else:
            self.gate_proj = Linear(size, inner, bias=bias)
            self.up_proj = Linear(size, inner, bias=bias)
        self.down_proj = Linear(inner, size, bias=bias)

    def __call__(self, x: Tensor) -> Tensor:
        """f32[B,T,D] to f32[B,T,D]."""
        if self.fused:
            gate, up = split(self.gate_up_proj(x), (self.inner, self.inner))
        else:
            gate, up = fused_linear(x, (self.gate_proj, self.up_proj))
        if self.activation == "silu":
            return self.down_proj(F.swiglu(gate, up))
        return self.down_proj(ACTIVATIONS[self.activation](gate) * up)


def split(x: Tensor, sizes: tuple[int, ...]) -> tuple[Tensor, ...]:
    """The last axis cut into parts of ``sizes``."""
    ends = [sum(sizes[: number + 1]) for number in range(len(sizes))]
    return tuple(x[..., end - size : end] for end, size in zip(ends, sizes, strict=True))


def norm_of(config: Config, size: int) -> RMSNorm:
    """A norm over ``size`` numbers."""
    return RMSNorm(size, epsilon=config.epsilon, plus=config.norm_plus)


class Block(Module):
    """Attention and MLP, each with norms before or after it and beside a residual."""

    def __init__(self, config: Config, layer: int) -> None:
        self.state: LayerState = config.state(layer)
        self.names, self.residual_scale = NORMS[config.norms], config.residual_scale
        self._norms(config, self.names[0])
        self.self_attn = self.make_attention(config, layer)
        self._norms(config, self.names[1])
        self.mlp = self.make_mlp(config)

    def make_attention(self, config: Config, layer: int) -> Any:
        """The module in attention's place, which is called as ``Attention`` is."""
        return Attention(config, layer)

    def make_mlp(self, config: Config) -> Any:
        """The module in the MLP's place: f32[B,T,D] to f32[B,T,D]."""
        return MLP(config)

    def _norms(self, config: Config, names: NormNames) -> None:
        for name in filter(None, names):
            setattr(self, name, norm_of(config, config.hidden_size))

    def _normed(self, name: str, x: Tensor) -> Tensor:
        """What the norm of a name makes of ``x``; without a name there is none."""
        found: Tensor = getattr(self, name)(x) if name else x
        return found

    def _added(self, x: Tensor, more: Tensor) -> Tensor:
        return x + (more if self.residual_scale == 1.0 else more * self.residual_scale)

    def __call__(
        self, x: Tensor, cache: LayerTensors, at: CachePositions
    ) -> tuple[Tensor, LayerTensors]:
        """f32[B,T,D] and this layer's cache to f32[B,T,D] and the extended cache."""
        (before, after), (mlp_before, mlp_after) = self.names
        attended, cache = self.self_attn(self._normed(before, x), cache, at)
        x = self._added(x, self._normed(after, attended))
        return self._added(x, self._normed(mlp_after, self.mixed(x, mlp_before))), cache

    def mixed(self, x: Tensor, norm: str) -> Tensor:
        """What the MLP makes of x f32[B,T,D] behind the norm of a name."""
        found: Tensor = self.mlp(self._normed(norm, x))
        return found


class Llama(Decoder):
    """The language model; its head is the token embedding where the checkpoint ties them.

    ``read`` is the family's: from a configuration to the options.
    """

    def __init__(self, config: Mapping[str, Any], read: Read = Config.of) -> None:
        self.config = found = read(config)
        super().__init__(
            found.vocab_size,
            found.hidden_size,
            [self.make_block(layer) for layer in range(found.num_hidden_layers)],
            norm_of(found, found.hidden_size),
            tied=flag(config, "tie_word_embeddings"),
        )

    def make_block(self, layer: int) -> DecoderBlock:
        """The module of a layer."""
        return Block(self.config, layer)

    def embedded(self, tokens: Tensor, at: CachePositions) -> Tensor:
        """i32[B,T] to f32[B,T,D], scaled where a family does."""
        x, scale = super().embedded(tokens, at), self.config.embedding_scale
        return x if scale == 1.0 else x * scale

    def output(self, x: Tensor) -> Tensor:
        """The last norm's output f32[...,D] to logits f32[...,V], divided and capped."""
        found, cap = super().output(x), self.config.logits_cap
        if self.config.logits_divisor != 1.0:
            found = found * (1 / self.config.logits_divisor)
        return found if cap is None else F.tanh(found * (1 / cap)) * cap


def define_llama(
    model_type: str,
    read: Read = Config.of,
    *,
    defaults: Mapping[str, Any],
    presets: Mapping[str, Mapping[str, Any]] | None = None,
    **more: Any,
) -> None:
    """Add a family that differs from Llama by what ``read`` makes of a configuration.

    ``more`` are fields of ``ModelDefinition`` that are other than Llama's.
    """
    fields: dict[str, Any] = {
        "build": lambda config: Llama(config, read),
        "context": lambda config: read(config).max_position_embeddings,
        "prefixes": ("model.",),
        "ignored": ("layers.*.self_attn.rotary_emb.inv_freq",),
        "tied": {"lm_head.weight": "embed_tokens.weight"},
        "layers": {"num_hidden_layers": "layers."},
        "tokenizer": "gpt2",
    }
    define_model(
        ModelDefinition(
            model_type,
            defaults={"tie_word_embeddings": False, **defaults},
            presets=presets or {},
            **{**fields, **more},
        )
    )
