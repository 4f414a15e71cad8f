"""Models as GGUF files, written by ``gguf``: its names of tensors, its quantizers, its keys."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Kind
from gguf.constants import GGML_QUANT_SIZES

from ptir.checkpoint import Checkpoint
from ptir.weights import FORMATS
from ptir.weights.decode import decode
from ptir.weights.record import Numbers, SmallFloat

Array = np.ndarray[Any, Any]
TURNED = ("c_attn.weight", "c_proj.weight", "c_fc.weight")
SUFFIXES = (".weight", ".bias")
PREFIXES = ("transformer.", "model.", "gpt_neox.")
LAYER_NORMS = ("gptneox", "falcon", "stablelm", "starcoder2", "phi2")
EPSILONS = ("layer_norm_eps", "layer_norm_epsilon", "norm_epsilon")
ARCHITECTURES = {"ministral3": "mistral3", "gemma3_text": "gemma3"}
ARCHITECTURES |= {"gpt_neox": "gptneox", "phi": "phi2"}
"""Where they are not called as the family is."""
PAIRED = ("llama", "smollm3", "granite", "mistral3")
"""Whose queries and keys are stored pair by pair."""
SHIFTED = ("gemma", "gemma2", "gemma3")
"""Whose norms are stored with 1 added."""
MORE: dict[str, dict[str, str]] = {
    "granite": {
        "embedding_scale": "embedding_multiplier",
        "residual_scale": "residual_multiplier",
        "attention.scale": "attention_multiplier",
        "logit_scale": "logits_scaling",
    },
    "phi3": {"attention.sliding_window": "sliding_window"},
    "gemma2": {
        "attention.sliding_window": "sliding_window",
        "attn_logit_softcapping": "attn_logit_softcapping",
        "final_logit_softcapping": "final_logit_softcapping",
    },
    "gemma3": {
        "attention.sliding_window": "sliding_window",
        "attention.sliding_window_pattern": "sliding_window_pattern",
        "rope.freq_base_swa": "rope_local_base_freq",
    },
}
"""Keys that an architecture has beside Llama's, and what a configuration calls them."""


class Later(enum.IntEnum):
    """Types that are newer than the package ``gguf``."""

    Q2_0 = 42


GGML_QUANT_SIZES.setdefault(cast(Kind, Later.Q2_0), (64, 18))


GEMMA4_EXPERTS: Final = {
    "attention_k_eq_v": True,
    "num_global_key_value_heads": 1,
    "num_kv_shared_layers": 0,
    "hidden_size_per_layer_input": 0,
    "use_double_wide_mlp": False,
    "enable_moe_block": True,
    "num_experts": 5,
    "top_k_experts": 2,
    "moe_intermediate_size": 32,
}
"""What Gemma 4's tiny preset has otherwise where layers have experts."""


def kind_named(name: str) -> Kind:
    """The type called ``name``."""
    return Kind[name] if name in Kind.__members__ else cast(Kind, Later[name])


def f32(name: str) -> Kind:
    """Every tensor in f32."""
    return Kind.F32


def kind_of_matrices(kind: Kind) -> Callable[[str], Kind]:
    """Matrices in one type, the positions of GPT-2, as quantizers leave them, in f32."""
    return lambda name: Kind.F32 if "norm" in name or "position" in name else kind


@dataclass
class Written:
    """A file, and the numbers that are in it, by the names of the safetensors model."""

    path: Path
    weights: dict[str, Array] = field(default_factory=dict[str, Array])


