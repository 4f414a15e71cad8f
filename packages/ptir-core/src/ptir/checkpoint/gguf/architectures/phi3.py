"""Phi-3 and Phi-4: fused matrices, a part of each head rotated, two sets of rotary factors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ptir.checkpoint.gguf.architectures.layout import LONGROPE, Config, Layout, Tensors
from ptir.checkpoint.gguf.architectures.llama import (
    HEAD,
    LLAMA_INSIDE,
    LLAMA_NUMBERS,
    LLAMA_OUTSIDE,
    THETA,
    WINDOW,
    sizes,
)
from ptir.checkpoint.gguf.fields import Key, Keys

ROTATED: Final = Key("rope.dimension_count", "head_dim")
ORIGINAL: Final = Key("rope.scaling.original_context_length", "original_max_position_embeddings")
ATTENTION: Final = Key("rope.scaling.attn_factor", "attention_factor")


def _phi3(keys: Keys, tensors: Tensors) -> Config:
    config = sizes(keys, tensors)
    head = config[HEAD.field]
    rotated = keys.at(ROTATED, head)
    keys.require(2 <= rotated <= head, ROTATED.name, f"at most the {head} of a head can be rotated")
    rope = {
        "rope_type": "default",
        "rope_theta": float(keys.at(THETA, 10000.0)),
        "partial_rotary_factor": rotated / head,
    }
    if all(name in tensors for name in LONGROPE.values()):
        original = keys.at(ORIGINAL, config["max_position_embeddings"])
        config[ORIGINAL.field] = original
        rope["rope_type"] = "longrope"
        factor = keys.optional(*ATTENTION)
        rope[ATTENTION.field] = None if factor is None else float(factor)
    config["rope_parameters"] = rope
    config["sliding_window"] = keys.optional(*WINDOW)
    return config


def _said(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Which part of a head rotates, and up to which position by the short factors."""
    rotation = config["rotations"][0]
    found = {ROTATED.name: 2 * len(rotation["frequencies"])}
    if not rotation["long"]:
        return found
    scaled = {
        ORIGINAL.name: int(rotation["original"]),
        ATTENTION.name: rotation["attention_factor"],
    }
    return found | scaled


LAYOUTS: Final[dict[str, Layout]] = {
    "phi3": Layout(
        "phi3",
        _phi3,
        "layers.",
        LLAMA_OUTSIDE,
        {
            **{stem: LLAMA_INSIDE[stem] for stem in ("attn_norm", "attn_output")},
            **{stem: LLAMA_INSIDE[stem] for stem in ("ffn_norm", "ffn_down")},
            "attn_qkv": "self_attn.qkv_proj",
            "ffn_up": "mlp.gate_up_proj",
        },
        numbers=(*LLAMA_NUMBERS, WINDOW),
        said=_said,
    )
}
"""By ``general.architecture``."""
