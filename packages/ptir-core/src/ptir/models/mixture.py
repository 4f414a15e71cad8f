"""Mixtures of experts in the place of a Llama block's MLP (Jiang et al. 2024; Yang et al. 2025).

A router gives each token to a few of many experts, each an MLP; what they make is weighed and
added. The experts' weights lie in one matrix for each projection (``ptir.params.stacked``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from ptir import functional as F
from ptir.capture.tensor import Tensor
from ptir.errors import CheckpointError, short
from ptir.models.causal import DecoderBlock
from ptir.models.fields import flag, whole
from ptir.models.llama import ACTIVATIONS, Block, Config, Llama, Read, split
from ptir.models.llama_kin import granite
from ptir.models.table import ModelDefinition, define_model
from ptir.nn import ExpertLinear, Linear, Module
from ptir.params.stacked import Stack

ROUTERS: Final = ("mlp.gate.weight", "mlp.shared_expert_gate.weight")
"""The ends of names of matrices that choose and weigh experts: others read them as floats alone."""
PARTED: Final = "gate_up_parted"
"""The key of a configuration that says whether experts store gate and up each by itself, where
their family stores both as one: so GGUF files have them."""


@dataclass(frozen=True)
class ExpertSizes:
    """How many experts there are, how many work for a token, how wide they are.

    ``normalized`` weights of a token's experts come to 1. ``activation`` is a name of
    ``ACTIVATIONS``.
    """

    experts: int
    chosen: int
    inner: int
    normalized: bool = True
    fused: bool = False
    activation: str = "silu"

    @staticmethod
    def of(
        config: Mapping[str, Any],
        *,
        experts: str,
        inner: str,
        few: str = "num_experts_per_tok",
        **more: Any,
    ) -> ExpertSizes:
        """Read the keys that hold the number of experts and their width, and the others.

        ``few`` is that for how many work for a token.
        """
        count, chosen = whole(config, experts), whole(config, few)
        if chosen > count:
            raise CheckpointError(
                f"{config.get('model_type')}: {few} {chosen} is above {experts}"
                f" {count}; check config.json"
            )
        if config.get("hidden_act", "silu") != "silu":
            raise CheckpointError(
                f"{config.get('model_type')}: hidden_act {short(config['hidden_act'])} of experts"
                " is not implemented; only silu is: choose a checkpoint with it"
            )
        return ExpertSizes(count, chosen, whole(config, inner), **more)


class Experts(Module):
    """The projections of all experts; those that are ``fused`` store gate and up as one matrix."""

    def __init__(self, size: int, mixture: ExpertSizes) -> None:
        count, inner = mixture.experts, mixture.inner
        self.fused, self.inner, self.activation = mixture.fused, inner, mixture.activation
        if self.fused:
            self.gate_up_proj = ExpertLinear(size, 2 * inner, count)
        else:
            self.gate_proj = ExpertLinear(size, inner, count)
            self.up_proj = ExpertLinear(size, inner, count)
        self.down_proj = ExpertLinear(inner, size, count)

    def __call__(self, x: Tensor, chosen: Tensor) -> Tensor:
        """What the chosen i32[N,K] make of f32[N,D]: f32[N,K,D]."""
        if self.fused:
            gate, up = split(self.gate_up_proj(x, chosen), (self.inner, self.inner))
        else:
            gate, up = self.gate_proj(x, chosen), self.up_proj(x, chosen)
        if self.activation == "silu":
            return self.down_proj(F.swiglu(gate, up), chosen)
        return self.down_proj(ACTIVATIONS[self.activation](gate) * up, chosen)


class SparseMLP(Module):
    """A router and its experts."""

    def __init__(self, size: int, mixture: ExpertSizes) -> None:
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

    def __init__(self, config: Config, layer: int, mixture: ExpertSizes) -> None:
        self.mixture = mixture
        super().__init__(config, layer)

    def make_mlp(self, config: Config) -> Module:
        """The router and the experts."""
        return SparseMLP(config.hidden_size, self.mixture)


class SparseLlama(Llama):
    """A Llama whose blocks have experts, all or those of the ``sparse`` layers."""

    def __init__(
        self,
        config: Mapping[str, Any],
        mixture: ExpertSizes,
        read: Read = Config.of,
        sparse: Callable[[int], bool] = lambda layer: True,
    ) -> None:
        self.mixture, self.sparse = mixture, sparse
        super().__init__(config, read)

    def make_block(self, layer: int) -> DecoderBlock:
        """The block of a layer."""
        if not self.sparse(layer):
            return Block(self.config, layer)
        return SparseBlock(self.config, layer, self.mixture)


def _mixtral(config: Mapping[str, Any]) -> SparseLlama:
    """The weights of the experts chosen come to 1."""
    mixture = ExpertSizes.of(config, experts="num_local_experts", inner="intermediate_size")
    return SparseLlama(config, mixture)


def _granite_moe(config: Mapping[str, Any]) -> SparseLlama:
    """Granite's multipliers, and experts that store gate and up as one matrix."""
    mixture = ExpertSizes.of(
        config,
        experts="num_local_experts",
        inner="intermediate_size",
        fused=not flag(config, PARTED),
    )
    return SparseLlama(config, mixture, granite)


