"""The commands that take a model take a GGUF file, and say what its weights are stored as."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from gguf import GGMLQuantizationType as Kind

import ptir
from gguf_models import kind_of_matrices, write
from ptir.checkpoint import open_checkpoint
from running import Command, command, small_checkpoint

__all__ = ["command"]

DEMO = Path(ptir.__file__).parent / "data" / "demo"


@pytest.fixture
def small(tmp_path: Path) -> Path:
    checkpoint = small_checkpoint()
    return write(tmp_path / "small.gguf", checkpoint, kind_of_matrices(Kind.Q8_0)).path


def test_run_takes_the_tokenizer_that_lies_beside_the_file(
    tmp_path: Path, command: Command
) -> None:
    demo = write(tmp_path / "demo.gguf", open_checkpoint(DEMO)).path
    shutil.copy(DEMO / "tokenizer.json", tmp_path)
    arguments = ("-p", "ROMEO:", "-n", 8, "--temp", "0", "--json", "--backend", "ref")
    found, wanted = (command("run", one, *arguments).value for one in (demo, "demo"))
    for key in ("text", "token_ids", "prompt_ids"):
        assert found[key] == wanted[key]


def test_run_without_a_tokenizer_takes_tokens_alone(small: Path, command: Command) -> None:
    arguments = ("-n", 3, "--temp", "0", "--backend", "ref")
    assert len(command("run", small, "--tokens", "1,2", *arguments).out.split(",")) == 3
    refused = command("run", small, "-p", "x", *arguments)
    assert refused.code == 2 and "has no tokenizer; give token ids (--tokens)" in refused.err


def test_inspect_shows_what_weights_are_stored_as(small: Path, command: Command) -> None:
    value = command("inspect", small, "--json").value
    assert (value["model_type"], value["dtypes"]) == ("gpt2", ["Q8_0", "f32"])
    assert value["files"] == ["small.gguf"]
    stored = {row["name"]: row["dtype"] for row in value["tensor_list"]}
    assert (stored["wte.weight"], stored["ln_f.bias"]) == ("Q8_0", "f32")
    plain = sum(
        4 * row["shape"][0] * (row["shape"][1] if len(row["shape"]) == 2 else 1)
        for row in value["tensor_list"]
        if row["dtype"] == "f32"
    )
    blocks = (value["parameters"] - plain // 4) // 32
    assert value["bytes"] == plain + 34 * blocks


def test_bench_says_the_format_of_the_file(small: Path, command: Command) -> None:
    found = command("bench", small, "-p", 4, "-n", 2, "-r", 1, "--backend", "ref").out
    assert "Q8_0" in found and "tg2" in found


def test_convert_writes_the_numbers_of_the_blocks(
    tmp_path: Path, small: Path, command: Command
) -> None:
    assert command("convert", small, tmp_path / "plain.safetensors").code == 0
    arguments = ("--tokens", "1,2,3", "-n", 6, "--temp", "0", "--json", "--backend", "ref")
    found, wanted = (
        command("run", tmp_path / name, *arguments).value["token_ids"]
        for name in ("plain.safetensors", "small.gguf")
    )
    assert found == wanted


def test_fast_takes_weights_that_are_stored_in_blocks_where_there_are_instructions(
    small: Path, command: Command
) -> None:
    refused = command("run", small, "--tokens", "1", "--fast", "--backend", "ref")
    assert refused.code == 4
    assert "fast: ref on 'numpy' gains nothing from quantized_linear=int8 (" in refused.err


def test_a_damaged_file_is_an_error_of_checkpoints(tmp_path: Path, command: Command) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF\1\0\0\0" + bytes(16))
    for name in ("inspect", "run"):
        arguments = () if name == "inspect" else ("-p", "x", "--backend", "ref")
        refused = command(name, tmp_path / "m.gguf", *arguments)
        assert refused.code == 1 and "[PTIR-301]" in refused.err
        assert "version 1, whose lengths have 32 bits" in refused.err


def test_convert_writes_a_file_that_runs_as_the_folder_and_comes_back(
    tmp_path: Path, command: Command
) -> None:
    assert command("convert", "demo", tmp_path / "demo.gguf").code == 0
    assert command("convert", tmp_path / "demo.gguf", tmp_path / "back").code == 0
    refused = command("convert", "demo", tmp_path / "demo.gguf")
    assert refused.code == 1 and "exists already" in refused.err
    arguments = ("-p", "ROMEO:", "-n", 6, "--temp", "0", "--json", "--backend", "ref")
    places = ("demo", tmp_path / "demo.gguf", tmp_path / "back")
    said = [command("run", one, *arguments).value["text"] for one in places]
    assert said[0] == said[1] == said[2] != ""
