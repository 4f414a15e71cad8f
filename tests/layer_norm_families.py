"""A small model of each family with layer norms, by a name of ours: what its config.json says."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from ptir.checkpoint import Checkpoint, save_folder
from ptir.models.table import definition
from ptir.params.source import RandomSource
from ptir.runtime.specs import parameter_types

_SIZES: Final = {
    "vocab_size": 97,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
    "eos_token_id": 0,
}
_ROPE: Final = {"rope_type": "default", "rope_theta": 100.0}
_HALF: Final = {"rope_parameters": {**_ROPE, "partial_rotary_factor": 0.5}}
_NEOX: Final = {
    "model_type": "gpt_neox",
    **_SIZES,
    "intermediate_size": 64,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-5,
    "use_parallel_residual": True,
    "attention_bias": True,
    **_HALF,
}
_FALCON: Final = {
    "model_type": "falcon",
    **_SIZES,
    "ffn_hidden_size": 64,
    "activation": "gelu",
    "layer_norm_epsilon": 1e-5,
    "alibi": False,
    "bias": False,
    "multi_query": True,
    "new_decoder_architecture": False,
    "num_kv_heads": None,
    "num_ln_in_parallel_attn": None,
    "parallel_attn": True,
    "rope_parameters": _ROPE,
}
_OPT: Final = {
    "model_type": "opt",
    **_SIZES,
    "ffn_dim": 64,
    "activation_function": "relu",
    "word_embed_proj_dim": 32,
    "do_layer_norm_before": True,
    "enable_bias": True,
    "layer_norm_elementwise_affine": True,
    "_remove_final_layer_norm": False,
}
_STABLELM: Final = {
    "model_type": "stablelm",
    **_SIZES,
    "intermediate_size": 64,
    "num_key_value_heads": 2,
    "hidden_act": "silu",
    "layer_norm_eps": 1e-5,
    "use_qkv_bias": True,
    "qk_layernorm": False,
    "use_parallel_residual": False,
    **_HALF,
}
_STARCODER2: Final = {
    "model_type": "starcoder2",
    **_SIZES,
    "intermediate_size": 64,
    "num_key_value_heads": 2,
    "hidden_act": "gelu_pytorch_tanh",
    "norm_epsilon": 1e-5,
    "sliding_window": 8,
    "use_bias": True,
    "rope_parameters": _ROPE,
}
_PHI: Final = {
    "model_type": "phi",
    **_SIZES,
    "intermediate_size": 64,
    "num_key_value_heads": None,
    "hidden_act": "gelu_new",
    "layer_norm_eps": 1e-5,
    "qk_layernorm": False,
    **_HALF,
}

CONFIGS: Final[dict[str, dict[str, Any]]] = {
    "gpt_neox": _NEOX,
    "falcon": _FALCON,
    "opt": _OPT,
    "stablelm": _STABLELM,
    "starcoder2": _STARCODER2,
    "phi": _PHI,
}
"""By ``model_type``."""

VARIANTS: Final[dict[str, dict[str, Any]]] = {
    **CONFIGS,
    "gpt_neox in turn": {**_NEOX, "use_parallel_residual": False, "attention_bias": False},
    "falcon in turn": {**_FALCON, "parallel_attn": False, "multi_query": False, "bias": True},
    "falcon, new": {**_FALCON, "new_decoder_architecture": True, "num_kv_heads": 2},
    "opt, norms behind": {**_OPT, "do_layer_norm_before": False, "word_embed_proj_dim": 16},
    "stablelm, parallel": {**_STABLELM, "use_parallel_residual": True, "qk_layernorm": True},
    "starcoder2, no biases": {**_STARCODER2, "use_bias": False, "tie_word_embeddings": True},
    "phi, norms of heads": {**_PHI, "qk_layernorm": True},
}
"""Those, and the other ways of the families."""


def checkpoint(config: dict[str, Any]) -> Checkpoint:
    """A checkpoint with random weights, none of them 0 or 1."""
    source = RandomSource(
        parameter_types(definition(config["model_type"]), config),
        seed=3,
        scale_fn=lambda name, type_: 0.3,
        offset_fn=lambda name, type_: float(type_.rank == 1 and name.endswith("weight")),
    )
    return Checkpoint(Path("small"), config, {}, {}, source, None, ())


def folder_of(config: dict[str, Any], folder: Path) -> Path:
    """The same as a folder."""
    return save_folder(checkpoint(config), folder / "small")
