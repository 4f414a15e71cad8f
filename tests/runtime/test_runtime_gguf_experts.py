"""GGUF files of mixtures of experts give the logits of the same numbers elsewhere."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind
from gguf.quants import dequantize, quantize

import gguf_models
import ptir
from ptir.checkpoint import Checkpoint, open_checkpoint, save_folder
from ptir.checkpoint.gguf.mixtures import MIXTURES
from ptir.errors import CheckpointError
from ptir.models.table import definition
from ptir.params.source import ArraySource, rows_of
from ptir.runtime.gguf_file import save_gguf
from ptir.runtime.published import with_files
from ptir.runtime.specs import random_checkpoint
from running import REF, assert_close, llama_folder

TOKENS = list(range(0, 60, 3))
CALLED = {
    "embed_tokens": "token_embd",
    "norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate": "ffn_gate_inp",
    "mlp.experts.gate_proj": "ffn_gate_exps",
    "mlp.experts.up_proj": "ffn_up_exps",
    "mlp.experts.down_proj": "ffn_down_exps",
}


FILES = {"qwen3_moe": "qwen3moe", "mixtral": "llama"}
"""What files call a family."""
CHANGED: dict[str, dict[str, Any]] = {
    "qwen3_moe": {"moe_intermediate_size": 64, "mlp_only_layers": []},
    "mixtral": {
        "head_dim": 16,
        "intermediate_size": 64,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
    },
}


@pytest.fixture(params=FILES)
def mixture(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Checkpoint:
    """Random weights; every layer has experts."""
    presets: Any = definition(request.param).presets
    said = {**presets[f"{request.param}-tiny"], **CHANGED[request.param]}
    monkeypatch.setitem(presets, "mixture", said)
    return random_checkpoint("mixture", 3)


def paired(array: Any, heads: int) -> Any:
    """Rows of a rotated projection as llama's converter puts them: pair by pair."""
    return array.reshape(heads, 2, -1, array.shape[-1]).swapaxes(1, 2).reshape(array.shape)


def write(path: Path, checkpoint: Checkpoint, kind: Kind) -> dict[str, Any]:
    """The checkpoint as llama.cpp's converter names it; gives the numbers that are in the file."""
    config, held = checkpoint.config, {}
    architecture = FILES[config["model_type"]]
    experts = config.get("num_experts", config.get("num_local_experts"))
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10000.0)
    writer.add_expert_count(experts)
    writer.add_expert_used_count(config["num_experts_per_tok"])
    if "moe_intermediate_size" in config:
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    for name in checkpoint.source.names():
        array = checkpoint.source.read(name)
        layer, _, rest = name.removeprefix("layers.").partition(".")
        stem = rest if name.startswith("layers.") else name
        before = f"blk.{layer}." if name.startswith("layers.") else ""
        stem = stem.removesuffix(".weight")
        shape = array.shape
        if ".experts." in name:
            array = array.reshape(experts, -1, shape[-1])
        own = kind if ".experts." in name else Kind.F32
        turned = {"self_attn.q_proj": "attention", "self_attn.k_proj": "key_value"}
        if architecture == "llama" and stem in turned:
            held[name] = array
            array = paired(array, config[f"num_{turned[stem]}_heads"])
        raw = quantize(array, own)
        found = dequantize(raw, own).reshape(shape) if own != Kind.F32 else array.reshape(shape)
        held.setdefault(name, found)
        writer.add_tensor(f"{before}{CALLED[stem]}.weight", raw, raw_dtype=own)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return held


@pytest.mark.parametrize("kind", [Kind.F32, Kind.Q8_0], ids=lambda kind: kind.name)
def test_a_file_gives_the_logits_of_its_numbers(
    tmp_path: Path, mixture: Checkpoint, kind: Kind
) -> None:
    held = write(tmp_path / "m.gguf", mixture, kind)
    save_folder(replace(mixture, source=ArraySource(held)), tmp_path / "folder")
    wanted = ptir.load_model(tmp_path / "folder", backend=REF).forward(TOKENS)
    found = ptir.load_model(tmp_path / "m.gguf", backend=REF)
    assert_close(found.forward(TOKENS), wanted)


def test_blocks_of_experts_run_as_they_are_stored(tmp_path: Path, mixture: Checkpoint) -> None:
    write(tmp_path / "m.gguf", mixture, Kind.Q8_0)
    found = ptir.load_model(tmp_path / "m.gguf", backend=REF)
    words = [name for name in found.store.source.names() if ".experts." in name]
    assert words and all(name.rpartition(":")[2] != "" and ":" in name for name in words)


