"""Mixtures of experts whose families store gate and up as one: gpt-oss, Granite with experts.

Files have them apart, and so the models run them: nothing is copied together.
"""

from __future__ import annotations

from typing import Final

from ptir.checkpoint.gguf.architectures.layout import Config, Cut, Layout, Named, Tensors
from ptir.checkpoint.gguf.architectures.llama import (
    EXPERTS,
    EXPERTS_INSIDE,
    GRANITE,
    PAIRED,
    WINDOW,
    granite,
    like_llama,
    llama_config,
)
from ptir.checkpoint.gguf.fields import Key, Keys

CHOSEN: Final = Key("expert_used_count", "num_experts_per_tok")
INNER: Final = Key("expert_feed_forward_length", "intermediate_size")
SHARED: Final = Key("expert_shared_feed_forward_length", "shared_expert_intermediate_size")
APART: Final = {"gate_up_parted": True}


def _gpt_oss(keys: Keys, tensors: Tensors) -> Config:
    """Yarn blends between pairs that are not rounded, as the models were made; no key says so."""
    config = llama_config(keys, tensors)
    rope = config["rope_parameters"]
    if rope["rope_type"] == "yarn":
        rope["truncate"] = False
    return {
        **config,
        **APART,
        EXPERTS.field: keys.at(EXPERTS),
        CHOSEN.field: keys.at(CHOSEN),
        INNER.field: keys.at(INNER, config[INNER.field]),
        WINDOW.field: keys.at(WINDOW),
        "attention_bias": True,
    }


def _granite_moe(keys: Keys, tensors: Tensors) -> Config:
    """Granite's multipliers; an MLP that all tokens share is refused."""
    rule = "experts that all tokens share are not implemented: choose another model"
    keys.require(keys.optional(*SHARED) is None, SHARED.name, rule)
    experts = {row.field: keys.at(row) for row in (EXPERTS, CHOSEN)}
    return granite(keys, tensors) | APART | experts


GPT_OSS_INSIDE: Final = {
    **{stem: name for stem, name in EXPERTS_INSIDE.items() if stem != "ffn_norm"},
    "post_attention_norm": "post_attention_layernorm",
    "ffn_gate_inp": "mlp.router",
}
GPT_OSS_NAMED: Final = {
    "attn_sinks.weight": Named("self_attn.sinks"),
    **{
        f"ffn_{part}_exps.bias": Named(f"mlp.experts.{part}_proj_bias")
        for part in ("gate", "up", "down")
    },
}

LAYOUTS: Final[dict[str, Layout]] = {
    "gpt-oss": like_llama(
        "gpt_oss",
        {},
        WINDOW,
        EXPERTS,
        CHOSEN,
        INNER,
        config=_gpt_oss,
        inside=GPT_OSS_INSIDE,
        named=GPT_OSS_NAMED,
        halves={"mlp.experts.gate_up_proj": Cut(interleaved=True)},
    ),
    "granitemoe": like_llama(
        "granitemoe",
        PAIRED,
        *GRANITE,
        EXPERTS,
        CHOSEN,
        SHARED,
        config=_granite_moe,
        inside=EXPERTS_INSIDE,
        halves={"mlp.experts.gate_up_proj": Cut()},
    ),
}
"""By ``general.architecture``."""
