"""GGUF files whose tensors have another form than a folder's give the logits of their numbers.

Experts whose gate and up are apart, or that have a tensor each; convolutions without their middle
axis; heads of values in another order; decays in the place of their logarithms.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind
from gguf.quants import dequantize, quantize

import ptir
from gguf_models import GEMMA4_EXPERTS
from ptir.checkpoint import Checkpoint, save_folder
from ptir.errors import CheckpointError
from ptir.models.gpt_oss import YARN
from ptir.models.table import definition
from ptir.params.source import ArraySource
from ptir.runtime import Model
from ptir.runtime.specs import random_checkpoint
from running import REF, assert_close

Array = np.ndarray[Any, Any]
TOKENS: Final = list(range(0, 60, 3))
HEAD: Final = {
    "fc": gguf.MODEL_TENSOR.NEXTN_EH_PROJ,
    "pre_fc_norm_embedding": gguf.MODEL_TENSOR.NEXTN_ENORM,
    "pre_fc_norm_hidden": gguf.MODEL_TENSOR.NEXTN_HNORM,
    "norm": gguf.MODEL_TENSOR.NEXTN_SHARED_HEAD_NORM,
}
"""A head's tensors beside its block, as the converter has them."""
ROWS_OF_VALUES: Final = ("in_proj_qkv", "in_proj_z", "in_proj_a", "in_proj_b", "conv1d")


@dataclass(frozen=True)
class Case:
    """A family: its preset and what is changed there, its architecture and the keys of a file."""

    preset: str
    architecture: str
    change: dict[str, Any] = field(default_factory=dict[str, Any])
    keys: dict[str, Any] = field(default_factory=dict[str, Any])
    experts: Kind = Kind.Q8_0


