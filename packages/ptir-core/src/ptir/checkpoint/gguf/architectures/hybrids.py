"""Models with a state of one size in some layers or in all: LFM2, Qwen3.5, Mamba-2."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from ptir.checkpoint.gguf.architectures.layer_norms import share
from ptir.checkpoint.gguf.architectures.layout import (
    BEHIND,
    BLOCKS,
    OUTPUT,
    Config,
    Layout,
    Named,
    Tensors,
    check_layers,
    vocabulary_rows,
)
from ptir.checkpoint.gguf.architectures.llama import (
    HEAD,
    HEAD_NORMS,
    HEADS,
    KV_HEADS,
    LLAMA_INSIDE,
    LLAMA_NUMBERS,
    LLAMA_OUTSIDE,
    llama_config,
    rope,
    sizes,
)
from ptir.checkpoint.gguf.fields import Key, Keys

FULL: Final = "full_attention"

# --- LFM2: short convolutions ---

TAPS: Final = Key("shortconv.l_cache", "conv_L_cache")


def _lfm2(keys: Keys, tensors: Tensors) -> Config:
    """A layer without heads of keys has a convolution."""
    layers = check_layers(keys, tensors)
    heads = keys.of_layers(*KV_HEADS, layers)
    groups = next((one for one in heads if one), int(keys.at(HEADS)))
    rule = "layers with other heads of keys than others are not implemented: choose another model"
    keys.require(all(one in (0, groups) for one in heads), KV_HEADS.name, rule)
    alike = {**keys.metadata, f"{keys.prefix}.{KV_HEADS.name}": groups}
    config = llama_config(replace(keys, metadata=alike), tensors)
    whole = config["hidden_size"] == config[HEAD.field] * config[HEADS.field]
    keys.require(whole, HEAD.name, "heads must be as wide as the model: choose another model")
    return {
        **config,
        TAPS.field: keys.at(TAPS),
        "norm_eps": config["rms_norm_eps"],
        "block_auto_adjust_ff_dim": False,
        "conv_bias": any(f"blk.{n}.shortconv.conv.bias" in tensors for n in range(layers)),
        "layer_types": [FULL if one else "conv" for one in heads],
    }


def _said_of_lfm2(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Heads of keys by layer: none where there is a convolution."""
    import numpy as np

    groups = config[KV_HEADS.field]
    return {
        KV_HEADS.name: np.array([groups * (kind == FULL) for kind in config["kinds"]], np.int32),
        FORWARD.name: config["inner"],
    }


LFM2_INSIDE: Final = {
    "attn_norm": "operator_norm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.out_proj",
    "attn_q_norm": "self_attn.q_layernorm",
    "attn_k_norm": "self_attn.k_layernorm",
    "shortconv.conv": "conv.conv",
    "shortconv.in_proj": "conv.in_proj",
    "shortconv.out_proj": "conv.out_proj",
    "ffn_norm": "ffn_norm",
    "ffn_gate": "feed_forward.w1",
    "ffn_up": "feed_forward.w3",
    "ffn_down": "feed_forward.w2",
}

# --- Qwen3.5: linear attention ---

EVERY: Final = Key("full_attention_interval", "full_attention_interval")
ROTATED: Final = Key("rope.dimension_count", "head_dim")
INNER: Final = Key("ssm.inner_size", "hidden_size")
FORWARD: Final = Key("feed_forward_length", "intermediate_size")
PREDICTING: Final = Key("nextn_predict_layers", "num_hidden_layers")
LINEAR: Final = (
    Key("ssm.conv_kernel", "linear_conv_kernel_dim"),
    Key("ssm.state_size", "linear_key_head_dim"),
    Key("ssm.group_count", "linear_num_key_heads"),
    Key("ssm.time_step_rank", "linear_num_value_heads"),
)


def _qwen35(keys: Keys, tensors: Tensors) -> Config:
    """Heads of values stand one for each head of keys, then the next for each.

    Layers behind the others, which predict further tokens, are counted with them.
    """
    config = sizes(keys, tensors)
    predicting, layers = keys.optional(*PREDICTING) or 0, config["num_hidden_layers"]
    rule = f"of {layers} layers some must be those of the model: fetch the file again"
    keys.require(predicting < layers, PREDICTING.name, rule)
    linear = {row.field: keys.at(row) for row in LINEAR}
    values, inner, head = linear["linear_num_value_heads"], keys.at(INNER), config[HEAD.field]
    keys.require(inner % values == 0, INNER.name, f"{values} heads must be of one size: fetch it")
    rotated = keys.at(ROTATED, head)
    keys.require(2 <= rotated <= head, ROTATED.name, f"at most the {head} of a head can be rotated")
    return {
        **config,
        **linear,
        "linear_value_head_dim": inner // values,
        "linear_values_tiled": True,
        "num_hidden_layers": layers - predicting,
        BEHIND: predicting,
        EVERY.field: keys.at(EVERY, 4),
        "rope_parameters": {**rope(keys), "partial_rotary_factor": share(rotated, head)},
    }


