"""GGUF files run: their logits are those of the same numbers in a safetensors folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind

import ptir
from gguf_models import Written, f32, kind_named, kind_of_matrices, write
from ptir.checkpoint import Checkpoint, open_checkpoint, save_folder
from ptir.checkpoint.gguf import READABLE, GgufFile
from ptir.errors import CheckpointError, UsageError
from ptir.models.rotation import frequencies
from ptir.params.source import ArraySource
from ptir.runtime import Model
from running import LLAMA, REF, assert_close, llama_folder, small_checkpoint

TOKENS = list(range(0, 60, 3))


def gpt2(folder: Path, **config: Any) -> Checkpoint:
    return small_checkpoint(**config)


def llama(folder: Path, **config: Any) -> Checkpoint:
    return open_checkpoint(llama_folder(folder, **config))


def qwen2(folder: Path, **config: Any) -> Checkpoint:
    return llama(folder, model_type="qwen2", **config)


FAMILIES: dict[str, Callable[..., Checkpoint]] = {"gpt2": gpt2, "llama": llama, "qwen2": qwen2}
WIDE = {
    "gpt2": {"n_embd": 256, "n_layer": 1},
    "llama": {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 1},
}


def folder_model(folder: Path, checkpoint: Checkpoint, written: Written) -> Model:
    """The safetensors model of the numbers that are in the file."""
    held = replace(checkpoint, source=ArraySource(written.weights))
    return ptir.load_model(save_folder(held, folder / "same", overwrite=True), backend=REF)


@pytest.mark.parametrize("kind", [Kind.F32, Kind.F16, Kind.BF16], ids=lambda kind: kind.name)
@pytest.mark.parametrize("family", FAMILIES)
def test_plain_tensors_give_the_logits_of_the_folder(
    tmp_path: Path, family: str, kind: Kind
) -> None:
    checkpoint = FAMILIES[family](tmp_path)
    written = write(tmp_path / "m.gguf", checkpoint, kind_of_matrices(kind))
    found = ptir.load_model(written.path, backend=REF)
    wanted = folder_model(tmp_path, checkpoint, written).forward(TOKENS)
    assert np.array_equal(found.forward(TOKENS), wanted)
    assert found.context == ptir.load_model(tmp_path / "same", backend=REF).context


@pytest.mark.parametrize("name", [n for n in READABLE if n[0] not in "FI" or n[:2] == "IQ"])
def test_every_quantized_type_gives_the_logits_of_its_numbers(tmp_path: Path, name: str) -> None:
    if name == "BF16":
        return
    family = "gpt2" if name in ("Q4_1", "Q5_0", "Q3_K") else "llama"
    checkpoint = FAMILIES[family](tmp_path, **WIDE[family])
    written = write(tmp_path / "m.gguf", checkpoint, kind_of_matrices(kind_named(name)))
    model = ptir.load_model(written.path, backend=REF)
    assert model.summary().parameters == sum(array.size for array in written.weights.values())
    found = model.forward(TOKENS)
    wanted = folder_model(tmp_path, checkpoint, written).forward(TOKENS)
    assert np.isfinite(wanted).all() and np.abs(wanted).max() > 0.1
    assert_close(found, wanted, 1e-4)


def test_types_may_differ_between_tensors_that_are_computed_together(tmp_path: Path) -> None:
    """As quantizers mix them: values and what goes down in more bits than queries and keys."""
    checkpoint = llama(tmp_path, **WIDE["llama"])
    kinds = {"attn_v.weight": Kind.Q6_K, "attn_k.weight": Kind.Q8_0, "ffn_up.weight": Kind.F16}
    kinds |= {"token_embd.weight": Kind.Q5_1}

    def kind(name: str) -> Kind:
        return kinds.get(name.removeprefix("blk.0."), Kind.Q4_K)

    written = write(tmp_path / "m.gguf", checkpoint, kind)
    found = ptir.load_model(written.path, backend=REF).forward(TOKENS)
    assert_close(found, folder_model(tmp_path, checkpoint, written).forward(TOKENS), 1e-4)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_a_file_without_an_output_shares_the_embedding(tmp_path: Path, family: str) -> None:
    tied = {"tie_word_embeddings": True}
    checkpoint = FAMILIES[family](tmp_path, **tied)
    written = write(tmp_path / "m.gguf", checkpoint, kind_of_matrices(Kind.Q8_0))
    found = ptir.load_model(written.path, backend=REF)
    assert not any("lm_head" in name for name in found.checkpoint.source.names())
    assert_close(
        found.forward(TOKENS), folder_model(tmp_path, checkpoint, written).forward(TOKENS), 1e-4
    )


def test_biases_of_rotated_rows_are_put_in_order_too(tmp_path: Path) -> None:
    checkpoint = llama(tmp_path, attention_bias=True, mlp_bias=True)
    written = write(tmp_path / "m.gguf", checkpoint)
    found = ptir.load_model(written.path, backend=REF)
    assert found.checkpoint.config["attention_bias"] and found.checkpoint.config["mlp_bias"]
    for name, wanted in written.weights.items():
        assert np.array_equal(found.checkpoint.source.read(name), wanted), name
    wanted = ptir.load_model(tmp_path / "small", backend=REF).forward(TOKENS)
    assert np.array_equal(found.forward(TOKENS), wanted)


def test_rows_of_a_fused_tensor_are_cut_apart(tmp_path: Path) -> None:
    checkpoint = llama(tmp_path)
    apart = GgufFile(write(tmp_path / "m.gguf", checkpoint, kind_of_matrices(Kind.Q8_0)).path)
    writer = gguf.GGUFWriter(tmp_path / "fused.gguf", "llama")
    for key, value in apart.metadata.items():
        if isinstance(value, int | float) and key.startswith("llama."):
            (writer.add_float32 if isinstance(value, float) else writer.add_uint32)(key, value)
    for name, tensor in apart.tensors.items():
        if name.endswith(("attn_k.weight", "attn_v.weight")):
            continue
        names = [name]
        if name.endswith("attn_q.weight"):
            names = [name.replace("attn_q", f"attn_{part}") for part in "qkv"]
        parts = [apart.raw(one).reshape(apart.tensors[one].shape[0], -1) for one in names]
        kind = Kind[tensor.type.name]
        raw = np.concatenate(parts)
        raw = raw if kind != Kind.F32 else raw.view(np.float32).reshape(tensor.shape)
        writer.add_tensor(name.replace("attn_q.", "attn_qkv."), raw, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    found = ptir.load_model(tmp_path / "fused.gguf", backend=REF).forward(TOKENS)
    assert np.array_equal(found, ptir.load_model(apart.path, backend=REF).forward(TOKENS))


@pytest.mark.parametrize(
    ("config", "keys"),
    [
        ({"sliding_window": 5}, {"attention.sliding_window": 5}),
        ({"head_dim": 16}, {"attention.key_length": 16, "attention.value_length": 16}),
        ({"num_key_value_heads": 4}, {"attention.head_count_kv": None}),
        ({"rope_theta": 10000.0}, {"rope.freq_base": None, "rope.dimension_count": 8}),
    ],
    ids=["window", "size of heads", "heads of keys left out", "frequencies left out"],
)
def test_keys_shape_the_computation(
    tmp_path: Path, config: dict[str, Any], keys: dict[str, Any]
) -> None:
    checkpoint = llama(tmp_path, **config)
    found = ptir.load_model(write(tmp_path / "m.gguf", checkpoint, keys=keys).path, backend=REF)
    wanted = ptir.load_model(tmp_path / "small", backend=REF).forward(TOKENS)
    assert np.array_equal(found.forward(TOKENS), wanted)


def test_linear_scaling_divides_the_frequencies(tmp_path: Path) -> None:
    scaling = {"rope_type": "linear", "factor": 4.0}
    checkpoint = llama(tmp_path, rope_scaling=scaling)
    keys = {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}
    for given in (keys, {"rope.scale_linear": 4.0}):
        written = write(tmp_path / "m.gguf", checkpoint, keys=given)
        found = ptir.load_model(written.path, backend=REF).forward(TOKENS)
        assert np.array_equal(
            found, ptir.load_model(tmp_path / "small", backend=REF).forward(TOKENS)
        )


def test_factors_of_frequencies_are_those_of_llama_3(tmp_path: Path) -> None:
    """Converters store Llama 3's scaling as what divides each frequency."""
    scaling = {
        "rope_type": "llama3",
        "factor": 4.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    }
    checkpoint = llama(tmp_path, rope_scaling=scaling)
    plain = frequencies({"rope_parameters": {"rope_theta": 100.0}}, "llama", 8)
    scaled = frequencies({"rope_parameters": {"rope_theta": 100.0, **scaling}}, "llama", 8)
    factors = np.float32(np.array(plain) / np.array(scaled))
    assert not np.array_equal(factors, np.ones_like(factors))
    written = write(tmp_path / "m.gguf", checkpoint, extra={"rope_freqs.weight": factors})
    found = ptir.load_model(written.path, backend=REF)
    assert_close(
        found.forward(TOKENS), ptir.load_model(tmp_path / "small", backend=REF).forward(TOKENS)
    )
    ones = write(tmp_path / "n.gguf", checkpoint, extra={"rope_freqs.weight": factors * 0 + 1})
    assert open_checkpoint(ones.path).config["rope_parameters"]["rope_type"] == "default"


