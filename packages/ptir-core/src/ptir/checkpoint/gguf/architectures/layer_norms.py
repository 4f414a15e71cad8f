"""Architectures with layer norms: GPT-NeoX, Falcon, StableLM, StarCoder2, Phi-2."""

from __future__ import annotations

import math
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
from ptir.checkpoint.gguf.architectures.llama import rope
from ptir.checkpoint.gguf.fields import Key, Keys

SIZES: Final = (
    Key("embedding_length", "hidden_size"),
    Key("context_length", "max_position_embeddings"),
    Key("attention.head_count", "num_attention_heads"),
)
"""Numbers that every file has."""
INNER: Final = Key("feed_forward_length", "intermediate_size")
GROUPS: Final = Key("attention.head_count_kv", "num_key_value_heads")
ROTARY: Final = Key("rope.dimension_count", "rotary_dim")
PARALLEL: Final = Key("use_parallel_residual", "use_parallel_residual")
EPSILON: Final = "attention.layer_norm_epsilon"
ROTARY_EMBEDDING: Final = frozenset({"attn_rot_embd"})


def _read(keys: Keys, tensors: Tensors, *numbers: Key) -> Config:
    """What all have, and ``numbers``; a part of each head rotates, or all of it."""
    found = {row.field: keys.at(row) for row in (*SIZES, *numbers)}
    heads, size = found["num_attention_heads"], found["hidden_size"]
    head = max(size // heads, 1)
    rotary = keys.at(ROTARY, head)
    keys.require(rotary <= head, ROTARY.name, f"heads of {head} have no more to rotate")
    return {
        **found,
        "head_dim": head,
        "vocab_size": vocabulary_rows(keys, tensors),
        "num_hidden_layers": check_layers(keys, tensors),
        "rope_parameters": {**rope(keys), "partial_rotary_factor": share(rotary, head)},
        "tie_word_embeddings": OUTPUT not in tensors,
    }


def share(rotary: int, head: int) -> float:
    """The factor that makes ``rotary`` of ``head`` when the product is cut to an integer."""
    factor = rotary / head
    return factor if int(head * factor) == rotary else math.nextafter(factor, 1.0)


def _gpt_neox(keys: Keys, tensors: Tensors) -> Config:
    return {
        **_read(keys, tensors, INNER, Key(EPSILON, "layer_norm_eps")),
        "attention_bias": "blk.0.attn_qkv.bias" in tensors,
        "use_parallel_residual": keys.flag(PARALLEL.name, True),
    }


def _falcon(keys: Keys, tensors: Tensors) -> Config:
    """As one form: a single group of keys is what the first has, whose rows stand alike."""
    return {
        **_read(keys, tensors, FALCON_INNER, Key(EPSILON, "layer_norm_epsilon")),
        "num_kv_heads": keys.at(FALCON_GROUPS, 1),
        "bias": "blk.0.attn_qkv.bias" in tensors,
        "new_decoder_architecture": True,
        "num_ln_in_parallel_attn": 2 if "blk.0.attn_norm_2.weight" in tensors else 1,
    }


def _stablelm(keys: Keys, tensors: Tensors) -> Config:
    """Blocks are parallel where the MLP has no norm, whatever the file says, as in llama.cpp."""
    found = _read(keys, tensors, INNER, Key(EPSILON, "layer_norm_eps"))
    return {
        **found,
        GROUPS.field: keys.at(GROUPS, found["num_attention_heads"]),
        "use_qkv_bias": "blk.0.attn_q.bias" in tensors,
        "qk_layernorm": "blk.0.attn_q_norm.weight" in tensors,
        "use_parallel_residual": "blk.0.ffn_norm.weight" not in tensors,
    }


def _starcoder2(keys: Keys, tensors: Tensors) -> Config:
    """Without a window, which files do not have."""
    found = _read(keys, tensors, INNER, Key(EPSILON, "norm_epsilon"))
    return {
        **found,
        GROUPS.field: keys.at(GROUPS, found["num_attention_heads"]),
        "use_bias": "blk.0.attn_q.bias" in tensors,
        "sliding_window": None,
    }


def _phi2(keys: Keys, tensors: Tensors) -> Config:
    found = _read(keys, tensors, INNER, Key(EPSILON, "layer_norm_eps"))
    return {**found, GROUPS.field: keys.at(GROUPS, found["num_attention_heads"])}


FALCON_INNER: Final = Key("feed_forward_length", "ffn_hidden_size")
FALCON_GROUPS: Final = Key("attention.head_count_kv", "num_kv_heads")
OUTSIDE: Final = {"token_embd": "embed_tokens", "output_norm": "norm", "output": "lm_head"}
SPLIT: Final = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
}
PARTED: Final = (
    Rows("self_attn.q_proj", ("num_attention_heads", "head_dim")),
    Rows("self_attn.k_proj", ("num_key_value_heads", "head_dim")),
    Rows("self_attn.v_proj", ("num_key_value_heads", "head_dim")),
)

