"""Models with attention in some layers and a state of one size in the others: LFM2, Qwen3.5."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from ptir.checkpoint.gguf.architectures.layer_norms import share
from ptir.checkpoint.gguf.architectures.layout import (
    BEHIND,
    Config,
    Layout,
    Named,
    Tensors,
    check_layers,
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

LAYOUTS: Final[dict[str, Layout]] = {
    "lfm2": Layout(
        "lfm2",
        _lfm2,
        "layers.",
        {"token_embd": "embed_tokens", "token_embd_norm": "embedding_norm", "output": "lm_head"},
        LFM2_INSIDE,
        named={"shortconv.conv.weight": Named("conv.conv.weight", spread=True)},
        numbers=(*LLAMA_NUMBERS, TAPS),
        is_written=False,
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
        numbers=(*LLAMA_NUMBERS, EVERY, INNER, *LINEAR, PREDICTING),
        is_written=False,
    ),
}
"""By ``general.architecture``."""