def _sections(rope: Mapping[str, Any], pairs: int) -> list[int]:
    """How many pairs rotate by time, height, width and nothing; in a text all rotate alike.

    A third each where nothing is said, as Qwen3.5 has it; llama.cpp takes no file without.
    """
    said = rope.get("mrope_section") or [(pairs + 2 - part) // 3 for part in range(3)]
    return [*said, *[0] * (4 - len(said))]


def _said_of_qwen35(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Layers with those behind them, the width of all heads of values, which pairs rotate."""
    import numpy as np

    behind, rope = int(config.get(BEHIND) or 0), config.get("rope_parameters") or {}
    pairs = len(config["rotations"][0]["frequencies"])
    return {
        BLOCKS: int(config["num_hidden_layers"]) + behind,
        PREDICTING.name: behind or None,
        INNER.name: int(config["linear_num_value_heads"]) * int(config["linear_value_head_dim"]),
        ROTATED.name: 2 * pairs,
        "rope.dimension_sections": np.array(_sections(rope, pairs), np.int32),
    }


QWEN35_INSIDE: Final = {
    **{stem: name for stem, name in LLAMA_INSIDE.items() if stem != "ffn_norm"},
    **HEAD_NORMS,
    "post_attention_norm": "post_attention_layernorm",
    "attn_qkv": "linear_attn.in_proj_qkv",
    "attn_gate": "linear_attn.in_proj_z",
    "ssm_alpha": "linear_attn.in_proj_a",
    "ssm_beta": "linear_attn.in_proj_b",
    "ssm_out": "linear_attn.out_proj",
}
QWEN35_NAMED: Final = {
    "ssm_a": Named("linear_attn.A_log", decay=True),
    "ssm_dt.bias": Named("linear_attn.dt_bias"),
    "ssm_conv1d.weight": Named("linear_attn.conv1d.weight", spread=True),
    "ssm_norm.weight": Named("linear_attn.norm.weight"),
}

QWEN35_HEAD: Final = {
    "nextn.eh_proj": "fc",
    "nextn.enorm": "pre_fc_norm_embedding",
    "nextn.hnorm": "pre_fc_norm_hidden",
    "nextn.shared_head_norm": "norm",
    "nextn.embed_tokens": "embed_tokens",
    "nextn.shared_head_head": "lm_head",
}

# --- Mamba-2: state spaces alone ---

STATES: Final = (
    Key("context_length", "max_position_embeddings"),
    Key("embedding_length", "hidden_size"),
    Key("ssm.conv_kernel", "conv_kernel"),
    Key("ssm.state_size", "state_size"),
    Key("ssm.group_count", "n_groups"),
    Key("ssm.time_step_rank", "num_heads"),
    Key("attention.layer_norm_rms_epsilon", "layer_norm_epsilon"),
)


def _mamba2(keys: Keys, tensors: Tensors) -> Config:
    """Heads are as many as time steps."""
    config = {row.field: keys.at(row) for row in STATES}
    layers, inner = check_layers(keys, tensors), keys.at(INNER)
    heads, size = config["num_heads"], config["hidden_size"]
    keys.require(inner % heads == 0, INNER.name, f"{heads} heads must be of one size: fetch it")
    keys.require(inner % size == 0, INNER.name, f"a multiple of the width {size} is needed")
    return {
        **config,
        "vocab_size": vocabulary_rows(keys, tensors),
        "num_hidden_layers": layers,
        "head_dim": inner // heads,
        "expand": inner // size,
        "use_bias": any(f"blk.{n}.ssm_in.bias" in tensors for n in range(layers)),
        "use_conv_bias": any(f"blk.{n}.ssm_conv1d.bias" in tensors for n in range(layers)),
        "hidden_act": "silu",
        "tie_word_embeddings": OUTPUT not in tensors,
    }


def _said_of_mamba2(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The width of all heads; that none attend and nothing else is there, as llama.cpp asks."""
    inner = int(config["num_heads"]) * int(config["head_dim"])
    return {INNER.name: inner, FORWARD.name: 0, HEADS.name: 0}


MAMBA2_NAMED: Final = {
    "ssm_a": Named("mixer.A_log", decay=True, flat=True, lines="num_heads"),
    "ssm_d": Named("mixer.D", flat=True, lines="num_heads"),
    "ssm_dt.bias": Named("mixer.dt_bias"),
    "ssm_conv1d.weight": Named("mixer.conv1d.weight", spread=True),
    "ssm_norm.weight": Named("mixer.norm.weight", flat=True, lines="n_groups"),
}

# --- Qwen3.5 with experts, Qwen3-Next ---

SPARSE: Final = (
    Key("expert_count", "num_experts"),
    Key("expert_used_count", "num_experts_per_tok"),
    Key("expert_feed_forward_length", "moe_intermediate_size"),
)
SHARED: Final = Key("expert_shared_feed_forward_length", "shared_expert_intermediate_size")


def _qwen35_moe(keys: Keys, tensors: Tensors) -> Config:
    """All layers have experts, and the weights of those chosen come to 1; no key says so.

    An expert that all tokens share is as wide as the others where nothing is said.
    """
    wide = {**keys.metadata}
    wide.setdefault(f"{keys.prefix}.{FORWARD.name}", keys.at(SPARSE[-1]))
    config = _qwen35(replace(keys, metadata=wide), tensors)
    config |= {row.field: keys.at(row) for row in SPARSE}
    config[SHARED.field] = keys.at(SHARED, config["moe_intermediate_size"])
    return config


def _qwen3_next(keys: Keys, tensors: Tensors) -> Config:
    """Heads of values stand beside their head of keys; old files have one projection of all."""
    config = _qwen35_moe(keys, tensors)
    parted = any(name.endswith(".ssm_ba.weight") for name in tensors)
    parted = parted and not any(name.endswith(".ssm_in.weight") for name in tensors)
    sparse = {"norm_topk_prob": True, "decoder_sparse_step": 1}
    return config | sparse | {"linear_values_tiled": False, "linear_qkv_parted": parted}


EXPERTS_INSIDE: Final = {
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.gate_proj",
    "ffn_up_exps": "mlp.experts.up_proj",
    "ffn_down_exps": "mlp.experts.down_proj",
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
}
QWEN35_MOE_INSIDE: Final = {
    **{stem: name for stem, name in QWEN35_INSIDE.items() if not name.startswith("mlp.")},
    **EXPERTS_INSIDE,
}
QWEN35_MOE_NAMED: Final = {
    **QWEN35_NAMED,
    "ffn_gate_up_exps.weight": Named("mlp.experts.gate_up_proj"),
    "ffn_gate_inp_shexp.weight": Named("mlp.shared_expert_gate.weight", row=True),
}
_APART: Final = ("ssm_alpha", "ssm_beta")
QWEN3_NEXT_INSIDE: Final = {
    **{stem: name for stem, name in QWEN35_MOE_INSIDE.items() if stem not in _APART},
    "ssm_ba": "linear_attn.in_proj_ba",
    "ssm_in": "linear_attn.in_proj_qkvz",
}

LAYOUTS: Final[dict[str, Layout]] = {
    "qwen35moe": Layout(
        "qwen3_5_moe_text",
        _qwen35_moe,
        "layers.",
        LLAMA_OUTSIDE,
        QWEN35_MOE_INSIDE,
        named=QWEN35_MOE_NAMED,
        head=QWEN35_HEAD,
        norm_plus=1.0,
        numbers=(*LLAMA_NUMBERS, EVERY, *LINEAR, *SPARSE, SHARED),
        said=_said_of_qwen35,
    ),
    "qwen3next": Layout(
        "qwen3_next",
        _qwen3_next,
        "layers.",
        LLAMA_OUTSIDE,
        QWEN3_NEXT_INSIDE,
        named=QWEN35_MOE_NAMED,
        head=QWEN35_HEAD,
        norm_plus=1.0,
        numbers=(*LLAMA_NUMBERS, EVERY, *LINEAR, *SPARSE, SHARED),
        said=_said_of_qwen35,
    ),
    "mamba2": Layout(
        "mamba2",
        _mamba2,
        "layers.",
        {"token_embd": "embeddings", "output_norm": "norm_f", "output": "lm_head"},
        {
            "attn_norm": "norm",
            "ssm_in": "mixer.in_proj",
            "ssm_conv1d": "mixer.conv1d",
            "ssm_out": "mixer.out_proj",
        },
        named=MAMBA2_NAMED,
        numbers=STATES,
        said=_said_of_mamba2,
    ),
    "lfm2": Layout(
        "lfm2",
        _lfm2,
        "layers.",
        {"token_embd": "embed_tokens", "token_embd_norm": "embedding_norm", "output": "lm_head"},
        LFM2_INSIDE,
        named={"shortconv.conv.weight": Named("conv.conv.weight", spread=True)},
        numbers=(*LLAMA_NUMBERS, TAPS),
        said=_said_of_lfm2,
    ),
    "qwen35": Layout(
        "qwen3_5_text",
        _qwen35,
        "layers.",
        LLAMA_OUTSIDE,
        QWEN35_INSIDE,
        named=QWEN35_NAMED,
        head=QWEN35_HEAD,
        norm_plus=1.0,
        numbers=(*LLAMA_NUMBERS, EVERY, *LINEAR),
        said=_said_of_qwen35,
    ),
}
"""By ``general.architecture``."""
