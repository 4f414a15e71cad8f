"""GPT-2: layer norms, learned positions, weights that Hugging Face's files store turned."""

from __future__ import annotations

from typing import Final

from ptir.checkpoint.gguf.architectures.layout import (
    OUTPUT,
    Config,
    Layout,
    Tensors,
    check_layers,
    vocabulary_rows,
)
from ptir.checkpoint.gguf.fields import Key, Keys

GPT2_SIZES: Final = (
    Key("context_length", "n_positions"),
    Key("embedding_length", "n_embd"),
    Key("attention.head_count", "n_head"),
    Key("feed_forward_length", "n_inner"),
    Key("attention.layer_norm_epsilon", "layer_norm_epsilon"),
)


def _gpt2(keys: Keys, tensors: Tensors) -> Config:
    return {
        "vocab_size": vocabulary_rows(keys, tensors),
        "n_layer": check_layers(keys, tensors),
        **{row.field: keys.at(row) for row in GPT2_SIZES},
        "activation_function": "gelu_new",
        "tie_word_embeddings": OUTPUT not in tensors,
    }


GPT2_INSIDE: Final = {
    "attn_norm": "ln_1",
    "attn_qkv": "attn.c_attn",
    "attn_output": "attn.c_proj",
    "ffn_norm": "ln_2",
    "ffn_up": "mlp.c_fc",
    "ffn_down": "mlp.c_proj",
}

LAYOUTS: Final[dict[str, Layout]] = {
    "gpt2": Layout(
        "gpt2",
        _gpt2,
        "h.",
        {
            "token_embd": "wte",
            "position_embd": "wpe",
            "output_norm": "ln_f",
            "output": "lm_head",
        },
        GPT2_INSIDE,
        turned=frozenset({"attn_qkv", "attn_output", "ffn_up", "ffn_down"}),
        numbers=GPT2_SIZES,
    ),
}
"""By ``general.architecture``."""