LAYOUTS: Final[dict[str, Layout]] = {
    "gptneox": Layout(
        "gpt_neox",
        _gpt_neox,
        "layers.",
        {"token_embd": "embed_in", "output_norm": "final_layer_norm", "output": "lm_head"},
        {
            "attn_norm": "input_layernorm",
            "attn_qkv": "attention.query_key_value",
            "attn_output": "attention.dense",
            "ffn_norm": "post_attention_layernorm",
            "ffn_up": "mlp.dense_h_to_4h",
            "ffn_down": "mlp.dense_4h_to_h",
        },
        grouped={"attn_qkv": ("num_attention_heads", "num_attention_heads")},
        numbers=(*SIZES, INNER, Key(EPSILON, "layer_norm_eps"), ROTARY, PARALLEL),
    ),
    "falcon": Layout(
        "falcon",
        _falcon,
        "h.",
        {"token_embd": "word_embeddings", "output_norm": "ln_f", "output": "lm_head"},
        {
            "attn_norm": "input_layernorm",
            "attn_qkv": "self_attention.query_key_value",
            "attn_output": "self_attention.dense",
            "ffn_up": "mlp.dense_h_to_4h",
            "ffn_down": "mlp.dense_4h_to_h",
        },
        two_norms={"attn_norm": "ln_mlp", "attn_norm_2": "ln_attn"},
        grouped={"attn_qkv": ("num_attention_heads", "num_kv_heads")},
        numbers=(*SIZES, FALCON_INNER, FALCON_GROUPS, Key(EPSILON, "layer_norm_epsilon")),
    ),
    "stablelm": Layout(
        "stablelm",
        _stablelm,
        "layers.",
        OUTSIDE,
        {
            **SPLIT,
            "ffn_gate": "mlp.gate_proj",
            "ffn_up": "mlp.up_proj",
            "ffn_down": "mlp.down_proj",
        },
        stacked={
            "attn_q_norm": Rows("self_attn.q_layernorm.norms", ("num_attention_heads",)),
            "attn_k_norm": Rows("self_attn.k_layernorm.norms", ("num_key_value_heads",)),
        },
        numbers=(*SIZES, INNER, GROUPS, Key(EPSILON, "layer_norm_eps"), ROTARY, PARALLEL),
    ),
    "starcoder2": Layout(
        "starcoder2",
        _starcoder2,
        "layers.",
        OUTSIDE,
        {**SPLIT, "ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"},
        ignored=ROTARY_EMBEDDING,
        numbers=(*SIZES, INNER, GROUPS, Key(EPSILON, "norm_epsilon")),
    ),
    "phi2": Layout(
        "phi",
        _phi2,
        "layers.",
        {"token_embd": "embed_tokens", "output_norm": "final_layernorm", "output": "lm_head"},
        {
            "attn_norm": "input_layernorm",
            "attn_q": "self_attn.q_proj",
            "attn_k": "self_attn.k_proj",
            "attn_v": "self_attn.v_proj",
            "attn_output": "self_attn.dense",
            "ffn_up": "mlp.fc1",
            "ffn_down": "mlp.fc2",
        },
        fused={"attn_qkv": PARTED},
        numbers=(*SIZES, INNER, GROUPS, Key(EPSILON, "layer_norm_eps"), ROTARY),
    ),
}
"""By ``general.architecture``."""
