"""Mamba-2 (Dao and Gu, 2024): state spaces as linear attention with decays, and nothing else.

A block is a short convolution, the state space, and a gate behind it; there is no attention, no
MLP, and no position. Attribute names are the keys of Hugging Face checkpoints.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ptir import functional as F
from ptir.capture.tensor import Tensor
from ptir.errors import CheckpointError, short
from ptir.models.causal import CachePositions, Decoder, PartNames
from ptir.models.fields import flag, real, require_multiple, whole
from ptir.models.llama import split
from ptir.models.table import ModelDefinition, define_model
from ptir.nn import CausalConv1d, Linear, Module, RMSNorm, param, softplus
from ptir.nn.state import Carried, LayerState, LayerTensors, Recurrent

SIZES: Final = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_heads",
    "head_dim",
    "state_size",
    "n_groups",
    "conv_kernel",
)
LIMIT: Final = "time_step_limit"
UNLIMITED: Final = (0.0, math.inf)
MOST: Final = 1e6


@dataclass(frozen=True)
class Config:
    """The part of ``config.json`` that shapes the computation.

    ``limit`` are the least and the greatest time step.
    """

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_heads: int
    head_dim: int
    state_size: int
    n_groups: int
    conv_kernel: int
    bias: bool
    conv_bias: bool
    epsilon: float
    limit: tuple[float, float]

    @property
    def inner(self) -> int:
        """The width of all heads together."""
        return self.num_heads * self.head_dim

    @property
    def mixed(self) -> int:
        """How many channels the convolution has: inputs of the heads, B and C of the groups."""
        return self.inner + 2 * self.n_groups * self.state_size

    @property
    def state(self) -> LayerState:
        """The tail of the convolution, and a matrix of each head."""
        matrices = Carried("matrices", (self.num_heads, self.state_size, self.head_dim))
        return Recurrent((CausalConv1d.tail(self.mixed, self.conv_kernel), matrices))

    @staticmethod
    def of(config: Mapping[str, Any]) -> Config:
        """Read ``config``; raises ``CheckpointError`` for what this file does not implement."""
        sizes = {name: whole(config, name) for name in SIZES}
        require_multiple(sizes, "num_heads", "n_groups", "mamba2")
        inner, said = sizes["num_heads"] * sizes["head_dim"], whole(config, "expand")
        if said * sizes["hidden_size"] != inner:
            raise CheckpointError(
                f"mamba2: num_heads times head_dim is {inner}, and expand times hidden_size"
                f" {said * sizes['hidden_size']}; both must be the same: check config.json"
            )
        if config.get("hidden_act") not in ("silu", "swish"):
            raise CheckpointError(
                f"mamba2: hidden_act {short(config.get('hidden_act'))} is not implemented; only"
                " 'silu' is: choose another checkpoint"
            )
        # norm_before_gate is not read: Transformers gates first whatever it says, and the first
        # checkpoints say true, which was the default.
        if not flag(config, "rms_norm", True):
            raise CheckpointError(
                "mamba2: rms_norm false is not implemented; only true is: choose another checkpoint"
            )
        return Config(
            **sizes,
            bias=flag(config, "use_bias"),
            conv_bias=flag(config, "use_conv_bias", True),
            epsilon=real(config, "layer_norm_epsilon"),
            limit=_limit(config),
        )


def _limit(config: Mapping[str, Any]) -> tuple[float, float]:
    """The least and the greatest time step; without them there are none but 0 and infinity.

    Transformers writes infinity as an object.
    """
    said = config.get(LIMIT, UNLIMITED)
    if isinstance(said, list | tuple) and len(said) == 2:
        low, high = (
            math.inf if one in (math.inf, {"__float__": "Infinity"}) else one for one in said
        )
        numbers = all(type(one) in (int, float) for one in (low, high))
        if numbers and 0 <= low < high and low <= MOST and (high == math.inf or high <= MOST):
            return float(low), float(high)
    raise CheckpointError(
        f"mamba2: {LIMIT} {short(said)} in config.json must be two numbers >= 0, the first below"
        f" the second and that at most {MOST:g} or infinite; correct it, or fetch the file again"
    )


class GatedRMSNorm(Module):
    """A gate, then root-mean-square normalization over each of some groups."""

    def __init__(self, size: int, groups: int, *, epsilon: float) -> None:
        self.weight = param(size)
        self.groups, self.epsilon = groups, epsilon

    def __call__(self, x: Tensor, gate: Tensor) -> Tensor:
        """Both f32[B,T,size]."""
        batch, length, size = x.shape
        each = size // self.groups
        gated = F.swiglu(gate, x).reshape(batch, length, self.groups, each)
        normed = F.rms_norm(gated, F.full((each,), 1.0), epsilon=self.epsilon)
        return normed.reshape(batch, length, size) * self.weight


class Mixer(Module):
    """The state space behind a convolution of its inputs."""

    def __init__(self, config: Config) -> None:
        size, inner, heads = config.hidden_size, config.inner, config.num_heads
        self.config = config
        self.in_proj = Linear(size, inner + config.mixed + heads, bias=config.bias)
        self.conv1d = CausalConv1d(config.mixed, config.conv_kernel, bias=config.conv_bias)
        self.dt_bias, self.A_log, self.D = param(heads), param(heads), param(heads)
        self.norm = GatedRMSNorm(inner, config.n_groups, epsilon=config.epsilon)
        self.out_proj = Linear(inner, size, bias=config.bias)

    def __call__(
        self, x: Tensor, state: LayerTensors, at: CachePositions
    ) -> tuple[Tensor, LayerTensors]:
        """f32[B,T,D], the tail and the matrices to f32[B,T,D] and the next ones."""
        (batch, length, _), (tail, matrices), config = x.shape, state, self.config
        parts = (config.inner, config.mixed, config.num_heads)
        gate, mixed, step = split(self.in_proj(x), parts)
        mixed, tail = self.conv1d(mixed, tail, at.count)
        shared = config.n_groups * config.state_size
        inputs, keys, queries = (
            part.reshape(batch, length, heads, -1).transpose(0, 2, 1, 3)
            for part, heads in zip(
                split(F.silu(mixed), (config.inner, shared, shared)),
                (config.num_heads, config.n_groups, config.n_groups),
                strict=True,
            )
        )
        step = self._limited(softplus(step + self.dt_bias))
        decay = (step * -F.exp(self.A_log)).transpose(0, 2, 1)
        values = inputs * step.transpose(0, 2, 1).reshape(batch, -1, length, 1)
        seen, matrices = F.gated_linear_attention(queries, keys, values, decay, matrices, at.count)
        seen = seen + inputs * self.D.reshape(-1, 1, 1)
        merged = seen.transpose(0, 2, 1, 3).reshape(batch, length, -1)
        return self.out_proj(self.norm(merged, gate)), (tail, matrices)

    def _limited(self, step: Tensor) -> Tensor:
        """Time steps within their limits; softplus is above 0 by itself."""
        low, high = self.config.limit
        step = F.maximum(step, low) if low else step
        return step if math.isinf(high) else F.minimum(step, high)


class Block(Module):
    """The mixer behind a norm and beside a residual."""

    def __init__(self, config: Config) -> None:
        self.state = config.state
        self.norm = RMSNorm(config.hidden_size, epsilon=config.epsilon)
        self.mixer = Mixer(config)

    def __call__(
        self, x: Tensor, state: LayerTensors, at: CachePositions
    ) -> tuple[Tensor, LayerTensors]:
        """f32[B,T,D] and this layer's state to f32[B,T,D] and the next state."""
        mixed, state = self.mixer(self.norm(x), state, at)
        return x + mixed, state


