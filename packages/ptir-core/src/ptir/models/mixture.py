"""Mixtures of experts in the place of a Llama block's MLP (Jiang et al. 2024; Yang et al. 2025).

A router gives each token to a few of many experts, each an MLP; what they make is weighed and
added. The experts' weights lie in one matrix for each projection (``ptir.params.stacked``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ptir import functional as F
from ptir.capture.tensor import Tensor
from ptir.errors import CheckpointError
from ptir.models.fields import whole
from ptir.models.llama import Block, Config, Llama
from ptir.models.table import ModelDefinition, define_model
from ptir.nn import ExpertLinear, Linear, Module
from ptir.params.stacked import Stack


@dataclass(frozen=True)
class Mixture:
    """How many experts there are, how many work for a token, how wide they are.

    ``normalized`` weights of a token's experts come to 1.
    """

    experts: int
    chosen: int
    inner: int
    normalized: bool = True

    @staticmethod
    def of(config: Mapping[str, Any], *, experts: str, inner: str) -> Mixture:
        """Read the keys that hold the number of experts and their width, and the others."""
        count, chosen = whole(config, experts), whole(config, "num_experts_per_tok")
        if chosen > count:
            raise CheckpointError(
                f"{config.get('model_type')}: num_experts_per_tok {chosen} is above {experts}"
                f" {count}; check config.json"
            )
        return Mixture(count, chosen, whole(config, inner))


class Experts(Module):
    """The projections of all experts."""

    def __init__(self, size: int, mixture: Mixture) -> None:
        count, inner = mixture.experts, mixture.inner
        self.gate_proj = ExpertLinear(size, inner, count)
        self.up_proj = ExpertLinear(size, inner, count)
        self.down_proj = ExpertLinear(inner, size, count)

    def __call__(self, x: Tensor, chosen: Tensor) -> Tensor:
        """What the chosen i32[N,K] make of f32[N,D]: f32[N,K,D]."""
        gate, up = self.gate_proj(x, chosen), self.up_proj(x, chosen)
        return self.down_proj(F.swiglu(gate, up), chosen)


class SparseMLP(Module):
    """A router and its experts."""

    def __init__(self, size: int, mixture: Mixture) -> None:
        self.gate = Linear(size, mixture.experts, bias=False)
        self.experts = Experts(size, mixture)
        self.mixture = mixture

    def __call__(self, x: Tensor) -> Tensor:
        """f32[B,T,D] to f32[B,T,D]."""
        tokens = x.reshape(-1, x.shape[-1])
        how = self.mixture
        weights, chosen = F.router(self.gate(tokens), count=how.chosen, normalize=how.normalized)
        return weighed(self.experts(tokens, chosen), weights).reshape(*x.shape)


def weighed(made: Tensor, weights: Tensor) -> Tensor:
    """What a token's experts made, f32[N,K,D], times their weights f32[N,K] and added."""
    return (made * weights.reshape(*weights.shape, 1)).sum(axis=1)


class SparseBlock(Block):
    """A block with experts instead of one MLP."""

    def __init__(self, config: Config, layer: int, mixture: Mixture) -> None:
        self.mixture = mixture
        super().__init__(config, layer)

    def make_mlp(self, config: Config) -> Module:
        """The router and the experts."""
        return SparseMLP(config.hidden_size, self.mixture)


class Mixtral(Llama):
    """Mixtral: every block has experts, and the weights of those chosen come to 1."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.mixture = Mixture.of(config, experts="num_local_experts", inner="intermediate_size")
        super().__init__(config)

    def make_block(self, layer: int) -> Module:
        """The block of a layer."""
        return SparseBlock(self.config, layer, self.mixture)


_TINY: Final = {
    "vocab_size": 512,
    "max_position_embeddings": 256,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_experts_per_tok": 2,
    "tie_word_embeddings": False,
    "bos_token_id": 510,
    "eos_token_id": 511,
}
"""The sizes of the smallest mixture."""

FIELDS: Final[dict[str, Any]] = {
    "context": lambda config: Config.of(config).max_position_embeddings,
    "prefixes": ("model.",),
    "ignored": ("layers.*.self_attn.rotary_emb.inv_freq",),
    "tied": {"lm_head.weight": "embed_tokens.weight"},
    "layers": ("num_hidden_layers", "layers."),
    "tokenizer": "gpt2",
}
"""What all mixtures have in common with Llama."""

define_model(
    ModelDefinition(
        "mixtral",
        build=Mixtral,
        stacked={
            "block_sparse_moe.gate.weight": Stack("mlp.gate.weight"),
            "block_sparse_moe.experts.*.w1.weight": Stack("mlp.experts.gate_proj.weight"),
            "block_sparse_moe.experts.*.w3.weight": Stack("mlp.experts.up_proj.weight"),
            "block_sparse_moe.experts.*.w2.weight": Stack("mlp.experts.down_proj.weight"),
        },
        defaults={
            "tie_word_embeddings": False,
            "max_position_embeddings": 131072,
            "num_key_value_heads": 8,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
            "rms_norm_eps": 1e-5,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
        },
        presets={
            "mixtral-tiny": {"model_type": "mixtral", "num_local_experts": 5, **_TINY},
            "mixtral-8x7b": {
                "model_type": "mixtral",
                "vocab_size": 32000,
                "max_position_embeddings": 32768,
                "hidden_size": 4096,
                "intermediate_size": 14336,
                "num_hidden_layers": 32,
                "num_attention_heads": 32,
                "num_key_value_heads": 8,
                "num_local_experts": 8,
                "num_experts_per_tok": 2,
                "rms_norm_eps": 1e-5,
                "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
                "tie_word_embeddings": False,
                "bos_token_id": 1,
                "eos_token_id": 2,
            },
        },
        **FIELDS,
    )
)
