"""Llama and its kin: root-mean-square norms, gated MLP; which of them rotate neighbours."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from ptir.checkpoint.gguf.architectures.layout import (
    OUTPUT,
    Config,
    Cut,
    Layout,
    Named,
    Rows,
    Tensors,
    check_layers,
    nothing,
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


def llama_config(keys: Keys, tensors: Tensors) -> Config:
    """What all here have; heads are read and rotated whole."""
    config = sizes(keys, tensors)
    for row in SAME_HEADS:
        same = keys.at(row, config[HEAD.field]) == config[HEAD.field]
        rule = f"heads of {config[HEAD.field]} must be read and rotated whole"
        keys.require(same, row.name, rule)
    config["rope_parameters"] = rope(keys)
    if keys.prefix == "llama":  # others have the key and do not use it
        biased = any(f"blk.0.{stem}.bias" in tensors for stem in ("attn_q", "attn_qkv"))
        config["attention_bias"] = biased
        config["mlp_bias"] = "blk.0.ffn_gate.bias" in tensors
        config["sliding_window"] = keys.optional(*WINDOW)
    return config


def sizes(keys: Keys, tensors: Tensors) -> Config:
    """The sizes, and whether the embedding serves as the output."""
    size, heads = keys.at(WIDTH), keys.at(HEADS)
    if keys.prefix not in MIXTURES:
        keys.require(keys.optional("expert_count", "n_head") is None, "expert_count", NO_EXPERTS)
    return {
        "vocab_size": vocabulary_rows(keys, tensors),
        **{row.field: keys.at(row) for row in LLAMA_SIZES},
        "num_hidden_layers": check_layers(keys, tensors),
        KV_HEADS.field: keys.at(KV_HEADS, heads),
        HEAD.field: keys.at(HEAD, size // heads if size % heads == 0 else None),
        "hidden_act": "silu",
        "tie_word_embeddings": OUTPUT not in tensors,
    }


def _smollm3(keys: Keys, tensors: Tensors) -> Config:
    """Every fourth layer does not rotate; no key says so."""
    return {**llama_config(keys, tensors), "no_rope_layer_interval": 4}


GRANITE: Final = (
    Key("embedding_scale", "embedding_multiplier"),
    Key("residual_scale", "residual_multiplier"),
    Key("attention.scale", "attention_multiplier"),
    Key("logit_scale", "logits_scaling"),
)


def granite(keys: Keys, tensors: Tensors) -> Config:
    """By what embeddings, residuals and scores are multiplied, and logits divided."""
    config = llama_config(keys, tensors)
    plain = dict.fromkeys((row.field for row in GRANITE), 1.0)
    plain["attention_multiplier"] = float(config[HEAD.field]) ** -0.5
    return config | {row.field: float(keys.at(row, plain[row.field])) for row in GRANITE}


TEMPERATURE: Final = Key("attention.temperature_scale", "llama_4_scaling_beta")


def _mistral3(keys: Keys, tensors: Tensors) -> Config:
    """Queries grow with their position."""
    config = llama_config(keys, tensors)
    growth = keys.optional(*TEMPERATURE)
    if growth is not None:
        config["rope_parameters"] = {**config["rope_parameters"], TEMPERATURE.field: float(growth)}
    return config


def _said_of_mistral3(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """How much queries grow."""
    return {TEMPERATURE.name: config["rotations"][0]["growth"] or None}


EXPERTS: Final = Key("expert_count", "num_local_experts")
MIXTURES: Final = frozenset(
    {"llama", "qwen3moe", "gpt-oss", "granitemoe", "qwen35moe", "qwen3next", "gemma4"}
)
"""The architectures whose experts are read."""
NO_EXPERTS: Final = "a mixture of experts, which is not implemented: choose a dense model"


def rope(keys: Keys, theta: float = 10000.0) -> Config:
    """Frequencies, and by what they are scaled; ``theta`` is for a file without the key."""
    theta = float(keys.at(THETA, theta))
    factor = keys.optional(*FACTOR)
    factor = factor or keys.optional("rope.scale_linear", "factor") or 1.0
    kind = keys.text(SCALING, "linear")
    rule = (
        "this scaling of positions is not implemented; none, linear and yarn are: choose another"
        " model"
    )
    keys.require(kind in ("none", "linear", "yarn"), SCALING, rule)
    if kind == "none" or factor == 1.0:
        return {"rope_type": "default", "rope_theta": theta}
    found = {"rope_type": kind, "rope_theta": theta, "factor": float(factor)}
    return found if kind == "linear" else {**found, **_yarn(keys)}


YARN: Final = (
    Key("rope.scaling.original_context_length", "original_max_position_embeddings"),
    Key("rope.scaling.yarn_beta_fast", "beta_fast"),
    Key("rope.scaling.yarn_beta_slow", "beta_slow"),
    Key("rope.scaling.yarn_log_multiplier", "mscale_all_dim"),
)


def _yarn(keys: Keys) -> Config:
    """What yarn has besides a factor; a weight of its logarithm stands under one of 1."""
    for name in ("rope.scaling.attn_factor", "rope.scaling.yarn_attn_factor"):
        said = keys.optional(name, "attention_factor")
        rule = "only 1 is implemented with yarn: choose another model"
        keys.require(said in (None, 1.0), name, rule)
    found = {row.field: keys.optional(*row) for row in YARN}
    return {"mscale": 1.0, **{field: one for field, one in found.items() if one is not None}}


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


HEAD_NORMS: Final = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
OLMO2_INSIDE: Final = {
    **{stem: name for stem, name in LLAMA_INSIDE.items() if not stem.endswith("norm")},
    **HEAD_NORMS,
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
QWEN3_MOE: Final = (
    Key("expert_count", "num_experts"),
    Key("expert_used_count", "num_experts_per_tok"),
    Key("expert_feed_forward_length", "moe_intermediate_size"),
)
EXPERTS_INSIDE: Final = {
    **{stem: name for stem, name in LLAMA_INSIDE.items() if ".mlp" not in f".{name}"},
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.gate_proj",
    "ffn_up_exps": "mlp.experts.up_proj",
    "ffn_down_exps": "mlp.experts.down_proj",
}


MIXTRAL_NUMBERED: Final = {
    "ffn_gate": "block_sparse_moe.experts.*.w1",
    "ffn_up": "block_sparse_moe.experts.*.w3",
    "ffn_down": "block_sparse_moe.experts.*.w2",
}
"""How old files have the experts."""
MIXTRAL: Final = (EXPERTS, Key("expert_used_count", "num_experts_per_tok"))


def _mixtral(keys: Keys, tensors: Tensors) -> Config:
    """How many experts there are, and how many work for a token."""
    return llama_config(keys, tensors) | {row.field: keys.at(row) for row in MIXTRAL}


def _qwen3_moe(keys: Keys, tensors: Tensors) -> Config:
    """All layers have experts, and the weights of those chosen come to 1; no key says so."""
    config = llama_config(keys, tensors) | {row.field: keys.at(row) for row in QWEN3_MOE}
    return config | {"norm_topk_prob": True, "decoder_sparse_step": 1}


LLAMA_NUMBERS: Final = (*LLAMA_SIZES, KV_HEADS, HEAD, *SAME_HEADS)


def like_llama(
    model_type: str,
    rotated: Mapping[str, str],
    *more: Key,
    config: Callable[[Keys, Tensors], Config] = llama_config,
    inside: Mapping[str, str] = LLAMA_INSIDE,
    mixture: Layout | None = None,
    named: Mapping[str, Named] | None = None,
    numbered: Mapping[str, str] | None = None,
    halves: Mapping[str, Cut] | None = None,
    said: Callable[[Mapping[str, Any]], Mapping[str, Any]] = nothing,
) -> Layout:
    """A row of an architecture that is Llama but for what is given."""
    return Layout(
        model_type,
        config,
        "layers.",
        LLAMA_OUTSIDE,
        inside,
        rotated=rotated,
        fused=LLAMA_FUSED,
        ignored=frozenset({"attn_rot_embd"}),
        numbers=(*LLAMA_NUMBERS, *more),
        mixture=mixture,
        named=named or {},
        numbered=numbered or {},
        halves=halves or {},
        said=said,
    )


LAYOUTS: Final[dict[str, Layout]] = {
    "llama": like_llama(
        "llama",
        PAIRED,
        WINDOW,
        mixture=like_llama(
            "mixtral",
            PAIRED,
            WINDOW,
            *MIXTRAL,
            config=_mixtral,
            inside=EXPERTS_INSIDE,
            numbered=MIXTRAL_NUMBERED,
        ),
    ),
    "qwen2": like_llama("qwen2", {}),
    "qwen3": like_llama("qwen3", {}, inside={**LLAMA_INSIDE, **HEAD_NORMS}),
    "qwen3moe": like_llama(
        "qwen3_moe",
        {},
        *QWEN3_MOE,
        config=_qwen3_moe,
        inside={**EXPERTS_INSIDE, **HEAD_NORMS},
    ),
    "smollm3": like_llama("smollm3", PAIRED, config=_smollm3),
    "granite": like_llama("granite", PAIRED, *GRANITE, config=granite),
    "olmo2": like_llama("olmo2", {}, inside=OLMO2_INSIDE),
    "mistral3": like_llama("ministral3", PAIRED, config=_mistral3, said=_said_of_mistral3),
}
"""By ``general.architecture``."""