def test_a_file_in_parts_is_opened_by_any_of_them(tmp_path: Path) -> None:
    checkpoint = llama(tmp_path)
    write(tmp_path / "m.gguf", checkpoint, parts=8)
    parts = sorted(tmp_path.glob("m-*-of-*.gguf"))
    assert len(parts) == 3
    wanted = ptir.load_model(tmp_path / "small", backend=REF).forward(TOKENS)
    for part in (parts[0], parts[1]):
        found = ptir.load_model(part, backend=REF)
        assert found.checkpoint.files == tuple(parts)
        assert np.array_equal(found.forward(TOKENS), wanted)
    parts[1].rename(tmp_path / "kept")
    with pytest.raises(CheckpointError, match=rf"1 of 3 parts are missing \({parts[1].name}\)"):
        open_checkpoint(parts[0])
    parts[2].rename(parts[1])
    (tmp_path / "kept").rename(parts[2])
    with pytest.raises(CheckpointError, match="part 2 of 3, where part 1 of 3 is expected"):
        open_checkpoint(parts[0])


def test_a_first_part_may_hold_nothing_but_metadata(tmp_path: Path) -> None:
    checkpoint = llama(tmp_path)

    def vocabulary(writer: gguf.GGUFWriter) -> None:
        writer.add_token_list([f"t{number}" for number in range(97)])

    write(tmp_path / "m.gguf", checkpoint, parts=12, bare=True, vocabulary=vocabulary)
    (first, *rest) = sorted(tmp_path.glob("m-*.gguf"))
    assert not GgufFile(first).tensors and len(rest) == 2
    wanted = ptir.load_model(tmp_path / "small", backend=REF).forward(TOKENS)
    assert np.array_equal(ptir.load_model(first, backend=REF).forward(TOKENS), wanted)


