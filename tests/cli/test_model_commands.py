"""Other commands that take a model: inspect, convert, pull, and their options."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ptir.checkpoint import open_checkpoint
from running import (
    GREEDY,
    ROMEO,
    Command,
    command,
)

pytestmark = pytest.mark.turns(2)

__all__ = ["command"]


def test_inspect_describes_a_checkpoint_without_reading_it(command: Command) -> None:
    value = command("inspect", "demo", "--json").value
    assert (value["model_type"], value["dtypes"], value["tokenizer"]) == ("gpt2", ["f16"], True)
    assert value["parameters"] == sum(np.prod(row["shape"]) for row in value["tensor_list"])
    assert value["bytes"] == 2 * value["parameters"]
    assert value["config"]["n_layer"] == 6
    listed = command("inspect", "random:gpt2-xl", "--tensors")
    assert "h.47.mlp.c_proj.weight" in listed.out
    assert "1,557,611,200" in listed.out


def test_inspect_is_for_people(command: Command, tmp_path: Path) -> None:
    command("quantize", "random:llama-tiny", tmp_path / "q4_k.gguf", "--format", "q8_0")
    shown = command("inspect", tmp_path / "q4_k.gguf").out.splitlines()
    rows = dict(line.split(maxsplit=1) for line in shown)
    assert (rows["format"], rows["tokenizer"], rows["parameters"]) == ("Q8_0", "yes", "195,008")
    assert rows["bytes"].endswith(" kB)") and rows["bytes"].startswith("208,512 (")


def test_one_token_has_no_speed(command: Command) -> None:
    one, two = (command(*GREEDY, "-n", n).err for n in (1, 2))
    assert ", 1 token in " in one and "tok/s" not in one
    assert ", 2 tokens in " in two and " tok/s) on ref" in two


def test_what_is_written_is_told_with_its_size(command: Command, tmp_path: Path) -> None:
    for name in ("m.gguf", "m.safetensors", "m"):
        done = command("convert", "random:gpt2-tiny", tmp_path / name)
        assert done.err.startswith(f"wrote {tmp_path / name}: ") and done.err.endswith("B\n")


def test_blocks_that_a_type_does_not_reach_are_told(command: Command, tmp_path: Path) -> None:
    q8 = tmp_path / "q8.gguf"
    command("quantize", "random:llama-tiny", q8, "--format", "q8_0")
    done = command("convert", q8, tmp_path / "f16.gguf", "--dtype", "f16")
    assert done.code == 0 and "Q8_0 stay as they are stored, --dtype is for floats" in done.err
    for out in (tmp_path / "folder", tmp_path / "m.safetensors"):
        assert "stay" not in command("convert", q8, out, "--dtype", "f16").err
    assert "stay" not in command("convert", q8, tmp_path / "same.gguf").err


def test_a_name_of_files_that_are_not_written_is_no_folder(
    command: Command, tmp_path: Path
) -> None:
    out = tmp_path / "m.bin"
    done = command("convert", "random:gpt2-tiny", out)
    assert done.code == 2 and "files that end in .bin are not written; end it in" in done.err
    assert not out.exists()
    assert command("convert", "random:gpt2-tiny", out, "--to", "folder").code == 0 and out.is_dir()
    assert command("convert", "random:gpt2-tiny", tmp_path / "v1.2").code == 0


def test_speculation_leaves_the_text_as_it_is(command: Command) -> None:
    plain = command(*GREEDY, "-n", 24)
    found = command(*GREEDY, "-n", 24, "--speculate", "lookup")
    assert found.out == plain.out
    drafted = command(*GREEDY, "-n", 24, "--draft", "demo")
    assert drafted.out == plain.out
    both = command(*GREEDY, "--draft", "demo", "--speculate", "lookup")
    assert both.code == 2 and "--speculate or --draft, not both" in both.err
    options = ("-p", 0, "-n", 2, "-r", 1, "--json", "--speculate", "lookup")
    rows = command("bench", "demo", *options).value["rows"]
    assert [row["test"] for row in rows] == ["tg2", "tg2+lookup"]


@pytest.mark.parametrize("name", ["folder", "one.safetensors"])
def test_converted_model_gives_the_same_tokens(name: str, command: Command, tmp_path: Path) -> None:
    out = tmp_path / name
    value = command("convert", "demo", out, "--json").value
    nbytes = sum(file.stat().st_size for file in (out, *out.glob("*")) if file.is_file())
    assert value == {"path": str(out), "tensors": 76, "bytes": nbytes}
    value = command("run", out, "ROMEO:", "--temp", 0, "-n", 64, "--json").value
    assert value["token_ids"] == ROMEO["greedy_ids"]
    again = command("convert", "demo", out)
    assert (again.code, again.out) == (1, "")
    assert "exists" in again.err
    assert command("convert", "demo", out, "--overwrite", "--dtype", "bf16").code == 0
    assert str(open_checkpoint(out).source.type("transformer.wte.weight").dtype) == "bf16"


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_narrow_storage_runs(dtype: str, command: Command) -> None:
    value = command(*GREEDY, "-n", 8, "--dtype", dtype, "--json").value
    if dtype == "f16":  # the demo is stored as f16, so nothing is rounded
        assert value["token_ids"] == ROMEO["greedy_ids"][:8]
    assert len(value["token_ids"]) == 8


def test_fast_says_where_there_is_nothing_to_gain(command: Command) -> None:
    found = command("forward", "demo", "--tokens", "1,2,3", "--fast")
    assert found.code and "weights in f16 have no dot implementation" in found.err
    found = command("forward", "demo", "--tokens", "1,2,3", "--quant", "int8", "--fast")
    assert found.code and "gains nothing from quantized_linear=int8" in found.err
