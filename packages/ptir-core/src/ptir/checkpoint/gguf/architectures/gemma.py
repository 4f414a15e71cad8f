"""Gemma 1 to 4: norms that are stored with 1 added, but for the last; often no other output."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from ptir.checkpoint.gguf.architectures.layout import (
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
    THETA,
    WIDTH,
    WINDOW,
    llama_config,
    rope,
    sizes,
)
from ptir.checkpoint.gguf.fields import Key, Keys, plain
from ptir.models.llama import SLIDING
from ptir.models.rotation import FULL

ACTIVATION: Final = "gelu_pytorch_tanh"
CAPS: Final = (
    Key("attn_logit_softcapping", "attn_logit_softcapping"),
    Key("final_logit_softcapping", "final_logit_softcapping"),
)
LOCAL: Final = Key("rope.freq_base_swa", "rope_theta")
PATTERN: Final = Key("attention.sliding_window_pattern", "sliding_window_pattern")
LARGEST: Final = {"gemma2": 46, "gemma3": 62}
"""Layers of the model whose scores are scaled by its width over its heads; no key says so."""


def _gemma(keys: Keys, tensors: Tensors) -> Config:
    return {**llama_config(keys, tensors), "hidden_act": ACTIVATION}


def _gemma2(keys: Keys, tensors: Tensors) -> Config:
    """Every other layer, the first included, has a window."""
    config = llama_config(keys, tensors)
    del config["hidden_act"]
    largest = config["num_hidden_layers"] == LARGEST[keys.prefix]
    width = config[WIDTH.field] / config[HEADS.field]
    return {
        **config,
        "hidden_activation": ACTIVATION,
        "query_pre_attn_scalar": width if largest else config[HEAD.field],
        "sliding_window": keys.at(WINDOW, 4096),
        **{row.field: keys.optional(*row) for row in CAPS},
    }


def _gemma3(keys: Keys, tensors: Tensors) -> Config:
    """Of six layers the last has no window, and a rotation of its own, which alone is scaled."""
    config = _gemma2(keys, tensors)
    every = keys.at(PATTERN, 6)
    kinds = ["sliding_attention", "full_attention"]
    numbers = range(config["num_hidden_layers"])
    return {
        **config,
        "layer_types": [kinds[(layer + 1) % every == 0] for layer in numbers],
        "rope_parameters": {
            "full_attention": rope(keys, 1e6),
            "sliding_attention": {
                "rope_type": "default",
                "rope_theta": float(keys.at(LOCAL, 10000.0)),
            },
        },
    }


def _said_of_gemma3(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Of so many layers the last has no window; the base of those that have one."""
    windows, rope = config["windows"], config.get("rope_parameters") or {}
    full = [layer for layer, window in enumerate(windows) if window is None]
    base = rope.get(SLIDING, {}).get("rope_theta", config.get("rope_local_base_freq", 1e4))
    return {
        PATTERN.name: full[0] + 1 if full else len(windows) + 1,
        LOCAL.name: float(base),
    }


SWA_HEAD: Final = Key("attention.key_length_swa", "head_dim")
SHARING: Final = Key("attention.shared_kv_layers", "num_kv_shared_layers")
OWN_WIDTH: Final = Key("embedding_length_per_layer_input", "hidden_size_per_layer_input")
OWN_TABLE: Final = "per_layer_token_embd.weight"
FORWARD: Final = Key("feed_forward_length", "intermediate_size")
SPARSE: Final = (
    Key("expert_used_count", "top_k_experts"),
    Key("expert_feed_forward_length", "moe_intermediate_size"),
)
COUNT: Final = Key("expert_count", "num_experts")


def _gemma4(keys: Keys, tensors: Tensors) -> Config:
    """Layers without a window have heads of another size, and maybe other keys of them."""
    layers = check_layers(keys, tensors)
    kinds = _kinds(keys, layers)
    shared = keys.at(SHARING, 0)
    own = layers - min(shared, layers)
    heads = keys.of_layers(*KV_HEADS, layers)
    wide = keys.of_layers(*FORWARD, layers)
    first = kinds.index(SLIDING) if SLIDING in kinds else 0
    groups, full = heads[first], heads[kinds.index(FULL)] if FULL in kinds else heads[first]
    for layer, kind in enumerate(kinds):
        same = heads[layer] == (full if kind == FULL else groups)
        keys.require(same, KV_HEADS.name, f"layers of {kind} must have as many: choose another")
        factor = 2 if layer >= own and wide[-1] == 2 * wide[0] else 1
        rule = "only the last layers, twice as wide, may differ: choose another model"
        keys.require(wide[layer] == factor * wide[0], FORWARD.name, rule)
    scalar = {KV_HEADS: groups, FORWARD: wide[0], HEAD: keys.at(SWA_HEAD)}
    alike = {f"{keys.prefix}.{row.name}": value for row, value in scalar.items()}
    config = sizes(replace(keys, metadata={**keys.metadata, **alike}), tensors)
    del config["hidden_act"]
    numbers = [layer for layer in range(own) if kinds[layer] == FULL]
    return {
        **config,
        "hidden_activation": ACTIVATION,
        "layer_types": kinds,
        "global_head_dim": keys.at(HEAD),
        "num_global_key_value_heads": full,
        "attention_k_eq_v": bool(numbers)
        and all(f"blk.{layer}.attn_v.weight" not in tensors for layer in numbers),
        "sliding_window": keys.at(WINDOW),
        SHARING.field: shared,
        "use_double_wide_mlp": wide[-1] == 2 * wide[0],
        OWN_WIDTH.field: keys.optional(*OWN_WIDTH) or 0,
        "vocab_size_per_layer_input": tensors[OWN_TABLE].shape[0] if OWN_TABLE in tensors else 1,
        CAPS[1].field: keys.optional(*CAPS[1]),
        "rope_parameters": {
            FULL: {"rope_type": "default", "rope_theta": float(keys.at(THETA, 1e6))},
            SLIDING: {"rope_type": "default", "rope_theta": float(keys.at(LOCAL, 1e4))},
        },
        **_experts(keys),
    }