LINEAR: Final[dict[str, Any]] = {
    "attention.key_length": 16,
    "rope.dimension_count": 4,
    "rope.freq_base": 1e7,
    "full_attention_interval": 3,
    "ssm.conv_kernel": 4,
    "ssm.state_size": 16,
    "ssm.group_count": 2,
    "expert_used_count": 2,
    "expert_feed_forward_length": 32,
    "expert_shared_feed_forward_length": 64,
}
"""Of Qwen's models with linear attention and experts."""
GEMMA4: Final[dict[str, Any]] = {
    "attention.key_length": 32,
    "attention.value_length": 32,
    "attention.key_length_swa": 24,
    "attention.value_length_swa": 24,
    "attention.sliding_window": 24,
    "attention.sliding_window_pattern": [True, True, False] * 2,
    "final_logit_softcapping": 30.0,
    "rope.freq_base": 1e6,
    "rope.freq_base_swa": 1e4,
    "rope.dimension_count": 32,
    "rope.dimension_count_swa": 24,
}
UNROTATED: Final = np.array([1.0] * 4 + [1e30] * 12, np.float32)
"""What divides the frequencies of Gemma 4's layers without a window: a quarter of pairs rotates."""
CASES: Final = {
    "gpt_oss": Case(
        "gpt_oss-tiny",
        "gpt-oss",
        change={"rope_parameters": {**YARN, "original_max_position_embeddings": 64}},
        keys={
            "attention.key_length": 16,
            "attention.value_length": 16,
            "attention.sliding_window": 8,
            "expert_count": 5,
            "expert_used_count": 2,
            "expert_feed_forward_length": 64,
            "rope.freq_base": 150000.0,
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 32.0,
            "rope.scaling.original_context_length": 64,
        },
        experts=Kind.MXFP4,
    ),
    "granitemoe": Case(
        "granitemoe-tiny",
        "granitemoe",
        keys={
            "expert_count": 5,
            "expert_used_count": 2,
            "embedding_scale": 6.0,
            "residual_scale": 0.5,
            "attention.scale": 0.2,
            "logit_scale": 3.0,
        },
    ),
    "lfm2": Case(
        "lfm2-tiny",
        "lfm2",
        change={"intermediate_size": 160, "block_auto_adjust_ff_dim": False},
        keys={
            "attention.head_count_kv": [0, 2, 0, 2],
            "rope.freq_base": 1e6,
            "shortconv.l_cache": 3,
        },
    ),
    "qwen3_5": Case(
        "qwen3.5-tiny",
        "qwen35",
        change={
            "linear_num_value_heads": 6,
            "linear_value_head_dim": 16,
            "mtp_num_hidden_layers": 0,
        },
        keys={
            "attention.key_length": 16,
            "rope.dimension_count": 4,
            "rope.freq_base": 1e7,
            "full_attention_interval": 3,
            "ssm.conv_kernel": 4,
            "ssm.state_size": 16,
            "ssm.group_count": 2,
            "ssm.time_step_rank": 6,
            "ssm.inner_size": 96,
        },
    ),
    "qwen3_5 with a head": Case(
        "qwen3.5-tiny",
        "qwen35",
        change={"tie_word_embeddings": False},
        keys={
            "block_count": 5,
            "nextn_predict_layers": 1,
            "attention.key_length": 16,
            "rope.dimension_count": 4,
            "rope.freq_base": 1e7,
            "full_attention_interval": 3,
            "ssm.conv_kernel": 4,
            "ssm.state_size": 16,
            "ssm.group_count": 2,
            "ssm.time_step_rank": 4,
            "ssm.inner_size": 96,
        },
    ),
    "qwen3_5 with experts": Case(
        "qwen3.5-moe-tiny",
        "qwen35moe",
        change={"linear_num_value_heads": 6, "linear_value_head_dim": 16},
        keys=LINEAR | {"ssm.time_step_rank": 6, "ssm.inner_size": 96, "expert_count": 6},
    ),
    "qwen3_next": Case(
        "qwen3_next-tiny",
        "qwen3next",
        change={"mlp_only_layers": [], "linear_qkv_parted": True},
        keys=LINEAR | {"ssm.time_step_rank": 4, "ssm.inner_size": 64, "expert_count": 6},
    ),
    "qwen3_next, one projection": Case(
        "qwen3_next-tiny",
        "qwen3next",
        change={"mlp_only_layers": []},
        keys=LINEAR | {"ssm.time_step_rank": 4, "ssm.inner_size": 64, "expert_count": 6},
    ),
    "mamba2": Case(
        "mamba2-tiny",
        "mamba2",
        keys={
            "ssm.conv_kernel": 4,
            "ssm.inner_size": 128,
            "ssm.state_size": 24,
            "ssm.time_step_rank": 8,
            "ssm.group_count": 2,
        },
    ),
    "gemma4": Case(
        "gemma4-tiny",
        "gemma4",
        keys=GEMMA4
        | {
            "attention.shared_kv_layers": 2,
            "embedding_length_per_layer_input": 32,
            "feed_forward_length": [160] * 4 + [320] * 2,
        },
    ),
    "gemma4 with experts": Case(
        "gemma4-tiny",
        "gemma4",
        change=GEMMA4_EXPERTS,
        keys=GEMMA4
        | {
            "attention.head_count_kv": [2, 2, 1, 2, 2, 1],
            "attention.shared_kv_layers": 0,
            "embedding_length_per_layer_input": 0,
            "expert_count": 5,
            "expert_used_count": 2,
            "expert_feed_forward_length": 32,
        },
    ),
    "mixtral, a tensor for each expert": Case(
        "mixtral-tiny",
        "llama",
        keys={
            "expert_count": 5,
            "expert_used_count": 2,
            "attention.layer_norm_rms_epsilon": 1e-5,
            "rope.freq_base": 1e6,
        },
    ),
}


def checkpoint_of(case: Case, patch: pytest.MonkeyPatch) -> Checkpoint:
    """Random weights, matrices five times as large as the package's are, so that they count."""
    family = str(random_checkpoint(case.preset, 3).config["model_type"])
    presets: Any = definition(family).presets
    patch.setitem(presets, "form", {**presets[case.preset], **case.change})
    found = random_checkpoint("form", 3)
    arrays = {name: found.source.read(name) for name in found.source.names()}
    larger = {name: one * 5 if one.ndim > 1 else one for name, one in arrays.items()}
    return replace(found, source=ArraySource(larger))