def write(
    path: Path,
    checkpoint: Checkpoint,
    kinds: Callable[[str], Kind] = f32,
    *,
    keys: Mapping[str, Any] | None = None,
    extra: Mapping[str, Array] | None = None,
    seed: int = 0,
    parts: int = 0,
    bare: bool = False,
    vocabulary: Callable[[gguf.GGUFWriter], None] = lambda writer: None,
) -> Written:
    """``checkpoint`` as a file at ``path``, matrices as ``kinds`` says.

    Types that ``gguf`` cannot quantize to get random blocks. ``keys`` replace those of the
    architecture (None leaves one out), ``extra`` tensors are added. ``parts`` splits the file into
    parts of as many tensors; a ``bare`` first one has none.
    """
    config = checkpoint.config
    family = str(config["model_type"])
    architecture = ARCHITECTURES.get(family, family)
    writer = gguf.GGUFWriter(path, architecture, split_max_tensors=parts, small_first_shard=bare)
    for key, value in {**_keys(architecture, config), **(keys or {})}.items():
        if value is not None:
            _add(writer, f"{architecture}.{key}", value)
    vocabulary(writer)
    names = gguf.get_tensor_name_map(_architecture(architecture), 64)
    rng = np.random.default_rng(seed)
    written = Written(path)
    for stored in checkpoint.source.names():
        name = stored
        for prefix in PREFIXES:
            name = name.removeprefix(prefix)
        array = np.asarray(checkpoint.source.read(stored), np.float32)
        plus = architecture in SHIFTED and "norm" in name
        called = names.get_name(_long(architecture, name), try_suffixes=SUFFIXES)
        assert called is not None, name
        turned = architecture == "gpt2" and name.endswith(TURNED)
        kind = Kind.F32 if array.ndim == 1 else kinds(called)
        order = _order(architecture, name, array, config)
        raw, held = _stored(
            np.ascontiguousarray(
                array + 1
                if plus
                else array[order]
                if order is not None
                else (array.T if turned else array)
            ),
            kind,
            rng,
        )
        writer.add_tensor(called, raw, raw_dtype=kind)
        held = held - 1 if plus else held
        if order is not None:
            held = held[np.argsort(order)]
        written.weights[name] = np.ascontiguousarray(held.T if turned else held)
    for name, array in (extra or {}).items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return written


