"""The numbers of a ``config.json``: what each may be, and the only readers of them.

A config is untrusted input. Bounds are far above every published model and low enough that a
damaged value is refused here, instead of being built, looped over or allocated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from ptir.errors import CheckpointError, short

Config = Mapping[str, Any]


@dataclass(frozen=True)
class Whole:
    """Integers from ``low`` to ``high``, both included."""

    high: int
    low: int = 1

    def holds(self, value: Any) -> bool:
        """Whether ``value`` is one; neither 2.0 nor True is."""
        return type(value) is int and self.low <= value <= self.high

    def __str__(self) -> str:
        return f"an integer >= {self.low} and <= {self.high}"


@dataclass(frozen=True)
class Real:
    """Numbers above 0, up to ``high``; so neither infinity nor what is no number."""

    high: float

    def holds(self, value: Any) -> bool:
        """Whether ``value`` is one; True is none."""
        return type(value) in (int, float) and 0 < value <= self.high

    def __str__(self) -> str:
        return f"a number > 0 and <= {self.high:g}"


_POSITIONS: Final = Whole(1 << 27)
_WIDTH: Final = Whole(1 << 22)
_LAYERS: Final = Whole(1 << 12)
_HEADS: Final = Whole(1 << 14)
_TAPS: Final = Whole(1 << 10)
_EXPERTS: Final = Whole(1 << 12)
_MOST: Final = 64
"""Stages that a model of images has at most."""
_EPSILON: Final = Real(1.0)
_FACTOR: Final = Real(1e6)

FIELDS: Final[Mapping[str, Whole | Real]] = {
    "vocab_size": Whole(1 << 27),
    "vocab_size_per_layer_input": Whole(1 << 27),
    "n_positions": _POSITIONS,
    "max_position_embeddings": _POSITIONS,
    "sliding_window": _POSITIONS,
    "max_source_positions": Whole(1 << 16),
    "max_target_positions": Whole(1 << 16, low=5),
    "num_mel_bins": Whole(1 << 10),
    "d_model": _WIDTH,
    "encoder_ffn_dim": _WIDTH,
    "decoder_ffn_dim": _WIDTH,
    "encoder_layers": _LAYERS,
    "decoder_layers": _LAYERS,
    "encoder_attention_heads": _HEADS,
    "decoder_attention_heads": _HEADS,
    "n_embd": _WIDTH,
    "n_inner": _WIDTH,
    "hidden_size": _WIDTH,
    "hidden_size_per_layer_input": Whole(1 << 22, low=0),
    "intermediate_size": _WIDTH,
    "ffn_dim": _WIDTH,
    "ffn_hidden_size": _WIDTH,
    "word_embed_proj_dim": _WIDTH,
    "n_layer": _LAYERS,
    "num_hidden_layers": _LAYERS,
    "mtp_num_hidden_layers": Whole(1 << 12, low=0),
    "sliding_window_pattern": _LAYERS,
    "global_attn_every_n_layers": _LAYERS,
    "local_attention": _POSITIONS,
    "type_vocab_size": Whole(1 << 10, low=0),
    "max_seq_length": _POSITIONS,
    "in_features": _WIDTH,
    "out_features": _WIDTH,
    "relative_attention_num_buckets": Whole(1 << 12, low=4),
    "max_window_layers": Whole(1 << 12, low=0),
    "num_local_experts": _EXPERTS,
    "num_experts": _EXPERTS,
    "num_experts_per_tok": _EXPERTS,
    "top_k_experts": _EXPERTS,
    "moe_intermediate_size": _WIDTH,
    "shared_expert_intermediate_size": _WIDTH,
    "decoder_sparse_step": _LAYERS,
    "swiglu_alpha": _FACTOR,
    "swiglu_limit": _FACTOR,
    "n_head": _HEADS,
    "num_attention_heads": _HEADS,
    "num_key_value_heads": _HEADS,
    "num_kv_heads": _HEADS,
    "num_heads": _HEADS,
    "n_groups": _HEADS,
    "state_size": _HEADS,
    "expand": Whole(1 << 8),
    "conv_kernel": _TAPS,
    "num_global_key_value_heads": _HEADS,
    "num_kv_shared_layers": Whole(1 << 12, low=0),
    "num_ln_in_parallel_attn": Whole(2),
    "head_dim": _HEADS,
    "global_head_dim": _HEADS,
    "rotary_dim": _HEADS,
    "eos_token_id": Whole((1 << 31) - 1, low=0),
    "bos_token_id": Whole((1 << 31) - 1, low=0),
    "layer_norm_epsilon": _EPSILON,
    "layer_norm_eps": _EPSILON,
    "norm_epsilon": _EPSILON,
    "linear_key_head_dim": _HEADS,
    "linear_value_head_dim": _HEADS,
    "linear_num_key_heads": _HEADS,
    "linear_num_value_heads": _HEADS,
    "linear_conv_kernel_dim": _TAPS,
    "conv_L_cache": _TAPS,
    "full_attention_interval": _LAYERS,
    "block_ff_dim": _WIDTH,
    "block_multiple_of": _WIDTH,
    "norm_eps": _EPSILON,
    "rms_norm_eps": _EPSILON,
    "block_ffn_dim_multiplier": _FACTOR,
    "rope_theta": Real(1e30),
    "partial_rotary_factor": Real(1.0),
    "divisors": Real(1e31),
    "factor": _FACTOR,
    "low_freq_factor": _FACTOR,
    "high_freq_factor": _FACTOR,
    "attention_factor": _FACTOR,
    "beta_fast": _FACTOR,
    "beta_slow": _FACTOR,
    "mscale": _FACTOR,
    "mscale_all_dim": _FACTOR,
    "llama_4_scaling_beta": _FACTOR,
    "query_pre_attn_scalar": _FACTOR,
    "attn_logit_softcapping": _FACTOR,
    "final_logit_softcapping": _FACTOR,
    "embedding_multiplier": _FACTOR,
    "attention_multiplier": _FACTOR,
    "residual_multiplier": _FACTOR,
    "logits_scaling": _FACTOR,
    "no_rope_layer_interval": _LAYERS,
    "original_max_position_embeddings": Real(float(1 << 27)),
    "num_labels": Whole(1 << 22, low=0),
    "num_channels": Whole(3, low=3),
    "image_size": Whole(1 << 14),
    "patch_size": Whole(1 << 10),
    "embedding_size": _WIDTH,
    "depth_multiplier": Real(64.0),
    "depth_divisible_by": Whole(1 << 10),
    "min_depth": Whole(1 << 10),
    "expand_ratio": Real(64.0),
    "output_stride": Whole(32),
    "mlp_ratio": Whole(64),
    "projection_dim": _WIDTH,
    "pooler_output_size": _WIDTH,
    "hidden_sizes": _WIDTH,
    "depths": _LAYERS,
}
"""By key: what a ``config.json`` may say there."""


def whole(config: Config, key: str, *, where: str = "") -> int:
    """The integer that ``config`` must have at ``key``.

    ``where`` opens the message; without it the config's ``model_type`` does. Raises
    ``CheckpointError``, as all readers here, naming the key, what was found and what may be there.
    """
    value: int = _checked(config.get(key), key, where or _model(config))
    return value


def whole_or_none(config: Config, key: str) -> int | None:
    """The integer at ``key``, or None where the config leaves it out or says null."""
    found = config.get(key)
    return None if found is None else int(_checked(found, key, _model(config), " or null"))


def real(config: Config, key: str, default: float | None = None, *, where: str = "") -> float:
    """The number at ``key``; ``default`` is for a config that leaves it out."""
    return float(_checked(config.get(key, default), key, where or _model(config)))


def flag(config: Config, key: str, default: bool = False) -> bool:
    """Whether ``config`` says true at ``key``; null is false."""
    found = config.get(key, default)
    if found is not None and type(found) is not bool:
        raise CheckpointError(
            f"{_model(config)}: {key} {short(found)} in config.json must be true or false"
        )
    return bool(found)


def listed(config: Config, key: str, kinds: Sequence[str], count: int) -> tuple[str, ...]:
    """The list at ``key`` of ``count`` names, each one of ``kinds``."""
    found = config.get(key)
    if (
        isinstance(found, list)
        and len(found) == count
        and all(isinstance(one, str) and one in kinds for one in found)
    ):
        return tuple(found)
    raise CheckpointError(
        f"{_model(config)}: {key} {short(found)} in config.json must be a list of {count}, each"
        f" {' or '.join(kinds)}; correct it, or fetch the file again"
    )


def wholes(config: Config, key: str) -> tuple[int, ...]:
    """The list of integers at ``key``, at least one; each within the bounds of ``key``."""
    found = config.get(key)
    if not isinstance(found, list | tuple) or not found or len(found) > _MOST:
        raise CheckpointError(
            f"{_model(config)}: {key} {short(found)} in config.json must be a list of 1 to {_MOST}"
            " integers; correct it, or fetch the file again"
        )
    return tuple(int(_checked(one, key, _model(config))) for one in found)


def require_multiple(sizes: Mapping[str, int], many: str, few: str, model: str) -> None:
    """Refuse sizes of which ``many`` is no multiple of ``few``."""
    if sizes[many] % sizes[few]:
        raise CheckpointError(
            f"{model}: {many} {sizes[many]} must be a multiple of {few} {sizes[few]}; check"
            " config.json"
        )


def _checked(value: Any, key: str, where: str, also: str = "") -> Any:
    if FIELDS[key].holds(value):
        return value
    _refuse(value, key, where, also)


def _refuse(value: Any, key: str, where: str, also: str) -> NoReturn:
    rule = f"must be {FIELDS[key]}{also}; correct it, or fetch the file again"
    raise CheckpointError(f"{where}: {key} {short(value)} in config.json {rule}")


def _model(config: Config) -> str:
    found = config.get("model_type")
    return found[:40] if isinstance(found, str) else "config"