@pytest.mark.parametrize("kind", [Kind.Q8_0, Kind.F16], ids=["q8_0", "f16"])
def test_some_rows_of_every_parameter_are_those_of_the_whole(
    tmp_path: Path, mixture: Checkpoint, kind: Kind
) -> None:
    write(tmp_path / "m.gguf", mixture, kind)
    source = ptir.load_model(tmp_path / "m.gguf", backend=REF).store.source
    several = 0
    for name in source.names():
        whole = source.read(name)
        for first, end in ((0, 1), (len(whole) // 3, len(whole) // 2 + 1), (1, len(whole))):
            assert np.array_equal(rows_of(source, name, first, end), whole[first:end]), name
        several += whole.ndim > 1 and len(whole) > 128
    assert several > 8


def tensors(path: Path) -> dict[str, tuple[str, Any]]:
    """Kinds and numbers of a file's tensors, as ``gguf`` reads them."""
    found = gguf.GGUFReader(path).tensors
    return {
        one.name: (
            one.tensor_type.name,
            dequantize(one.data, one.tensor_type).reshape([*map(int, one.shape[::-1])]),
        )
        for one in found
    }


def test_a_mixture_is_written_as_the_converter_writes_it(
    tmp_path: Path, mixture: Checkpoint
) -> None:
    write(tmp_path / "theirs.gguf", mixture, Kind.F32)
    found = tensors(save_gguf(mixture, tmp_path / "m.gguf"))
    wanted = tensors(tmp_path / "theirs.gguf")
    assert found.keys() == wanted.keys()
    for name, (kind, numbers) in found.items():
        assert kind == "F32"
        assert np.array_equal(numbers, wanted[name][1]), name


WRITTEN = ("mixtral-tiny", "gpt_oss-tiny", "granitemoe-tiny")


@pytest.mark.parametrize("name", WRITTEN)
def test_a_mixture_becomes_a_file_and_comes_back_to_the_bit(name: str, tmp_path: Path) -> None:
    given = random_checkpoint(name, 1)
    wanted = ptir.load_model(save_folder(given, tmp_path / "folder"), backend=REF).forward(TOKENS)
    path = save_gguf(given, tmp_path / "m.gguf")
    told = name == "gpt_oss-tiny"
    with pytest.warns(UserWarning, match="others do not") if told else nullcontext():
        whole = with_files(open_checkpoint(path))
    back = save_folder(whole, tmp_path / "back")
    for one in (path, back):
        assert_close(ptir.load_model(one, backend=REF).forward(TOKENS), wanted)
    first, second = (
        tensors(one) for one in (path, save_gguf(open_checkpoint(back), tmp_path / "again.gguf"))
    )
    assert first.keys() == second.keys()
    for key, (kind, numbers) in first.items():
        assert kind == second[key][0]
        assert np.array_equal(numbers, second[key][1]), key


def test_layers_without_experts_in_a_family_that_has_them_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        CheckpointError, match=r"layers\.1\.mlp\.gate_proj\.weight' has no name in GGUF"
    ):
        save_gguf(random_checkpoint("qwen3_moe-tiny", 1), tmp_path / "m.gguf")
    assert not (tmp_path / "m.gguf").exists()


@pytest.mark.parametrize("name", WRITTEN)
def test_a_quantized_mixture_keeps_its_routers_and_rounds_its_experts(
    name: str, tmp_path: Path
) -> None:
    given = random_checkpoint(name, 1)
    floats = tensors(save_gguf(given, tmp_path / "f32.gguf"))
    path = save_gguf(given, tmp_path / "q8.gguf", mixture=MIXTURES["q8_0"])
    found = tensors(path)
    assert found.keys() == floats.keys()
    experts = [one for one in found if "_exps.weight" in one]
    assert len(experts) >= 3
    for one, (kind, numbers) in found.items():
        exact = "ffn_gate_inp" in one or floats[one][1].ndim < 2 or one.endswith("_exps.bias")
        assert kind == ("F32" if exact else "Q8_0"), one
        off = np.abs(numbers - floats[one][1]).max()
        assert off == 0 if exact else off <= np.abs(floats[one][1]).max() / 200, one
    model = ptir.load_model(path, backend=REF)
    near = ptir.load_model(tmp_path / "f32.gguf", backend=REF).forward(TOKENS)
    assert np.abs(model.forward(TOKENS) - near).max() <= 0.1 * np.abs(near).max()


def test_experts_of_an_architecture_that_has_none_here_are_refused(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(llama_folder(tmp_path, model_type="qwen2"))
    path = gguf_models.write(tmp_path / "m.gguf", checkpoint, keys={"expert_count": 8}).path
    with pytest.raises(CheckpointError, match=r"'qwen2\.expert_count': 8: a mixture of experts"):
        ptir.load_model(path, backend=REF)