def _keys(architecture: str, config: Mapping[str, Any]) -> dict[str, Any]:
    if architecture in LAYER_NORMS:
        return _layer_norm_keys(architecture, config)
    if architecture == "gpt2":
        return {
            "context_length": config["n_positions"],
            "embedding_length": config["n_embd"],
            "feed_forward_length": config.get("n_inner") or 4 * config["n_embd"],
            "block_count": config["n_layer"],
            "attention.head_count": config["n_head"],
            "attention.layer_norm_epsilon": float(config.get("layer_norm_epsilon", 1e-5)),
        }
    return {
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "block_count": config["num_hidden_layers"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.layer_norm_rms_epsilon": float(config.get("rms_norm_eps", 1e-6)),
        "rope.freq_base": float(config["rope_theta"]),
        "vocab_size": config["vocab_size"],
        "attention.key_length": config.get("head_dim"),
        **{key: config.get(field) for key, field in MORE.get(architecture, {}).items()},
    }


def _layer_norm_keys(architecture: str, config: Mapping[str, Any]) -> dict[str, Any]:
    heads, size = config["num_attention_heads"], config["hidden_size"]
    groups = config.get("num_key_value_heads") or config.get("num_kv_heads")
    epsilon = next(config[key] for key in EPSILONS if key in config)
    found = {
        "context_length": config["max_position_embeddings"],
        "embedding_length": size,
        "feed_forward_length": config.get("intermediate_size") or config["ffn_hidden_size"],
        "block_count": config["num_hidden_layers"],
        "attention.head_count": heads,
        "attention.layer_norm_epsilon": float(epsilon),
        "rope.freq_base": float(config["rope_parameters"]["rope_theta"]),
        "vocab_size": config["vocab_size"],
    }
    if architecture in ("gptneox", "stablelm"):
        found["use_parallel_residual"] = config["use_parallel_residual"]
    if architecture != "gptneox":
        found["attention.head_count_kv"] = groups or (1 if architecture == "falcon" else heads)
    partial = config["rope_parameters"].get("partial_rotary_factor")
    if partial:
        found["rope.dimension_count"] = int(partial * (size // heads))
    return found


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    match value:
        case bool():
            writer.add_bool(key, value)
        case int():
            writer.add_uint32(key, value)
        case float():
            writer.add_float32(key, value)
        case str():
            writer.add_string(key, value)
        case _:
            writer.add_array(key, value)


def _architecture(name: str) -> gguf.MODEL_ARCH:
    return {value: key for key, value in gguf.MODEL_ARCH_NAMES.items()}[name]


def _long(architecture: str, name: str) -> str:
    """The name as Hugging Face's checkpoints have it."""
    prefix = {"gpt2": "transformer.", "falcon": "transformer.", "gptneox": "gpt_neox."}
    return name if name.startswith("lm_head") else f"{prefix.get(architecture, 'model.')}{name}"


def _order(architecture: str, name: str, array: Array, config: Mapping[str, Any]) -> Array | None:
    """Where the converter takes each row from: of a llama's queries and keys, of fused tensors."""
    if "query_key_value" in name:
        heads = config["num_attention_heads"]
        groups = heads
        if architecture == "falcon":
            groups = config["num_kv_heads"] if config["new_decoder_architecture"] else 1
        parted = np.arange(len(array)).reshape(groups, heads // groups + 2, -1)
        thirds = (parted[:, :-2], parted[:, -2], parted[:, -1])
        return np.concatenate([third.reshape(-1) for third in thirds])
    heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}
    key = heads.get(name.split(".")[-2])
    if architecture not in PAIRED or key is None:
        return None
    rows = np.arange(len(array)).reshape(config[key], 2, -1)
    return rows.swapaxes(1, 2).reshape(-1)


def _stored(array: Array, kind: Kind, rng: np.random.Generator) -> tuple[Array, Array]:
    """The bytes of an array in a type, and the numbers that they stand for."""
    try:
        raw = gguf.quants.quantize(array, kind)
    except NotImplementedError:
        raw = random_blocks(kind.name, array.shape[0], array.shape[1], rng)
    with np.errstate(all="ignore"):
        try:
            held = gguf.quants.dequantize(raw, kind)
        except NotImplementedError:  # tests/weights has a witness of these
            held = decode(FORMATS[kind.name], {"blocks": raw})
    return raw, np.asarray(held, np.float32).reshape(array.shape)


def random_blocks(name: str, outputs: int, inputs: int, rng: np.random.Generator) -> Array:
    """Random bytes whose scales are small numbers, so that a model of them has small logits."""
    form = FORMATS[name]
    raw = rng.integers(0, 256, (outputs, inputs // form.block, form.arrays[0].count), np.uint8)
    for quantity in form.value.within():
        if isinstance(quantity.numbers, float):
            continue
        numbers = quantity.numbers
        if isinstance(numbers.reading, SmallFloat) and numbers.bits == 16:
            scale = np.float16(rng.uniform(0.5, 1.5, raw.shape[:2]) * SCALES.get(name, 1e-3))
            _put(raw, numbers, scale.view(np.uint16))
    if name == "MXFP4":
        raw[..., 0] = rng.integers(120, 124, raw.shape[:2])
    if name == "NVFP4":
        raw[..., :4] = rng.integers(8, 32, (*raw.shape[:2], 4))
    return raw.reshape(outputs, -1)


def _put(raw: Array, numbers: Numbers, codes: Array) -> None:
    """Store one number for each block, which may lie in pieces."""
    bits = np.unpackbits(raw, axis=-1, bitorder="little")
    places = [plane.place(0) + n for plane in numbers.planes for n in range(plane.bits)]
    for shift, place in enumerate(places):
        bits[..., place] = codes >> shift & 1
    raw[...] = np.packbits(bits, axis=-1, bitorder="little")


SCALES = {"Q4_K": 4e-4, "Q5_K": 2e-4, "Q2_K": 3e-3, "Q6_K": 5e-5, "Q3_K": 1e-3, "IQ4_XS": 4e-5}
SCALES |= {"IQ2_XXS": 2e-3, "IQ2_XS": 2e-3, "IQ2_S": 2e-3, "IQ3_XXS": 8e-4, "IQ3_S": 8e-4}
SCALES |= {"IQ1_S": 1e-2, "IQ1_M": 1e-2, "TQ1_0": 0.1, "Q1_0": 0.1, "Q2_0": 0.1}
"""About what makes weights of size 0.1."""
