"""Checkpoints open and save whole, in every layout, and unsafe or damaged ones are refused."""

import dataclasses
import importlib.resources
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from ptir.checkpoint import (
    BpeFiles,
    Checkpoint,
    check_parameters,
    load_archive,
    open_checkpoint,
    save_archive,
    save_folder,
    save_single_file,
    write_safetensors,
)
from ptir.errors import CheckpointError
from ptir.params import ArraySource
from ptir.text import Tokenizer
from ptir.types import BF16, F16, I32, spec

DEMO = Path(str(importlib.resources.files("ptir") / "data" / "demo"))


@pytest.fixture
def demo() -> Checkpoint:
    return open_checkpoint(DEMO)


@pytest.fixture
def tiny(tmp_path: Path) -> Checkpoint:
    arrays = {
        "wte": np.arange(8, dtype=np.float32).reshape(4, 2),
        "ln": np.array([0.5, -2.5], np.float32),
        "ids": np.arange(3, dtype=np.int32),
    }
    return Checkpoint(
        path=tmp_path,
        config={"model_type": "tiny", "dtype": "float32"},
        generation_config={},
        tokenizer_config={"chat_template": "{{ x }}"},
        source=ArraySource(arrays),
        tokenizer=BpeFiles('{"a": 0}', "#version: 0.2\n"),
        files=(),
    )


def same(one: Checkpoint, two: Checkpoint) -> None:
    assert set(one.source.names()) == set(two.source.names())
    for name in one.source.names():
        left, right = one.source.read(name), two.source.read(name)
        assert left.dtype == right.dtype
        assert np.array_equal(left, right)
    for field in ("config", "generation_config", "tokenizer_config", "tokenizer"):
        assert getattr(one, field) == getattr(two, field)


def folder(path: Path, **texts: object) -> Path:
    path.mkdir()
    for name, text in {"config.json": {}, **texts}.items():
        (path / name).write_text(text if isinstance(text, str) else json.dumps(text))
    return path


def weights(path: Path, *names: str) -> None:
    write_safetensors(path, [(n, np.zeros(1)) for n in names], dict.fromkeys(names, spec("f64", 1)))


def test_the_demo_folder_opens_without_reading_weights(demo: Checkpoint) -> None:
    assert demo.config["model_type"] == "gpt2"
    assert demo.generation_config["eos_token_id"] == 0
    assert demo.files == (DEMO / "model.safetensors",)
    assert Tokenizer.from_json(demo.tokenizer).vocab_size == 1024
    assert demo.source.counters.bytes_read == 0
    assert str(demo.source.type("transformer.wte.weight")) == "f16[1024,192]"
    theirs = safetensors.numpy.load_file(DEMO / "model.safetensors")
    assert set(theirs) == set(demo.source.names())
    for name, tensor in theirs.items():
        assert np.array_equal(demo.source.read(name), tensor)


def test_folders_survive_saving_whole_or_in_shards(demo: Checkpoint, tmp_path: Path) -> None:
    same(demo, open_checkpoint(save_folder(demo, tmp_path / "whole")))
    sharded = open_checkpoint(save_folder(demo, tmp_path / "cut", max_shard_bytes=1_000_000))
    assert len(sharded.files) > 4
    assert all(file.stat().st_size < 1_010_000 for file in sharded.files)
    assert sharded.source.names() == demo.source.names()
    same(demo, sharded)


def test_the_index_lists_every_tensor_and_their_total_size(tiny, tmp_path: Path) -> None:
    saved = save_folder(tiny, tmp_path / "a", max_shard_bytes=20)
    index = json.loads((saved / "model.safetensors.index.json").read_text())
    assert index["metadata"] == {"total_size": 52}
    assert index["weight_map"] == {
        "wte": "model-00001-of-00002.safetensors",
        "ln": "model-00002-of-00002.safetensors",
        "ids": "model-00002-of-00002.safetensors",
    }


