"""Llama and its kin: root-mean-square norms, gated MLP; which of them rotate neighbours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ptir.checkpoint.gguf.architectures.layout import (
    OUTPUT,
    Config,
    Layout,
    Rows,
    Tensors,
    check_layers,
    vocabulary_rows,
)
from ptir.checkpoint.gguf.fields import Key, Keys

WIDTH: Final = Key("embedding_length", "hidden_size")
HEADS: Final = Key("attention.head_count", "num_attention_heads")
KV_HEADS: Final = Key("attention.head_count_kv", "num_key_value_heads")
HEAD: Final = Key("attention.key_length", "head_dim")
SAME_HEADS: Final = (
    Key("attention.value_length", "head_dim"),
    Key("rope.dimension_count", "head_dim"),
)
"""What must be as long as keys are."""
THETA: Final = Key("rope.freq_base", "rope_theta")
SCALING: Final = "rope.scaling.type"
WINDOW: Final = Key("attention.sliding_window", "sliding_window")
"""Which llama alone has and uses."""
FACTOR: Final = Key("rope.scaling.factor", "factor")
LLAMA_SIZES: Final = (
    WIDTH,
    Key("feed_forward_length", "intermediate_size"),
    Key("context_length", "max_position_embeddings"),
    Key("attention.layer_norm_rms_epsilon", "rms_norm_eps"),
    HEADS,
)
"""Numbers that every file has."""


def _llama(keys: Keys, tensors: Tensors) -> Config:
    size, heads = keys.at(WIDTH), keys.at(HEADS)
    head = keys.at(HEAD, size // heads if size % heads == 0 else None)
    for row in SAME_HEADS:
        same = keys.at(row, head) == head
        keys.require(same, row.name, f"heads of {head} must be read and rotated whole")
    keys.require(keys.optional("expert_count", "n_head") is None, "expert_count", NO_EXPERTS)
    config = {
        "vocab_size": vocabulary_rows(keys, tensors),
        **{row.field: keys.at(row) for row in LLAMA_SIZES},
        "num_hidden_layers": check_layers(keys, tensors),
        KV_HEADS.field: keys.at(KV_HEADS, heads),
        HEAD.field: head,
        "hidden_act": "silu",
        "rope_parameters": _rope(keys),
        "tie_word_embeddings": OUTPUT not in tensors,
    }
    if keys.prefix == "llama":  # others have the key and do not use it
        biased = any(f"blk.0.{stem}.bias" in tensors for stem in ("attn_q", "attn_qkv"))
        config["attention_bias"] = biased
        config["mlp_bias"] = "blk.0.ffn_gate.bias" in tensors
        config["sliding_window"] = keys.optional(*WINDOW)
    return config


NO_EXPERTS: Final = "a mixture of experts, which is not implemented: choose a dense model"


def _rope(keys: Keys) -> Config:
    """Frequencies, and by what they are scaled."""
    theta = float(keys.at(THETA, 10000.0))
    factor = keys.optional(*FACTOR)
    factor = factor or keys.optional("rope.scale_linear", "factor") or 1.0
    kind = keys.text(SCALING, "linear")
    rule = "this scaling of positions is not implemented; none and linear are: choose another model"
    keys.require(kind in ("none", "linear"), SCALING, rule)
    if kind == "none" or factor == 1.0:
        return {"rope_type": "default", "rope_theta": theta}
    return {"rope_type": "linear", "rope_theta": theta, "factor": float(factor)}


LLAMA_OUTSIDE: Final = {"token_embd": "embed_tokens", "output_norm": "norm", "output": "lm_head"}
LLAMA_INSIDE: Final = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
LLAMA_FUSED: Final = {
    "attn_qkv": (
        Rows("self_attn.q_proj", ("num_attention_heads", "head_dim")),
        Rows("self_attn.k_proj", ("num_key_value_heads", "head_dim")),
        Rows("self_attn.v_proj", ("num_key_value_heads", "head_dim")),
    )
}
PAIRED: Final = {
    "self_attn.q_proj": "num_attention_heads",
    "self_attn.k_proj": "num_key_value_heads",
}
"""Queries and keys of architectures that rotate neighbours."""


def _like_llama(model_type: str, rotated: Mapping[str, str], *more: Key) -> Layout:
    return Layout(
        model_type,
        _llama,
        "layers.",
        LLAMA_OUTSIDE,
        LLAMA_INSIDE,
        rotated=rotated,
        fused=LLAMA_FUSED,
        ignored=frozenset({"attn_rot_embd"}),
        numbers=(*LLAMA_SIZES, KV_HEADS, HEAD, *SAME_HEADS, *more),
    )


LAYOUTS: Final[dict[str, Layout]] = {
    "llama": _like_llama("llama", PAIRED, WINDOW),
    "qwen2": _like_llama("qwen2", {}),
}
"""By ``general.architecture``."""