def _qwen3_moe(config: Mapping[str, Any]) -> SparseLlama:
    """Norms of queries and keys; some layers may have one MLP as ever."""
    normalized = flag(config, "norm_topk_prob")
    mixture = ExpertSizes.of(
        config, experts="num_experts", inner="moe_intermediate_size", normalized=normalized
    )
    return SparseLlama(config, mixture, _normed, sparse_layers(config))


def sparse_layers(config: Mapping[str, Any]) -> Callable[[int], bool]:
    """Whether a layer has experts: in every so manyth, but for those that are listed."""
    step, dense = whole(config, "decoder_sparse_step"), config.get("mlp_only_layers") or []
    if not isinstance(dense, list) or any(type(layer) is not int for layer in dense):
        raise CheckpointError(
            f"{config.get('model_type')}: mlp_only_layers {short(dense)} in config.json must be a"
            " list of numbers of layers; check it"
        )
    return lambda layer: layer not in dense and (layer + 1) % step == 0


def _named(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The number of experts by one name: some write it as other families do."""
    count = config.get("num_experts", config.get("num_local_experts"))
    return config if count is None else {**config, "num_experts": count}


def _normed(config: Mapping[str, Any]) -> Config:
    return replace(Config.of(config), head_norms="head")


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
    "layers": {"num_hidden_layers": "layers."},
    "tokenizer": "gpt2",
}
"""What all mixtures have in common with Llama."""

WHOLE: Final = {
    f"mlp.experts.{part}.weight": Stack(f"mlp.experts.{part}.weight")
    for part in ("gate_proj", "up_proj", "down_proj")
}
"""All experts as one tensor of three axes, as GGUF files have them."""

define_model(
    ModelDefinition(
        "mixtral",
        build=_mixtral,
        stacked={
            "block_sparse_moe.gate.weight": Stack("mlp.gate.weight"),
            **WHOLE,
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

define_model(
    ModelDefinition(
        "qwen3_moe",
        build=_qwen3_moe,
        prepare=_named,
        stacked={
            **WHOLE,
            "mlp.experts.*.gate_proj.weight": Stack("mlp.experts.gate_proj.weight"),
            "mlp.experts.*.up_proj.weight": Stack("mlp.experts.up_proj.weight"),
            "mlp.experts.*.down_proj.weight": Stack("mlp.experts.down_proj.weight"),
        },
        defaults={
            "tie_word_embeddings": False,
            "max_position_embeddings": 32768,
            "num_key_value_heads": 4,
            "use_sliding_window": False,
            "sliding_window": 4096,
            "intermediate_size": 6144,
            "moe_intermediate_size": 768,
            "num_experts": 128,
            "num_experts_per_tok": 8,
            "decoder_sparse_step": 1,
            "norm_topk_prob": False,
        },
        presets={
            "qwen3_moe-tiny": {
                "model_type": "qwen3_moe",
                **_TINY,
                "head_dim": 24,
                "num_experts": 6,
                "moe_intermediate_size": 48,
                "mlp_only_layers": [1],
                "decoder_sparse_step": 1,
                "norm_topk_prob": True,
            },
            "qwen3-30b-a3b": {
                "model_type": "qwen3_moe",
                "vocab_size": 151936,
                "max_position_embeddings": 40960,
                "hidden_size": 2048,
                "intermediate_size": 6144,
                "moe_intermediate_size": 768,
                "num_hidden_layers": 48,
                "num_attention_heads": 32,
                "num_key_value_heads": 4,
                "head_dim": 128,
                "num_experts": 128,
                "num_experts_per_tok": 8,
                "decoder_sparse_step": 1,
                "norm_topk_prob": True,
                "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
                "tie_word_embeddings": False,
                "bos_token_id": 151643,
                "eos_token_id": 151645,
            },
        },
        **FIELDS,
    )
)

define_model(
    ModelDefinition(
        "granitemoe",
        build=_granite_moe,
        stacked={
            **WHOLE,
            "block_sparse_moe.router.layer.weight": Stack("mlp.gate.weight"),
            "block_sparse_moe.input_linear.weight": Stack("mlp.experts.gate_up_proj.weight"),
            "block_sparse_moe.output_linear.weight": Stack("mlp.experts.down_proj.weight"),
        },
        defaults={
            "tie_word_embeddings": False,
            "max_position_embeddings": 2048,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
            "embedding_multiplier": 1.0,
            "residual_multiplier": 1.0,
            "attention_multiplier": 1.0,
            "logits_scaling": 1.0,
        },
        presets={
            "granitemoe-tiny": {
                "model_type": "granitemoe",
                **_TINY,
                "num_local_experts": 5,
                "embedding_multiplier": 6.0,
                "residual_multiplier": 0.5,
                "attention_multiplier": 0.2,
                "logits_scaling": 3.0,
            },
            "granite-3.1-3b-a800m": {
                "model_type": "granitemoe",
                "vocab_size": 49155,
                "max_position_embeddings": 131072,
                "hidden_size": 1536,
                "intermediate_size": 512,
                "num_hidden_layers": 32,
                "num_attention_heads": 24,
                "num_key_value_heads": 8,
                "num_local_experts": 40,
                "num_experts_per_tok": 8,
                "embedding_multiplier": 12.0,
                "residual_multiplier": 0.22,
                "attention_multiplier": 0.015625,
                "logits_scaling": 6.0,
                "rope_parameters": {"rope_type": "default", "rope_theta": 1e7},
                "tie_word_embeddings": True,
                "bos_token_id": 0,
                "eos_token_id": 0,
            },
        },
        **FIELDS,
    )
)