def test_a_single_file_carries_everything(demo, tiny, tmp_path: Path) -> None:
    for name, checkpoint in {"demo": demo, "tiny": tiny}.items():
        same(checkpoint, open_checkpoint(save_single_file(checkpoint, tmp_path / name)))


@pytest.mark.parity
def test_saved_folders_load_in_transformers(demo: Checkpoint, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    saved = save_folder(demo, tmp_path / "a", max_shard_bytes=1_000_000, dtype=BF16)
    model = transformers.AutoModelForCausalLM.from_pretrained(saved)
    assert str(model.dtype) == "torch.bfloat16"


def test_floats_are_converted_and_integers_kept(tiny: Checkpoint, tmp_path: Path) -> None:
    saved = open_checkpoint(save_folder(tiny, tmp_path / "a", dtype=BF16))
    types = {name: str(saved.source.type(name)) for name in saved.source.names()}
    assert types == {"wte": "bf16[4,2]", "ln": "bf16[2]", "ids": "i32[3]"}
    assert saved.source.read("ln").astype(np.float32).tolist() == [0.5, -2.5]
    assert saved.config == {"model_type": "tiny", "dtype": "bfloat16"}
    with pytest.raises(CheckpointError, match="cannot be converted to i32"):
        save_folder(tiny, tmp_path / "b", dtype=I32)


def test_conversion_never_turns_values_into_infinity(tiny, tmp_path: Path) -> None:
    big = {"w": np.array([1, 1e5, np.inf], np.float32)}
    checkpoint = dataclasses.replace(tiny, source=ArraySource(big))
    with pytest.raises(CheckpointError, match=r"tensor 'w': 100000.0 does not fit f16; choose"):
        save_folder(checkpoint, tmp_path / "a", dtype=F16)
    assert os.listdir(tmp_path) == []
    big["w"][1] = 2
    saved = open_checkpoint(save_single_file(checkpoint, tmp_path / "a", dtype=F16))
    assert saved.source.read("w").tolist() == [1, 2, np.inf]


def test_existing_files_and_folders_are_only_replaced_on_request(tiny, tmp_path: Path) -> None:
    for save in (save_folder, save_single_file):
        path = tmp_path / save.__name__
        save(tiny, path)
        with pytest.raises(CheckpointError, match="exists already; give another name"):
            save(tiny, path)
        same(open_checkpoint(save(open_checkpoint(path), path, overwrite=True)), tiny)
    assert sorted(os.listdir(tmp_path)) == ["save_folder", "save_single_file"]
    with pytest.raises(CheckpointError, match="is a file; give the name of a folder"):
        save_folder(tiny, tmp_path / "save_single_file", overwrite=True)
    with pytest.raises(CheckpointError, match="exists already"):
        save_single_file(tiny, tmp_path / "save_folder", overwrite=True)


def test_overwriting_leaves_no_stale_shards_and_spares_other_files(tiny, tmp_path: Path) -> None:
    path = save_folder(tiny, tmp_path / "a", max_shard_bytes=20)
    save_folder(tiny, path, overwrite=True)
    assert len(list(path.glob("*.safetensors"))) == 1
    assert not (path / "model.safetensors.index.json").exists()
    (path / "thesis.doc").write_text("mine")
    with pytest.raises(CheckpointError, match=r"holds 'thesis.doc', which is no checkpoint file"):
        save_folder(tiny, path, overwrite=True)
    assert (path / "thesis.doc").read_text() == "mine"


def test_a_failed_overwrite_keeps_the_old_folder(tiny, tmp_path: Path) -> None:
    path = save_folder(tiny, tmp_path / "a")
    bad = dataclasses.replace(tiny, source=ArraySource({"w": np.array([1e9], np.float32)}))
    with pytest.raises(CheckpointError, match="does not fit f16"):
        save_folder(bad, path, dtype=F16, overwrite=True)
    same(open_checkpoint(path), tiny)
    assert os.listdir(tmp_path) == ["a"]


def test_shards_that_are_links_into_a_download_cache_open(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    weights(tmp_path / "blobs" / "123", "w")
    snapshot = folder(
        tmp_path / "snapshot", **{"model.safetensors.index.json": {"weight_map": {"w": "s"}}}
    )
    (snapshot / "s").symlink_to("../blobs/123")
    assert open_checkpoint(snapshot).source.names() == ("w",)


@pytest.mark.parametrize(
    "shard",
    ["../s", "/s", "a/../../s", "C:s", "C:\\s", "..\\s", "a\\b", "", ".", "a\0b", 3, None]
    + ["x" * 5000],
)
def test_shard_names_that_leave_the_folder_are_refused(tmp_path: Path, shard: object) -> None:
    weights(tmp_path / "s", "w")
    path = folder(tmp_path / "m", **{"model.safetensors.index.json": {"weight_map": {"w": shard}}})
    with pytest.raises(CheckpointError, match=r"tensor 'w': shard .* must name a file inside") as e:
        open_checkpoint(path)
    assert len(str(e.value)) < len(str(path)) + 250


def test_weights_that_are_no_regular_file_are_refused_without_waiting(tmp_path: Path) -> None:
    """Opening a pipe for reading waits until somebody writes."""
    path = folder(tmp_path / "m")
    os.mkfifo(path / "model.safetensors")
    for opened in (path, path / "model.safetensors"):
        with pytest.raises(CheckpointError, match="cannot be read: it is no regular file"):
            open_checkpoint(opened)


@pytest.mark.parametrize("index", [{}, {"weight_map": {}}, {"weight_map": []}])
def test_an_index_without_weights_is_refused(tmp_path: Path, index: dict) -> None:
    path = folder(tmp_path / "m", **{"model.safetensors.index.json": index})
    with pytest.raises(CheckpointError, match="'weight_map' must map tensor names to shard"):
        open_checkpoint(path)


def test_missing_shards_and_tensors_are_named_together(tmp_path: Path) -> None:
    where = {"a": "1", "b": "2", "c": "3"}
    path = folder(tmp_path / "m", **{"model.safetensors.index.json": {"weight_map": where}})
    weights(path / "1", "x")
    with pytest.raises(CheckpointError, match=r"2 shards are missing \(2, 3\); download them"):
        open_checkpoint(path)
    weights(path / "2", "x")
    weights(path / "3", "c")
    with pytest.raises(CheckpointError, match=r"2 tensors .*\('a' in 1, 'b' in 2\); fetch"):
        open_checkpoint(path)


def test_pickled_weights_are_never_opened(tmp_path: Path) -> None:
    path = folder(tmp_path / "m", **{"pytorch_model.bin": "boom"})
    with pytest.raises(CheckpointError, match=r"pytorch_model.bin, a pickle.*convert .*safetens"):
        open_checkpoint(path)


@pytest.mark.parametrize("with_config", [True, False])
def test_a_folder_that_only_holds_gguf_says_so(tmp_path: Path, with_config: bool) -> None:
    path = folder(tmp_path / "m", **{"model-q4.gguf": "GGUF"})
    if not with_config:
        (path / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"model-q4.gguf, a GGUF file, which.*give the path"):
        open_checkpoint(path)


def test_folders_and_files_without_the_needed_parts_say_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="does not exist; give a model folder"):
        open_checkpoint(tmp_path / "none")
    with pytest.raises(CheckpointError, match=r"has no config.json"):
        open_checkpoint(tmp_path)
    path = folder(tmp_path / "m")
    weights(path / "other.safetensors", "w")
    with pytest.raises(CheckpointError, match=r"other safetensors: other.safetensors\); download"):
        open_checkpoint(path)
    with pytest.raises(CheckpointError, match=r"metadata has no 'config.json'.*open the folder"):
        open_checkpoint(path / "other.safetensors")
    (path / "config.json").write_text("[]")
    with pytest.raises(CheckpointError, match=r"config.json holds a JSON list"):
        open_checkpoint(path)


def test_a_separate_chat_template_is_found_and_survives_saving(tmp_path: Path) -> None:
    path = folder(
        tmp_path / "m", **{"chat_template.jinja": "{{ é }}", "tokenizer_config.json": {"a": 1}}
    )
    weights(path / "model.safetensors", "w")
    opened = open_checkpoint(path)
    assert opened.tokenizer_config == {"a": 1, "chat_template": "{{ é }}"}
    same(opened, open_checkpoint(save_single_file(opened, tmp_path / "one")))


def test_gpt2_tokenizer_files_open_as_a_pair(tmp_path: Path) -> None:
    path = shutil.copytree(DEMO.parent / "gpt2-tokenizer", tmp_path / "m")
    (path / "config.json").write_text("{}")
    weights(path / "model.safetensors", "w")
    pair = open_checkpoint(path).tokenizer
    assert isinstance(pair, BpeFiles)
    assert Tokenizer.from_gpt2(pair.vocab, pair.merges).encode(" world") == [995]


def test_archives_keep_names_order_types_and_metadata(tmp_path: Path) -> None:
    arrays = {"z": np.array(True), "a": np.array([1.5], BF16.numpy), "e": np.zeros((0, 3))}
    save_archive(tmp_path / "t", arrays, {"seed": "1"})
    loaded = load_archive(tmp_path / "t")
    assert list(loaded.arrays) == ["z", "a", "e"]
    assert loaded.metadata == {"seed": "1"}
    for name, array in arrays.items():
        assert loaded.arrays[name].dtype == array.dtype
        assert loaded.arrays[name].tobytes() == array.tobytes()
        assert loaded.arrays[name].shape == array.shape


STORED = ArraySource(
    {"wte": np.zeros((4, 2), np.float16), "mask": np.zeros(1), "ids": np.zeros(2, "i4")}
)


def test_parameters_that_fit_come_back_under_the_expected_names() -> None:
    expected = {"wte": spec("f32", 4, 2), "head": spec("f32", 4, 2), "ids": spec("i32", 2)}
    view = check_parameters(expected, STORED, ignore=["ma*"], aliases={"head": "wte", "ids": "wte"})
    assert view.names() == ("wte", "head", "ids")
    assert np.shares_memory(view.read("head"), STORED.read("wte"))
    assert view.read("ids").dtype == np.int32


def test_everything_that_does_not_fit_is_named_at_once() -> None:
    expected = {"wte": spec("f32", 2, 4), "ids": spec("i64", 2)}
    expected |= {f"h.{i}": spec("f32", 1) for i in range(7)}
    with pytest.raises(CheckpointError) as caught:
        check_parameters(expected, STORED, where="m")
    assert str(caught.value) == (
        "m: does not fit the model: 7 tensors missing (h.0, h.1, h.2, h.3, and 3 more); "
        "1 tensors not expected (mask); 2 tensors of another shape or kind "
        "(wte is f16[4,2], expected f32[2,4], ids is i32[2], expected i64[2]); check config.json"
    )


@pytest.mark.parametrize("length", [4, 60, 119, 121, 65000])
def test_a_message_about_many_tensors_stays_short(length: int) -> None:
    names = [f"{number:04}".ljust(length, "n") for number in range(3000)]
    stored = ArraySource({name: np.zeros(1) for name in names[:2000]})
    expected = dict.fromkeys(names[1000:], spec("f32", 2))
    with pytest.raises(CheckpointError) as caught:
        check_parameters(expected, stored, where="m")
    said = str(caught.value)
    assert len(said) <= 600
    assert "1000 tensors missing (2000" in said and "1000 tensors not expected (0000" in said
    assert "1000 tensors of another shape or kind (1000" in said
    assert said.count(", and 996 more") == (2 if length == 4 else 0)