def pieces(
    case: Case, config: dict[str, Any], name: str, shape: tuple[int, ...]
) -> Iterator[tuple[str, Array]]:
    """The tensors of a parameter, and which of its numbers each has, in order."""
    places = np.arange(np.prod(shape)).reshape(shape)
    layer, _, rest = name.removeprefix("layers.").partition(".")
    before = f"blk.{layer}."
    count = config.get("num_local_experts", config.get("num_experts", 0))
    stem, _, kind = rest.replace("_proj_bias", "_proj.bias").rpartition(".")
    part = stem.rpartition(".")[2].removesuffix("_proj")
    if stem.endswith("gate_up_proj"):
        pairs = places.reshape(count, -1, 2, *shape[1 if kind == "weight" else 2 :])
        if case.architecture == "granitemoe":
            pairs = places.reshape(count, 2, -1, shape[1]).swapaxes(1, 2)
        yield f"{before}ffn_gate_exps.{kind}", pairs[:, :, 0]
        yield f"{before}ffn_up_exps.{kind}", pairs[:, :, 1]
    elif ".experts." in stem and case.architecture == "llama":
        for expert, rows in enumerate(places.reshape(count, -1, shape[1])):
            yield f"{before}ffn_{part}.{expert}.weight", rows
    elif "experts." in stem:
        each = places.reshape(count, -1, shape[-1]) if kind == "weight" else places
        yield f"{before}ffn_{part}_exps.{kind}", each
    else:
        yield called(case, config, name), ordered(case, config, name, places)


def called(case: Case, config: dict[str, Any], name: str) -> str:
    """What the package ``gguf`` calls the tensor of a parameter."""
    number = {arch: key for key, arch in gguf.MODEL_ARCH_NAMES.items()}[case.architecture]
    layers = config["num_hidden_layers"]
    names = gguf.get_tensor_name_map(number, layers + 1)
    name = name.replace("mtp.layers.0.", f"layers.{layers}.")
    if name.startswith("mtp."):
        return f"{gguf.TENSOR_NAMES[HEAD[name.split('.')[1]]].format(bid=layers)}.weight"
    name = name.replace(".dt_bias", ".dt_proj.bias")
    before = "backbone" if case.architecture == "mamba2" else "model"
    long = name if name.startswith("lm_head") else f"{before}.{name}"
    scale = {"router.scale": "ffn_gate_inp", "router.per_expert_scale": "ffn_down_exps"}
    for end, stem in scale.items():
        if name.endswith(end):
            return f"blk.{name.split('.')[1]}.{stem}.scale"
    if "mlp.gate.weight" in name:
        return f"blk.{name.split('.')[1]}.ffn_gate_inp.weight"
    found = names.get_name(long, try_suffixes=(".weight", ".bias"))
    assert found is not None, name
    return f"{found}.weight" if found.endswith(("attn_sinks", "layer_output_scale")) else found


def ordered(case: Case, config: dict[str, Any], name: str, places: Array) -> Array:
    """Which numbers of a parameter a tensor has where, by the rules of the converter."""
    if places.ndim == 3:  # a convolution
        places = places[:, 0]
    if name.endswith("shared_expert_gate.weight"):
        return places[0]
    if case.architecture == "mamba2" and name.endswith((".A_log", ".D")):
        return places.reshape(-1, 1)
    if name.endswith("mixer.norm.weight"):
        return places.reshape(config["n_groups"], -1)
    heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}
    key = heads.get(name.split(".")[-2])
    if case.architecture in ("granitemoe", "llama") and key is not None:
        shape = places.shape
        return places.reshape(config[key], 2, -1, shape[-1]).swapaxes(1, 2).reshape(shape)
    if case.architecture in ("qwen35", "qwen35moe") and ".linear_attn." in name:
        keys, values = (config[f"linear_num_{what}_heads"] for what in ("key", "value"))
        if "out_proj" in name:
            return tiled(places.T, keys, values).T
        if any(one in name for one in ("A_log", "dt_bias", *ROWS_OF_VALUES)):
            whole = "in_proj_qkv" in name or "conv1d" in name
            first = 2 * keys * config["linear_key_head_dim"] if whole else 0
            return np.concatenate([places[:first], tiled(places[first:], keys, values)])
    return places


