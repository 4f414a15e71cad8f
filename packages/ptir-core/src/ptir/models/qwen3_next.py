"""Qwen3-Next (Qwen team, 2025) and Qwen3.5 with experts (2026): linear attention before experts.

Layers are those of Qwen3.5, with experts in the MLP's place and one expert that all tokens share,
behind a gate. Qwen3-Next stores the projections of linear attention as two matrices, in which each
head of keys has its rows together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from ptir import functional as F
from ptir.capture.tensor import Tensor
from ptir.models import llama
from ptir.models.causal import DecoderBlock
from ptir.models.fields import flag, whole
from ptir.models.llama import split
from ptir.models.mixture import WHOLE, ExpertSizes, SparseMLP, sparse_layers
from ptir.models.nested import PREFIXES, RENAMED, SEEING
from ptir.models.nextn import HEAD
from ptir.models.qwen3_5 import DEFAULTS as DENSE
from ptir.models.qwen3_5 import Block, Config, GatedDeltaNet, Qwen35, logistic, prepare
from ptir.models.table import ModelDefinition, define_model
from ptir.nn import Linear, fused_linear
from ptir.params.stacked import Rules, Stack

PARTED: Final = "linear_qkv_parted"
"""The key of a configuration that says whether queries, keys and values of linear attention are
stored apart from their gate: so GGUF files have them."""


class SharedMLP(SparseMLP):
    """A router and its experts, and one that all tokens share, as much as a gate lets through."""

    def __init__(self, config: llama.Config, mixture: ExpertSizes, inner: int) -> None:
        super().__init__(config.hidden_size, mixture)
        self.shared_expert = llama.MLP(replace(config, intermediate_size=inner))
        self.shared_expert_gate = Linear(config.hidden_size, 1, bias=False)

    def __call__(self, x: Tensor) -> Tensor:
        """f32[B,T,D] to f32[B,T,D]."""
        shared = self.shared_expert(x) * logistic(self.shared_expert_gate(x))
        return super().__call__(x) + shared


class FusedDeltaNet(GatedDeltaNet):
    """Linear attention with one projection for rates and decays, and one for all the rest."""

    def __init__(self, config: Config, parted: bool) -> None:
        self.parted = parted
        super().__init__(config)

    def declare_projections(self, config: Config, size: int, width: int) -> None:
        """The projections of what is ``size`` wide; values are ``width`` wide."""
        shared = config.values // config.keys
        self.parts = (config.key_dim,) * 2 + (shared * config.value_dim,) * 2
        self.rates = (shared, shared)
        if self.parted:
            self.in_proj_qkv = Linear(size, config.mixed, bias=False)
            self.in_proj_z = Linear(size, width, bias=False)
        else:
            self.in_proj_qkvz = Linear(size, config.mixed + width, bias=False)
        self.in_proj_ba = Linear(size, 2 * config.values, bias=False)

    def projected(self, x: Tensor) -> tuple[Tensor, ...]:
        """What the convolution reads of f32[B,T,D], the gate, and each head's rate and decay."""
        if self.parted:
            mixed, z, both = fused_linear(x, (self.in_proj_qkv, self.in_proj_z, self.in_proj_ba))
        else:
            whole, both = fused_linear(x, (self.in_proj_qkvz, self.in_proj_ba))
            *parts, z = self._of_heads(whole, self.parts)
            mixed = F.concat(parts, axis=2)
        return (mixed, z, *self._of_heads(both, self.rates))

    def _of_heads(self, x: Tensor, sizes: tuple[int, ...]) -> list[Tensor]:
        """Parts of ``sizes`` of each head of keys, each part for all heads together."""
        batch, length, _ = x.shape
        parts = split(x.reshape(batch, length, self.keys, sum(sizes)), sizes)
        return [
            part.reshape(batch, length, self.keys * size)
            for part, size in zip(parts, sizes, strict=True)
        ]


class SparseBlock(Block):
    """A block whose MLP may be experts; ``said`` is the configuration."""

    def __init__(self, config: Config, layer: int, said: Mapping[str, Any], sparse: bool) -> None:
        self.said, self.sparse = said, sparse
        super().__init__(config, layer)

    def make_mlp(self, config: llama.Config) -> Any:
        """The router and the experts, or one MLP."""
        if not self.sparse:
            return super().make_mlp(config)
        mixture = ExpertSizes.of(
            self.said,
            experts="num_experts",
            inner="moe_intermediate_size",
            normalized=flag(self.said, "norm_topk_prob", True),
        )
        return SharedMLP(config, mixture, whole(self.said, "shared_expert_intermediate_size"))


class NextBlock(SparseBlock):
    """The same with Qwen3-Next's projections."""

    def make_linear(self, config: Config) -> GatedDeltaNet:
        """Linear attention."""
        return FusedDeltaNet(config, flag(self.said, PARTED))


