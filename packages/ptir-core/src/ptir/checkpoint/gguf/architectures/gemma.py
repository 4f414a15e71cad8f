"""Gemma 1 to 3: norms that are stored with 1 added, an embedding that is always the output."""

from __future__ import annotations

from typing import Final

from ptir.checkpoint.gguf.architectures.layout import Config, Layout, Tensors
from ptir.checkpoint.gguf.architectures.llama import (
    HEAD,
    HEAD_NORMS,
    HEADS,
    LLAMA_INSIDE,
    LLAMA_NUMBERS,
    LLAMA_OUTSIDE,
    WIDTH,
    WINDOW,
    llama_config,
    rope,
)
from ptir.checkpoint.gguf.fields import Key, Keys

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


OUTSIDE: Final = {stem: name for stem, name in LLAMA_OUTSIDE.items() if stem != "output"}
GEMMA2_INSIDE: Final = {
    **LLAMA_INSIDE,
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}


LAYOUTS: Final[dict[str, Layout]] = {
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
    ),
}
"""By ``general.architecture``."""