def tiled(rows: Array, keys: int, values: int) -> Array:
    """Heads of values from those of one head of keys beside each other to one for each of these."""
    parts = rows.reshape(keys, values // keys, -1, *rows.shape[1:])
    return parts.swapaxes(0, 1).reshape(rows.shape)


def stored(case: Case, name: str, values: Array) -> Array:
    """The numbers as a converter stores them."""
    if name.endswith("A_log"):
        return np.asarray(-np.exp(values))
    norm = name.endswith("norm.weight") or "pre_fc_norm" in name
    shifted = case.architecture.startswith("qwen3") and norm and "linear_attn" not in name
    return values + 1 if shifted else values


def write(
    path: Path,
    case: Case,
    checkpoint: Checkpoint,
    *,
    plain: bool,
    behind: tuple[str, ...] = (),
    **keys: Any,
) -> dict[str, Array]:
    """The checkpoint as llama.cpp's converter has it; gives the numbers that are in the file."""
    config, held = dict(checkpoint.config), {}
    writer = gguf.GGUFWriter(path, case.architecture)
    epsilons = ("rms_norm_eps", "norm_eps", "layer_norm_epsilon")
    epsilon = next((config[key] for key in epsilons if key in config), 1e-6)
    said = {
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config.get("intermediate_size", 0),
        "block_count": config["num_hidden_layers"],
        "attention.head_count": config.get("num_attention_heads", 0),
        "attention.head_count_kv": config.get("num_key_value_heads", 0),
        "attention.layer_norm_rms_epsilon": float(epsilon),
        "rope.freq_base": 1e4,
        **case.keys,
        **keys,
    }
    add: dict[type, Any] = {int: writer.add_uint32, float: writer.add_float32}
    add |= {str: writer.add_string, list: writer.add_array}
    for key, value in said.items():
        add[type(value)](f"{case.architecture}.{key}", value)
    if case.architecture == "gemma4":
        writer.add_tensor("rope_freqs.weight", UNROTATED)
    for name in behind:
        writer.add_tensor(name, np.zeros(4, np.float32))
    for name in checkpoint.source.names():
        array = np.asarray(checkpoint.source.read(name))
        flat = np.empty(array.size, np.float32)
        for tensor, places in pieces(case, config, name, array.shape):
            kind = Kind.F32 if plain else kind_of(case, tensor, places)
            values = np.ascontiguousarray(array.reshape(-1)[places])
            raw = quantize(stored(case, name, values), kind)
            writer.add_tensor(tensor, raw, raw_dtype=kind)
            flat[places] = values if kind == Kind.F32 else dequantize(raw, kind)
        held[name] = flat.reshape(array.shape)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return held


def kind_of(case: Case, tensor: str, places: Array) -> Kind:
    """Matrices in blocks, all but routers and convolutions, as quantizers do it."""
    if places.ndim == 1 or tensor.endswith("bias") or "conv.conv" in tensor:
        return Kind.F32
    if "conv1d" in tensor or "gate_inp" in tensor or ("ssm_" in tensor and "norm" in tensor):
        return Kind.F32
    if tensor.endswith((".ssm_a", ".ssm_d")):
        return Kind.F32
    return case.experts if "exps" in tensor else Kind.Q8_0


@pytest.mark.slice(7)
@pytest.mark.parametrize("plain", [True, False], ids=["F32", "blocks"])
@pytest.mark.parametrize("name", CASES)
def test_a_file_gives_the_logits_of_its_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, plain: bool
) -> None:
    case = CASES[name]
    checkpoint = checkpoint_of(case, monkeypatch)
    held = write(tmp_path / "m.gguf", case, checkpoint, plain=plain)
    save_folder(replace(checkpoint, source=ArraySource(held)), tmp_path / "folder")
    model = ptir.load_model(tmp_path / "folder", backend=REF)
    found = ptir.load_model(tmp_path / "m.gguf", backend=REF)
    wanted = model.forward(TOKENS)
    assert_close(found.forward(TOKENS), wanted)
    assert found.context == model.context
    assert found.has_head == model.has_head == name.endswith("a head")
    if found.has_head:
        assert_heads_agree(found, model)
    if plain:  # what is read from a file can be kept as a folder
        save_folder(found.checkpoint, tmp_path / "kept")
        assert_close(ptir.load_model(tmp_path / "kept", backend=REF).forward(TOKENS), wanted)
    else:
        names = found.store.source.names()
        decoded = [one for one in names if one.endswith("_proj.weight") or ".experts." in one]
        decoded = [one for one in decoded if not one.endswith("router.proj.weight")]
        assert not [one for one in decoded if ":" not in one and not one.endswith("bias")]
        assert any(":" in one for one in names)


