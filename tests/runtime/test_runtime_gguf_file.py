"""Models written as GGUF files and back: weights to the bit, the same text, or a refusal."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind

import ptir
from gguf_models import kind_of_matrices, write
from ptir.checkpoint import Checkpoint, open_checkpoint, save_folder
from ptir.checkpoint.config import normalize_config
from ptir.checkpoint.gguf import GgufFile
from ptir.errors import CheckpointError, UsageError
from ptir.models import definition
from ptir.params.source import ArraySource
from ptir.runtime.gguf_file import save_gguf
from ptir.runtime.published import with_files
from ptir.runtime.specs import random_checkpoint
from ptir.types import BF16, F16, F32
from running import REF, llama_folder, small_checkpoint

DEMO = Path(ptir.__file__).parent / "data" / "demo"
TOKENS = list(range(0, 60, 3))
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
LINEAR = {"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0}


def saved(folder: Path, **config: Any) -> Checkpoint:
    if config.pop("model_type", "llama") == "gpt2":
        return open_checkpoint(save_folder(small_checkpoint(**config), folder / "small"))
    return open_checkpoint(llama_folder(folder, **config))


CASES: dict[str, dict[str, Any]] = {
    "gpt2": {"model_type": "gpt2"},
    "gpt2 with a head": {"model_type": "gpt2", "tie_word_embeddings": False},
    "llama": {},
    "tied": {"tie_word_embeddings": True},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "long heads": {"head_dim": 12},
    "linear": {"rope_parameters": LINEAR},
    "llama3": {"rope_parameters": LLAMA3},
    "windows": {"sliding_window": 5},
}


@pytest.mark.parametrize("case", CASES)
def test_a_folder_comes_back_to_the_bit(tmp_path: Path, case: str) -> None:
    folder = saved(tmp_path, **CASES[case])
    path = save_gguf(folder, tmp_path / "m.gguf")
    back = open_checkpoint(save_folder(open_checkpoint(path), tmp_path / "back"))
    stored = {name.removeprefix("model."): name for name in folder.source.names()}
    assert set(back.source.names()) == set(stored)
    for name, before in stored.items():
        assert np.array_equal(back.source.read(name), folder.source.read(before)), name
    wanted = ptir.load_model(folder.path, backend=REF).forward(TOKENS)
    for one in (path, back.path):
        found = ptir.load_model(one, backend=REF).forward(TOKENS)
        assert np.abs(found - wanted).max() <= 1e-5 * np.abs(wanted).max()


def test_qwen2_comes_back_to_the_bit(tmp_path: Path) -> None:
    """Without the order of interleaved pairs: its rows stand as they are."""
    folder = open_checkpoint(llama_folder(tmp_path, model_type="qwen2"))
    path = save_gguf(folder, tmp_path / "m.gguf")
    file, name = GgufFile(path), "model.layers.1.self_attn.q_proj.weight"
    known = name if name in folder.source.names() else name.removeprefix("model.")
    assert file.raw("blk.1.attn_q.weight").tobytes() == folder.source.read(known).tobytes()
    found, wanted = (
        ptir.load_model(one, backend=REF).forward(TOKENS) for one in (path, folder.path)
    )
    assert np.array_equal(found, wanted)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_a_file_is_what_gguf_s_own_writer_makes_of_the_model(tmp_path: Path, family: str) -> None:
    folder = saved(tmp_path, model_type=family)
    found = gguf.GGUFReader(save_gguf(folder, tmp_path / "m.gguf"))
    wanted = gguf.GGUFReader(write(tmp_path / "theirs.gguf", folder).path)
    theirs = {one.name: one.data for one in wanted.tensors}
    ours = {one.name: one.data for one in found.tensors}
    assert set(ours) == set(theirs)
    for name, data in ours.items():
        assert np.array_equal(data, theirs[name]), name
    for key, field in wanted.fields.items():
        if not key.startswith("GGUF.") and key != "general.quantization_version":
            assert found.fields[key].contents() == field.contents(), key


@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
def test_floats_are_converted_and_vectors_stay(tmp_path: Path, dtype: Any) -> None:
    folder = saved(tmp_path)
    file = GgufFile(save_gguf(folder, tmp_path / "m.gguf", dtype=dtype))
    for name, tensor in file.tensors.items():
        assert tensor.type.name == ("F32" if len(tensor.shape) == 1 else dtype.name.upper()), name
    value = folder.source.read("layers.0.mlp.up_proj.weight").astype(dtype.numpy)
    assert file.raw("blk.0.ffn_up.weight").tobytes() == value.tobytes()


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_blocks_are_copied_as_they_are_stored(tmp_path: Path, family: str) -> None:
    """Also those whose rows are in another order as parameters, and those that are turned."""
    first = write(
        tmp_path / "m.gguf", saved(tmp_path, model_type=family), kind_of_matrices(Kind.Q8_0)
    ).path
    second = save_gguf(open_checkpoint(first), tmp_path / "copy.gguf", dtype=F16)
    ours, theirs = GgufFile(second), GgufFile(first)
    assert set(ours.tensors) == set(theirs.tensors)
    assert any(one.type.name == "Q8_0" for one in ours.tensors.values())
    for name, tensor in theirs.tensors.items():
        if tensor.type.name == "Q8_0":
            assert ours.raw(name).tobytes() == theirs.raw(name).tobytes(), name


def test_the_demo_answers_from_the_file_as_from_the_folder(tmp_path: Path) -> None:
    path = save_gguf(open_checkpoint(DEMO), tmp_path / "demo.gguf")
    back = save_folder(with_files(open_checkpoint(path)), tmp_path / "back", dtype=F16)
    assert open_checkpoint(back).config["architectures"] == ["GPT2LMHeadModel"]
    models = [ptir.load_model(one, backend=REF) for one in (DEMO, path, back)]
    for text in ("Once upon a time", "  two  spaces, and 3 lines\n\n\n", "naïve 猫 🐈"):
        ids = [model.encode(text) for model in models]
        assert ids[0] == ids[1] == ids[2]
    said = [model.generate("ROMEO:", max_tokens=8).text for model in models]
    assert said[0] == said[1] == said[2] != ""
    assert [model.eos_ids for model in models] == [(0,)] * 3
    before, after = (open_checkpoint(one).source for one in (DEMO, back))
    for name in before.names():
        found = after.read(name.removeprefix("transformer."))
        assert found.tobytes() == before.read(name).tobytes(), name
    said_of_text = json.loads((back / "tokenizer_config.json").read_text("utf-8"))
    assert said_of_text["eos_token"] == "<|endoftext|>"


def test_templates_and_the_name_are_kept(tmp_path: Path) -> None:
    template = {"chat_template": "{{ messages }}"}
    demo = replace(open_checkpoint(DEMO), tokenizer_config=template)
    path = save_gguf(demo, tmp_path / "demo.gguf")
    again = save_gguf(open_checkpoint(path), tmp_path / "again.gguf")
    for one in (path, again):
        checkpoint = open_checkpoint(one)
        assert checkpoint.tokenizer_config == template
        assert GgufFile(one).metadata["general.name"] == "demo"


def _tokenizer(**changed: Any) -> str:
    return json.dumps(json.loads((DEMO / "tokenizer.json").read_text("utf-8")) | changed)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "activation": ({"activation_function": "gelu"}, "says activation 'tanh' and the model has"),
    "scale": ({"scale_attn_by_inverse_layer_idx": True}, "scale_by_layer False and the model has"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_file_cannot_say_is_refused(tmp_path: Path, case: str) -> None:
    config, message = REFUSED[case]
    with pytest.raises(CheckpointError, match=message):
        save_gguf(small_checkpoint(**config), tmp_path / "m.gguf")
    assert not [*tmp_path.iterdir()]


SIZES = {
    "vocab_size": 97,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "num_heads": 4,
    "head_dim": 8,
    "state_size": 4,
    "n_groups": 1,
}
LEFT_OUT: dict[str, dict[str, Any]] = {
    "gemma2": {"head_dim": 256},
    "gemma4_text": {"vocab_size_per_layer_input": 97},
    "granite": {},
    "mamba2": {},
    "mistral": {},
    "qwen3_5_text": {"num_hidden_layers": 4},
}


@pytest.mark.parametrize("family", LEFT_OUT)
def test_what_a_configuration_leaves_to_its_family_is_written(tmp_path: Path, family: str) -> None:
    said = {"model_type": family, **SIZES, **LEFT_OUT[family]}
    described = definition(family)
    config = {**described.defaults, **said}
    arrays = {
        name: np.zeros(one.shape, np.float32)
        for name, one in described.build(normalize_config(config)).parameters().items()
    }
    source = ArraySource(arrays)
    read = [
        gguf.GGUFReader(save_gguf(replace(small_checkpoint(), config=one, source=source), path))
        for one, path in ((said, tmp_path / "a.gguf"), (config, tmp_path / "b.gguf"))
    ]
    brief, whole = ({k: f.contents() for k, f in one.fields.items()} for one in read)
    assert brief == whole


def test_a_family_without_a_row_is_refused(tmp_path: Path) -> None:
    folder = random_checkpoint("opt-tiny", 1)
    with pytest.raises(CheckpointError, match="'opt' cannot be written as GGUF; gpt2, llama, m"):
        save_gguf(folder, tmp_path / "m.gguf")


def test_a_tokenizer_that_no_file_describes_is_refused(tmp_path: Path) -> None:
    split = {"type": "Whitespace"}
    odd = replace(open_checkpoint(DEMO), tokenizer=_tokenizer(pre_tokenizer=split))
    with pytest.raises(CheckpointError, match="BPE with this way of splitting text is none"):
        save_gguf(odd, tmp_path / "m.gguf")


def test_an_existing_file_is_kept(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"mine")
    with pytest.raises(CheckpointError, match="exists already"):
        save_gguf(small_checkpoint(), tmp_path / "m.gguf")
    assert (tmp_path / "m.gguf").read_bytes() == b"mine"


def test_a_model_without_a_tokenizer_says_so_as_llama_cpp_wants_it(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(llama_folder(tmp_path))
    path = save_gguf(checkpoint, tmp_path / "m.gguf")
    field = gguf.GGUFReader(path).get_field("tokenizer.ggml.model")
    assert field is not None and field.contents() == "no_vocab"
    with pytest.raises(UsageError, match=r"has no tokenizer.*--tokens"):
        ptir.load_model(path, backend=REF).generate("text", max_tokens=1)


def test_what_a_file_says_beside_its_model_is_kept(tmp_path: Path) -> None:
    """Licenses, settings, keys of others; how weights were quantized, only where they stay so."""
    said = {
        "general.license": "mit",
        "general.tags": ["a", "b"],
        "general.sampling.temp": 0.5,
        "general.parameter_count": 1 << 40,
        "my.offset": -3,
        "general.file_type": 7,
        "quantize.imatrix.file": "text",
    }
    first, second, third = (tmp_path / f"{n}.gguf" for n in range(3))
    save_gguf(replace(open_checkpoint(DEMO), file_metadata=said), first)
    save_gguf(open_checkpoint(first), second)
    save_gguf(open_checkpoint(second), third, dtype=F32)
    for path, is_same in ((first, True), (second, True), (third, False)):
        fields = gguf.GGUFReader(path).fields
        found = {key: fields[key].contents() for key in said if key in fields}
        gone = {} if is_same else {"general.file_type": 0}
        wanted = {key: one for key, one in said.items() if is_same or key[:8] != "quantize"}
        assert found == {**wanted, **gone}, path
    held = gguf.GGUFReader(third).fields
    assert [held[key].types[0].name for key in ("general.parameter_count", "my.offset")] == [
        "UINT64",
        "INT64",
    ]