class Qwen35Moe(Qwen35):
    """The language model with experts in all layers."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.said = config
        super().__init__(config)

    def make_block(self, layer: int) -> DecoderBlock:
        """The block of a layer."""
        return SparseBlock(self.config, layer, self.said, True)

    def make_head_block(self, config: Config) -> DecoderBlock:
        """The block of the head, with experts."""
        return SparseBlock(config, 0, self.said, True)


class Qwen3Next(Qwen35):
    """The language model with experts in some layers, and one projection of linear attention."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.said, self.sparse = config, sparse_layers(config)
        super().__init__(config)

    def make_block(self, layer: int) -> DecoderBlock:
        """The block of a layer."""
        return NextBlock(self.config, layer, self.said, self.sparse(layer))

    def make_head_block(self, config: Config) -> DecoderBlock:
        """The block of the head, with experts."""
        return NextBlock(config, 0, self.said, True)


def _prepare_moe(config: Mapping[str, Any]) -> dict[str, Any]:
    return prepare(config, "qwen3_5_moe_text")


STACKED: Final[Rules] = {
    **WHOLE,
    "mlp.experts.gate_up_proj": (
        Stack("mlp.experts.gate_proj.weight", half=0),
        Stack("mlp.experts.up_proj.weight", half=1),
    ),
    "mlp.experts.down_proj": Stack("mlp.experts.down_proj.weight"),
    **{
        f"mlp.experts.*.{part}.weight": Stack(f"mlp.experts.{part}.weight")
        for part in ("gate_proj", "up_proj", "down_proj")
    },
}
"""Experts one by one, or all together with gate and up as one tensor."""

SPARSE_STEP: Final = "decoder_sparse_step"
NEXT: Final[dict[str, Any]] = {
    **DENSE,
    "vocab_size": 151936,
    "hidden_size": 2048,
    "num_hidden_layers": 48,
    "num_key_value_heads": 2,
    "intermediate_size": 5632,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "norm_topk_prob": True,
    SPARSE_STEP: 1,
}
"""What config.json of Qwen3-Next means when it leaves a key out."""
MOE: Final[dict[str, Any]] = {
    **{key: value for key, value in NEXT.items() if key not in ("norm_topk_prob", SPARSE_STEP)},
    "vocab_size": 248320,
    "num_hidden_layers": 40,
    "num_experts": 256,
    "num_experts_per_tok": 8,
}
"""What config.json of Qwen3.5 with experts means then; it has no MLP, whatever its width."""

_TINY: Final[dict[str, Any]] = {
    "vocab_size": 512,
    "max_position_embeddings": 256,
    "hidden_size": 64,
    "intermediate_size": 96,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "full_attention_interval": 3,
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "eos_token_id": 511,
}


def _preset(model_type: str, defaults: Mapping[str, Any], **said: Any) -> dict[str, Any]:
    return {
        "model_type": model_type,
        **defaults,
        "max_position_embeddings": 262144,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 1e7,
            "partial_rotary_factor": 0.25,
        },
        "hidden_act": "silu",
        **said,
    }


PRESETS: Final = {
    "qwen3_next": {
        "qwen3-next-80b-a3b": _preset("qwen3_next", NEXT, bos_token_id=151643, eos_token_id=151645),
        "qwen3_next-tiny": _preset("qwen3_next", NEXT, **_TINY, mlp_only_layers=[1]),
    },
    "qwen3_5_moe_text": {
        "qwen3.5-35b-a3b": _preset("qwen3_5_moe_text", MOE, eos_token_id=248044),
        "qwen3.5-moe-tiny": _preset("qwen3_5_moe_text", MOE, **_TINY),
    },
}
"""Qwen3-Next 80B and Qwen3.5 35B, of which 3B work for a token, and small ones."""

for _model_type, _build, _defaults, _prepared in (
    ("qwen3_next", Qwen3Next, NEXT, prepare),
    ("qwen3_5_moe", Qwen35Moe, MOE, _prepare_moe),
    ("qwen3_5_moe_text", Qwen35Moe, MOE, _prepare_moe),
):
    define_model(
        ModelDefinition(
            _model_type,
            build=_build,
            context=lambda config: whole(config, "max_position_embeddings"),
            prefixes=PREFIXES,
            renamed=RENAMED,
            ignored=(*SEEING, "model.visual.*", "visual.*", f"{HEAD}*"),
            tied={"lm_head.weight": "embed_tokens.weight"},
            stacked=STACKED,
            layers={"num_hidden_layers": "layers."},
            defaults=_defaults,
            presets=PRESETS.get(_model_type, {}),
            prepare=_prepared,
            tokenizer="gpt2",
        )
    )