def assert_heads_agree(found: Model, wanted: Model) -> None:
    """The hidden states that a head gives, of tokens in two steps."""
    given = []
    for model in (found, wanted):
        state = model.new_state(1, 64, heads=True)
        model.generate(TOKENS, max_tokens=1, ignore_eos=True, state=state)
        *_, cache, (hidden,) = state.tensors
        token, start = (ptir.tensor(np.array([n], "i4"), backend=REF) for n in (7, len(TOKENS)))
        for _ in range(2):
            token, hidden, cache, start = model.predicting.propose(token, hidden, cache, start)
        given.append(hidden.numpy())
    assert_close(*given)


def test_a_head_that_is_stored_in_part_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASES["qwen3_5"]
    checkpoint = checkpoint_of(case, monkeypatch)
    write(tmp_path / "m.gguf", case, checkpoint, plain=True)
    behind = ("blk.4.nextn.eh_proj.weight", "blk.4.attn_norm.weight", "blk.4.attn_qkv.weight")
    more = {"block_count": 5, "nextn_predict_layers": 1}
    write(tmp_path / "more.gguf", case, checkpoint, plain=True, behind=behind, **more)
    with pytest.warns(
        UserWarning, match=r"more\.gguf: the head .* tensors are missing \(mtp\.pre_fc"
    ):
        found = ptir.load_model(tmp_path / "more.gguf", backend=REF)
    wanted = ptir.load_model(tmp_path / "m.gguf", backend=REF)
    assert np.array_equal(found.forward(TOKENS), wanted.forward(TOKENS))
    write(tmp_path / "lost.gguf", case, checkpoint, plain=True, behind=behind)
    with pytest.raises(CheckpointError, match=r"blk\.4"):
        ptir.load_model(tmp_path / "lost.gguf", backend=REF)


REFUSED: Final[dict[str, tuple[str, dict[str, Any], str]]] = {
    "heads for fewer layers": (
        "lfm2",
        {"attention.head_count_kv": [0, 2]},
        r"'lfm2\.attention\.head_count_kv': 2 numbers for 4 layers",
    ),
    "heads that differ": (
        "lfm2",
        {"attention.head_count_kv": [0, 2, 0, 4]},
        r"layers with other heads of keys than others",
    ),
    "heads below none": (
        "lfm2",
        {"attention.head_count_kv": [0, -2, 0, 2]},
        r"head_count_kv': -2 must be 0 or an integer",
    ),
    "experts for all": (
        "granitemoe",
        {"expert_shared_feed_forward_length": 8},
        "experts that all tokens share are not implemented",
    ),
    "experts of some layers": (
        "mixtral, a tensor for each expert",
        {"expert_count": [0, 5, 5]},
        r"'llama\.expert_count': \[0, 5, 5\] differs between layers",
    ),
    "no layers of the model": (
        "qwen3_5",
        {"nextn_predict_layers": 4},
        "of 4 layers some must be those of the model",
    ),
    "too much to rotate": (
        "qwen3_5",
        {"rope.dimension_count": 18},
        "at most the 16 of a head can be rotated",
    ),
    "heads of several sizes": (
        "qwen3_5",
        {"ssm.inner_size": 95},
        "6 heads must be of one size",
    ),
}


@pytest.mark.parametrize(("name", "keys", "message"), REFUSED.values(), ids=REFUSED)
def test_what_is_not_implemented_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    keys: dict[str, Any],
    message: str,
) -> None:
    case = CASES[name]
    write(tmp_path / "m.gguf", case, checkpoint_of(case, monkeypatch), plain=True, **keys)
    with pytest.raises(CheckpointError, match=message):
        ptir.load_model(tmp_path / "m.gguf", backend=REF)


def test_a_decay_that_is_none_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES["qwen3_5"]
    checkpoint = checkpoint_of(case, monkeypatch)
    arrays = {name: checkpoint.source.read(name) for name in checkpoint.source.names()}
    arrays["layers.0.linear_attn.A_log"] = np.full(6, -np.inf, np.float32)
    wrong = replace(checkpoint, source=ArraySource(arrays))
    write(tmp_path / "m.gguf", case, wrong, plain=True)
    found = ptir.load_model(tmp_path / "m.gguf", backend=REF)
    with pytest.raises(CheckpointError, match=r"'blk\.0\.ssm_a': decays must be below 0"):
        found.forward(TOKENS)
