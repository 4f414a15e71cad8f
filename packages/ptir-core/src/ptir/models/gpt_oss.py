"""gpt-oss (OpenAI 2025): experts with biases and a clamped gate, sinks, every other layer a window.

Queries, keys, values and outputs have biases, positions are scaled by yarn. An expert's gate and up
are the even and the odd outputs of one projection, or those of two, as GGUF files have them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from ptir import functional as F
from ptir.capture.tensor import Tensor
from ptir.models.causal import DecoderBlock
from ptir.models.fields import flag, real, whole
from ptir.models.llama import SLIDING, Block, Config, Llama
from ptir.models.mixture import FIELDS, PARTED, WHOLE, ExpertSizes, weighed
from ptir.models.rotation import FULL
from ptir.models.table import ModelDefinition, define_model
from ptir.nn import ExpertLinear, Linear, Module, param
from ptir.params.stacked import Stack


def read(config: Mapping[str, Any]) -> Config:
    """The options: biases unless told otherwise, sinks, windows in every other layer."""
    layers = whole(config, "num_hidden_layers")
    kinds = [FULL if layer % 2 else SLIDING for layer in range(layers)]
    given = {key: value for key, value in config.items() if value is not None}
    return replace(Config.of({"layer_types": kinds, **given}), sinks=True)


class Experts(Module):
    """The projections of all experts and their biases; gate and up as one, or each by itself."""

    def __init__(self, size: int, mixture: ExpertSizes, alpha: float, limit: float) -> None:
        count, inner, self.fused = mixture.experts, mixture.inner, mixture.fused
        if self.fused:
            self.gate_up_proj = ExpertLinear(size, 2 * inner, count)
            self.gate_up_proj_bias = param(count, 2 * inner)
        else:
            self.gate_proj = ExpertLinear(size, inner, count)
            self.gate_proj_bias = param(count, inner)
            self.up_proj = ExpertLinear(size, inner, count)
            self.up_proj_bias = param(count, inner)
        self.down_proj = ExpertLinear(inner, size, count)
        self.down_proj_bias = param(count, size)
        self.alpha, self.limit = alpha, limit

    def __call__(self, x: Tensor, chosen: Tensor) -> Tensor:
        """What the chosen i32[N,K] make of f32[N,D]: f32[N,K,D]."""
        gate, up = self._gate_up(x, chosen)
        up = F.maximum(F.minimum(up, self.limit), -self.limit)
        inner = (up + 1.0) * F.silu(gate * self.alpha) * (1 / self.alpha)
        return self.down_proj(inner, chosen) + F.embedding(self.down_proj_bias, chosen)

    def _gate_up(self, x: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """The gate, which is at most the limit, and what it lets through."""
        if not self.fused:
            gate = self.gate_proj(x, chosen) + F.embedding(self.gate_proj_bias, chosen)
            gate = F.minimum(gate, self.limit)
            return gate, self.up_proj(x, chosen) + F.embedding(self.up_proj_bias, chosen)
        both = self.gate_up_proj(x, chosen) + F.embedding(self.gate_up_proj_bias, chosen)
        return F.minimum(both[..., ::2], self.limit), both[..., 1::2]


class SparseMLP(Module):
    """A router and its experts; a token's weights are a softmax over the experts chosen."""

    def __init__(self, size: int, mixture: ExpertSizes, alpha: float, limit: float) -> None:
        self.router = Linear(size, mixture.experts)
        self.experts = Experts(size, mixture, alpha, limit)
        self.count = mixture.chosen

    def __call__(self, x: Tensor) -> Tensor:
        """f32[B,T,D] to f32[B,T,D]."""
        tokens = x.reshape(-1, x.shape[-1])
        weights, chosen = F.router(self.router(tokens), count=self.count, over="chosen")
        return weighed(self.experts(tokens, chosen), weights).reshape(*x.shape)


class GptOssBlock(Block):
    """A block with experts instead of one MLP."""

    def __init__(self, config: Config, layer: int, said: Mapping[str, Any]) -> None:
        mixture = ExpertSizes.of(
            said,
            experts="num_local_experts",
            inner="intermediate_size",
            fused=not flag(said, PARTED),
        )
        bent = real(said, "swiglu_alpha"), real(said, "swiglu_limit")
        self.made = mixture, *bent
        super().__init__(config, layer)

    def make_mlp(self, config: Config) -> Module:
        """The router and the experts."""
        return SparseMLP(config.hidden_size, *self.made)


class GptOss(Llama):
    """The language model."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.said = config
        super().__init__(config, read)

    def make_block(self, layer: int) -> DecoderBlock:
        """The block of a layer."""
        return GptOssBlock(self.config, layer, self.said)


YARN: Final = {
    "rope_type": "yarn",
    "rope_theta": 150000.0,
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}

DEFAULTS: Final[dict[str, Any]] = {
    "vocab_size": 201088,
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "num_hidden_layers": 36,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "sliding_window": 128,
    "num_local_experts": 128,
    "num_experts_per_tok": 4,
    "swiglu_alpha": 1.702,
    "swiglu_limit": 7.0,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "attention_bias": True,
    "rope_parameters": YARN,
    "tie_word_embeddings": False,
}
"""What config.json means when it leaves a key out."""

define_model(
    ModelDefinition(
        "gpt_oss",
        build=GptOss,
        stacked=WHOLE
        | {
            f"mlp.experts.{part}": Stack(f"mlp.experts.{part}.weight", turned=True)
            for part in ("gate_up_proj", "down_proj")
        },
        defaults=DEFAULTS,
        presets={
            "gpt_oss-tiny": {
                "model_type": "gpt_oss",
                **DEFAULTS,
                "vocab_size": 512,
                "hidden_size": 64,
                "intermediate_size": 64,
                "num_hidden_layers": 3,
                "num_attention_heads": 4,
                "num_key_value_heads": 2,
                "head_dim": 16,
                "sliding_window": 8,
                "num_local_experts": 5,
                "num_experts_per_tok": 2,
                "max_position_embeddings": 256,
                "rope_parameters": {**YARN, "original_max_position_embeddings": 8},
                "bos_token_id": 510,
                "eos_token_id": 511,
            },
            "gpt-oss-20b": {
                "model_type": "gpt_oss",
                **DEFAULTS,
                "num_hidden_layers": 24,
                "num_local_experts": 32,
                "bos_token_id": 199998,
                "eos_token_id": [200002, 199999, 200012],
            },
        },
        **{**FIELDS, "context": lambda config: read(config).max_position_embeddings},
    )
)
