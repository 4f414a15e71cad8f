"""Gemma 4's experts (26B), which stand beside each layer's MLP and read what it reads."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from ptir import functional as F
from ptir.capture.tensor import Tensor
from ptir.models.fields import flag
from ptir.models.llama import Block, Config, norm_of
from ptir.models.mixture import Experts, ExpertSizes, weighed
from ptir.nn import Linear, Module, param
from ptir.params.stacked import Rules, Stack


def experts_of(config: Mapping[str, Any], activation: str) -> ExpertSizes | None:
    """The experts of a configuration, if it has them; raises ``CheckpointError``."""
    if not flag(config, "enable_moe_block"):
        return None
    return ExpertSizes.of(
        config,
        experts="num_experts",
        inner="moe_intermediate_size",
        few="top_k_experts",
        activation=activation,
    )


class Router(Module):
    """The experts of each token by what is left of it without its length, and a factor of each."""

    def __init__(self, config: Config, mixture: ExpertSizes) -> None:
        size, self.count, self.epsilon = config.hidden_size, mixture.chosen, config.epsilon
        self.proj = Linear(size, mixture.experts, bias=False)
        self.scale = param(size)
        self.per_expert_scale = param(mixture.experts)

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """f32[N,D] to the weights f32[N,K] and the numbers i32[N,K] of its experts."""
        scale = self.scale * (1 / math.sqrt(x.shape[1]))
        logits = self.proj(F.rms_norm(x, scale, epsilon=self.epsilon))
        weights, chosen = F.router(logits, count=self.count)
        return weights * F.take(self.per_expert_scale, chosen), chosen


class ExpertBlock(Block):
    """A block with experts beside its MLP, where a ``mixture`` is given."""

    def __init__(self, config: Config, layer: int, mixture: ExpertSizes | None) -> None:
        super().__init__(config, layer)
        self.router: Router | None = None
        if mixture is not None:
            self.router = Router(config, mixture)
            self.experts = Experts(config.hidden_size, mixture)
            self.post_feedforward_layernorm_1 = norm_of(config, config.hidden_size)
            self.pre_feedforward_layernorm_2 = norm_of(config, config.hidden_size)
            self.post_feedforward_layernorm_2 = norm_of(config, config.hidden_size)

    def mixed(self, x: Tensor, norm: str) -> Tensor:
        """What the MLP makes of x f32[B,T,D], and what the experts do, each normed."""
        found = super().mixed(x, norm)
        if self.router is None:
            return found
        tokens = x.reshape(-1, x.shape[-1])
        weights, chosen = self.router(tokens)
        made = weighed(self.experts(self.pre_feedforward_layernorm_2(tokens), chosen), weights)
        made = self.post_feedforward_layernorm_2(made.reshape(*x.shape))
        return self.post_feedforward_layernorm_1(found) + made


_EXPERT: Final = "experts.{}_proj.weight"
STACKED: Final[Rules] = {
    **{
        f"experts.gate_up_proj{end}": (
            Stack(_EXPERT.format("gate"), half=0),
            Stack(_EXPERT.format("up"), half=1),
        )
        for end in ("", ".weight")
    },
    "experts.down_proj": Stack(_EXPERT.format("down")),
    **{_EXPERT.format(one): Stack(_EXPERT.format(one)) for one in ("gate", "up", "down")},
}
"""Experts all together, gate and up as one tensor, or each by itself."""