def test_weights_that_are_quantized_are_not_quantized_again(tmp_path: Path) -> None:
    checkpoint = gpt2(tmp_path)
    written = write(tmp_path / "m.gguf", checkpoint, kind_of_matrices(Kind.Q8_0))
    with pytest.raises(UsageError, match="weights in Q8_0 already; leave --quant out"):
        ptir.load_model(written.path, backend=REF, quant="int8")
    plain = write(tmp_path / "f.gguf", checkpoint, f32).path
    model = ptir.load_model(plain, backend=REF, quant="int8")
    assert np.isfinite(model.forward(TOKENS)).all()


def test_the_tokens_are_those_of_the_folder(tmp_path: Path) -> None:
    demo = open_checkpoint(Path(ptir.__file__).parent / "data" / "demo")
    written = write(tmp_path / "demo.gguf", demo, kind_of_matrices(Kind.F16))
    found = ptir.load_model(written.path, backend=REF)
    prompt = [1, 2, 3, 4, 5, 6, 7]
    wanted = ptir.load_model("demo", backend=REF).generate(prompt, max_tokens=12, temperature=0)
    got = found.generate(prompt, max_tokens=12, temperature=0)
    assert got.token_ids == wanted.token_ids


def test_llama_here_has_more_than_one_of_everything() -> None:
    """Orders of rows tell themselves apart: several heads, several pairs."""
    assert LLAMA["num_key_value_heads"] == 2 and LLAMA["hidden_size"] // 4 == 8