def _kinds(keys: Keys, layers: int) -> list[str]:
    """The kind of each layer, by whether it has a window; the last has none."""
    said = keys.found(PATTERN.name)
    found = [] if said is None else plain(said)
    good = isinstance(found, list) and len(found) == layers and set(found) <= {True, False}
    rule = f"a truth value for each of {layers} layers is needed, the last false: fetch it again"
    keys.require(good and not found[-1], PATTERN.name, rule)
    return [SLIDING if one else FULL for one in found]


def _experts(keys: Keys) -> Config:
    count = keys.optional(*COUNT)
    if count is None:
        return {}
    numbers = {row.field: keys.at(row) for row in SPARSE}
    return {"enable_moe_block": True, COUNT.field: count, **numbers}


def _said_of_gemma4(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Numbers by kind of layer: keys that end in ``_swa`` are of those with a window."""
    import numpy as np

    layers = [one[0] for one in config["layers"]]
    windows = [one["windows"][layer] is not None for layer, one in enumerate(layers)]
    full = layers[-1]  # which has no window
    local = next((one for one, windowed in zip(layers, windows, strict=True) if windowed), full)
    rows = {"key_length": "head_dim", "value_length": "head_dim"}
    turned = local["rotations"][windows.index(True) if any(windows) else -1]
    base = config["rope_parameters"].get(SLIDING, {}).get("rope_theta", 1e4)
    found = {f"attention.{name}": full[field] for name, field in rows.items()}
    found |= {f"attention.{name}_swa": local[field] for name, field in rows.items()}
    mixture = config.get("mixture") or {}
    return found | {
        PATTERN.name: np.array(windows),
        KV_HEADS.name: np.array([one[KV_HEADS.field] for one in layers], np.int32),
        FORWARD.name: np.array([one[FORWARD.field] for one in layers], np.int32),
        WINDOW.name: config["sliding_window"],
        OWN_WIDTH.name: config["width"],
        "rope.dimension_count": full["head_dim"],
        "rope.dimension_count_swa": 2 * len(turned["frequencies"]),
        LOCAL.name: float(base),
        COUNT.name: mixture.get("experts"),
        SPARSE[0].name: mixture.get("chosen"),
        SPARSE[1].name: mixture.get("inner"),
    }


OUTSIDE: Final = {stem: name for stem, name in LLAMA_OUTSIDE.items() if stem != "output"}
GEMMA2_INSIDE: Final = {
    **LLAMA_INSIDE,
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}


GEMMA4_INSIDE: Final = {
    **GEMMA2_INSIDE,
    **HEAD_NORMS,
    "inp_gate": "per_layer_input_gate",
    "proj": "per_layer_projection",
    "post_norm": "post_per_layer_input_norm",
    "post_ffw_norm_1": "post_feedforward_layernorm_1",
    "post_ffw_norm_2": "post_feedforward_layernorm_2",
    "pre_ffw_norm_2": "pre_feedforward_layernorm_2",
    "ffn_gate_inp": "router.proj",
    "ffn_gate_up_exps": "experts.gate_up_proj",
    "ffn_gate_exps": "experts.gate_proj",
    "ffn_up_exps": "experts.up_proj",
    "ffn_down_exps": "experts.down_proj",
}
GEMMA4_NAMED: Final = {
    "layer_output_scale.weight": Named("layer_scalar"),
    "ffn_gate_inp.scale": Named("router.scale"),
    "ffn_down_exps.scale": Named("router.per_expert_scale"),
}
OWN_OUTSIDE: Final = {
    "per_layer_token_embd": "embed_tokens_per_layer",
    "per_layer_model_proj": "per_layer_model_projection",
    "per_layer_proj_norm": "per_layer_projection_norm",
}

LAYOUTS: Final[dict[str, Layout]] = {
    "gemma4": Layout(
        "gemma4_text",
        _gemma4,
        "layers.",
        {**LLAMA_OUTSIDE, **OWN_OUTSIDE},
        GEMMA4_INSIDE,
        named=GEMMA4_NAMED,
        numbers=(*LLAMA_NUMBERS, WINDOW, CAPS[1], SHARING, OWN_WIDTH, COUNT),
        said=_said_of_gemma4,
    ),
    "gemma": Layout(
        "gemma",
        _gemma,
        "layers.",
        OUTSIDE,
        LLAMA_INSIDE,
        norm_plus=1.0,
        numbers=LLAMA_NUMBERS,
    ),
    "gemma2": Layout(
        "gemma2",
        _gemma2,
        "layers.",
        OUTSIDE,
        GEMMA2_INSIDE,
        norm_plus=1.0,
        numbers=(*LLAMA_NUMBERS, WINDOW, *CAPS),
    ),
    "gemma3": Layout(
        "gemma3_text",
        _gemma3,
        "layers.",
        LLAMA_OUTSIDE,
        {**GEMMA2_INSIDE, **HEAD_NORMS},
        norm_plus=1.0,
        numbers=(*LLAMA_NUMBERS, WINDOW, *CAPS),
        said=_said_of_gemma3,
    ),
}
"""By ``general.architecture``."""
