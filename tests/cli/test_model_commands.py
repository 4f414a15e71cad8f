"""Other commands that take a model: inspect, convert, pull, and their options."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
import pytest
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled

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
    assert "1557611200" in listed.out


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
    assert command("convert", "demo", out, "--json").value == {"path": str(out), "tensors": 76}
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


def test_pull_prints_where_the_model_is(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: dict[str, Any] = {}
    (tmp_path / "config.json").touch()

    def download(hub_id: str, **options: Any) -> str:
        asked.update(options, hub_id=hub_id)
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert command("pull", "owner/name", "--revision", "v1").out == f"{tmp_path}\n"
    assert (asked["hub_id"], asked["revision"]) == ("owner/name", "v1")
    assert not any(name.endswith((".bin", ".pt", ".pth")) for name in asked["allow_patterns"])
    expected = {"model": "owner/name", "path": str(tmp_path)}
    assert command("pull", "owner/name", "--json").value == expected


def test_pull_of_a_pattern_fetches_that_file_alone(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def download(hub_id: str, **options: Any) -> str:
        asked.append((hub_id, options["allow_patterns"], options["revision"]))
        return "/cache/snapshot"

    names = ["n-Q8_0.gguf", *(f"q/[n]-Q4_0-0000{n}-of-00002.gguf" for n in (1, 2)), "config.json"]
    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    monkeypatch.setattr(huggingface_hub, "list_repo_files", lambda *_, **__: names)
    found = command("pull", "o/n:q4_0", "--revision", "v1")
    assert found.out == "/cache/snapshot/q/[n]-Q4_0-00001-of-00002.gguf\n"
    parts = [f"q/[[]n]-Q4_0-0000{n}-of-00002.gguf" for n in (1, 2)]
    assert asked == [("o/n", parts, "v1")]
    refused = command("pull", "o/n:Q5_0")
    assert (refused.code, len(asked)) == (1, 1)
    assert "no GGUF file is called or ends in 'Q5_0'; there are o/n:Q8_0, o/n:Q4_0" in refused.err


def test_pull_of_a_repository_of_files_says_which_there_are(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    names = ["n-Q8_0.gguf", "n-Q4_K_M.gguf", "mmproj-n.gguf", "README.md"]
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: str(tmp_path))
    monkeypatch.setattr(huggingface_hub, "list_repo_files", lambda *_, **__: names)
    done = command("pull", "hf.co/o/n")
    said = "o/n has GGUF files: Q4_K_M, Q8_0; fetch one of them with `ptir pull o/n:Q4_K_M`"
    assert (done.code, done.out, done.err) == (1, "", f"error [PTIR-301]: {said}\n")
    names[:2] = []
    assert "o/n has neither config.json nor GGUF files" in command("pull", "o/n").err


NO_ANSWER = next(one for one in HfHubHTTPError.__bases__ if one.__module__ != "builtins")
"""What errors of the library beneath have in common."""


@pytest.mark.parametrize(
    "error",
    [
        LocalEntryNotFoundError("no route\nmore"),
        OfflineModeIsEnabled("no route\nmore"),
        NO_ANSWER("no route\nmore"),
    ],
)
def test_pull_without_a_network_is_one_clear_error(
    error: Exception, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def download(*_: object, **__: object) -> str:
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    done = command("pull", "owner/name")
    assert (done.code, done.out) == (1, "")
    said = "'owner/name' could not be fetched: no route; check the name and the network"
    assert done.err.splitlines() == [f"error [PTIR-301]: {said}"]


def test_fast_says_where_there_is_nothing_to_gain(command: Command) -> None:
    found = command("forward", "demo", "--tokens", "1,2,3", "--fast")
    assert found.code and "weights in f16 have no dot implementation" in found.err
    found = command("forward", "demo", "--tokens", "1,2,3", "--quant", "int8", "--fast")
    assert found.code and "gains nothing from quantized_linear=int8" in found.err