class Mamba2(Decoder):
    """The language model; its head is the token embedding where the checkpoint ties them."""

    names = PartNames(embedding="embeddings", norm="norm_f")

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = found = Config.of(config)
        super().__init__(
            found.vocab_size,
            found.hidden_size,
            [Block(found) for _ in range(found.num_hidden_layers)],
            RMSNorm(found.hidden_size, epsilon=found.epsilon),
            tied=flag(config, "tie_word_embeddings"),
        )


DEFAULTS: Final[dict[str, Any]] = {
    "vocab_size": 32768,
    "hidden_size": 4096,
    "num_hidden_layers": 64,
    "num_heads": 128,
    "head_dim": 64,
    "state_size": 128,
    "n_groups": 8,
    "conv_kernel": 4,
    "expand": 2,
    "hidden_act": "silu",
    "layer_norm_epsilon": 1e-5,
    "max_position_embeddings": 1 << 20,
    "tie_word_embeddings": False,
}
"""What config.json means when it leaves a key out. The state has one size: no text is too long, and
the number of positions stands for that."""


def _preset(size: int, layers: int, **said: Any) -> dict[str, Any]:
    """The configuration of a model of the first ones: one group, heads of 64."""
    return {
        "model_type": "mamba2",
        "architectures": ["Mamba2ForCausalLM"],
        **DEFAULTS,
        "vocab_size": 50288,
        "hidden_size": size,
        "num_hidden_layers": layers,
        "num_heads": 2 * size // 64,
        "n_groups": 1,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "tie_word_embeddings": True,
        **said,
    }


PRESETS: Final = {
    "mamba2-130m": _preset(768, 24),
    "mamba2-1.3b": _preset(2048, 48),
    "mamba-codestral-7b": _preset(
        4096,
        64,
        vocab_size=32768,
        n_groups=8,
        bos_token_id=1,
        eos_token_id=2,
        tie_word_embeddings=False,
    ),
    "mamba2-tiny": _preset(
        64,
        3,
        vocab_size=512,
        num_heads=8,
        head_dim=16,
        state_size=24,
        n_groups=2,
        max_position_embeddings=256,
        bos_token_id=510,
        eos_token_id=511,
    ),
}
"""Mamba-2 130M and 1.3B, Mamba-Codestral, and a small one."""

define_model(
    ModelDefinition(
        "mamba2",
        build=Mamba2,
        context=lambda config: whole(config, "max_position_embeddings"),
        prefixes=("model.backbone.", "backbone."),
        renamed={
            "embedding.weight": "embeddings.weight",
            "model.lm_head.weight": "lm_head.weight",
        },
        tied={"lm_head.weight": "embeddings.weight"},
        layers={"num_hidden_layers": "layers."},
        defaults=DEFAULTS,
        presets=PRESETS,
        tokenizer="gpt2",
    )
)
