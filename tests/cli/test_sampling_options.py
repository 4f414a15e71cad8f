"""How ``ptir run`` samples: as the model asks, where the command line is silent."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import ptir
from ptir.checkpoint import open_checkpoint, save_folder
from ptir.errors import CheckpointError
from ptir.runtime.gguf_file import save_gguf
from running import REF, Command, command

__all__ = ["command"]

pytestmark = pytest.mark.turns(2)

OWN: dict[str, Any] = {"do_sample": True, "temperature": 1.5, "top_k": 20, "top_p": 0.9}
SHORT = ("-p", "ROMEO:", "-n", 12, "--json", "--backend", "ref", "--seed", "1")
EXPLICIT = ("--temp", "1.5", "--top-k", "20", "--top-p", "0.9")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return asking(tmp_path_factory.mktemp("asking"), OWN)


def asking(path: Path, said: dict[str, Any]) -> Path:
    """The demo model in a folder whose ``generation_config.json`` says so."""
    demo = ptir.load_model("demo", backend=REF).checkpoint
    return save_folder(replace(demo, generation_config=said), path / "model")


def test_what_nobody_says_is_as_the_model_asks(folder: Path, command: Command) -> None:
    said = command("run", "demo", *SHORT, *EXPLICIT)
    found = command("run", folder, *SHORT)
    assert found.value["text"] == said.value["text"] != command("run", "demo", *SHORT).value["text"]
    assert found.value["sampling"] == {"temperature": 1.5, "top_k": 20, "top_p": 0.9, "seed": 1}
    assert "sampling as the model asks: temperature 1.5, top_k 20, top_p 0.9; " in found.err
    assert "sampling as" not in said.err


def test_a_file_asks_as_its_folder_does(folder: Path, tmp_path: Path, command: Command) -> None:
    file = save_gguf(open_checkpoint(folder), tmp_path / "m.gguf")
    one, other = (command("run", model, *SHORT).value for model in (folder, file))
    assert one["sampling"] == other["sampling"]
    assert one["text"] == other["text"]


def test_the_command_line_is_stronger(folder: Path, command: Command) -> None:
    found = command("run", folder, *SHORT, "--top-k", "3", "--min-p", "0.1")
    asked = {"temperature": 1.5, "top_k": 3, "top_p": 0.9, "min_p": 0.1, "seed": 1}
    assert found.value["sampling"] == asked
    assert "temperature 1.5, top_p 0.9; " in found.err
    greedy = command("run", folder, *SHORT, "--temp", "0")
    assert greedy.value["text"] == command("run", "demo", *SHORT, "--temp", "0").value["text"]
    assert "sampling as" not in greedy.err


def test_a_model_that_asks_for_nothing_has_our_temperature(command: Command) -> None:
    found = command("run", "demo", *SHORT)
    assert found.value["sampling"] == {"temperature": 0.8, "seed": 1}
    assert found.value["text"] == command("run", "demo", *SHORT, "--temp", "0.8").value["text"]
    drawn = command("run", "demo", *SHORT[:-2])
    again = command("run", "demo", *SHORT[:-1], drawn.value["sampling"]["seed"])
    assert again.value["text"] == drawn.value["text"]


def test_a_model_that_does_not_sample_is_greedy(tmp_path: Path, command: Command) -> None:
    found = command("run", asking(tmp_path, {**OWN, "do_sample": False}), *SHORT)
    assert found.value["sampling"]["temperature"] == 0
    assert found.value["text"] == command("run", "demo", *SHORT, "--temp", "0").value["text"]


def test_what_is_not_applied_is_told(tmp_path: Path, command: Command) -> None:
    said = {"top_k": -1, "num_beams": 4, "typical_p": 1.0, "mirostat": 2, "bad_words_ids": []}
    found = command("run", asking(tmp_path, said), *SHORT)
    assert "what the model asks besides is not applied: mirostat, num_beams" in found.err
    assert found.value["sampling"] == {"temperature": 0.8, "top_k": 0, "seed": 1}


@pytest.mark.parametrize(
    ("said", "rule"),
    [
        ({"temperature": "hot"}, "temperature 'hot': must be a number >= 0"),
        ({"temperature": 1e400}, "temperature inf: must be a number >= 0"),
        ({"temperature": -1}, "temperature -1: must be a number >= 0"),
        ({"top_k": 10**12}, "top_k 1000000000000: must be an integer in"),
        ({"top_k": True}, "top_k True: must be an integer in"),
        ({"top_p": []}, "top_p \\[\\]: must be a number in"),
        ({"min_p": float("nan")}, "min_p nan: must be a number in"),
        ({"repetition_penalty": 0}, "repetition_penalty 0: must be a number > 0"),
        ({"do_sample": "yes"}, "do_sample 'yes' must be true or false"),
    ],
)
def test_a_value_out_of_range_is_refused(tmp_path: Path, said: dict[str, Any], rule: str) -> None:
    loaded = ptir.load_model("demo", backend=REF)
    loaded.checkpoint = replace(loaded.checkpoint, generation_config=said)
    with pytest.raises(CheckpointError, match=f"generation_config: {rule}.*--temp 0"):
        _ = loaded.default_sampling


def test_python_asks_for_it(folder: Path) -> None:
    loaded = ptir.load_model(str(folder), backend=REF)
    asked = {"temperature": 1.5, "top_k": 20, "top_p": 0.9}
    assert loaded.default_sampling == asked
    one, other = (
        loaded.generate("ROMEO:", max_tokens=8, seed=1, **options)
        for options in (loaded.default_sampling, asked)
    )
    assert one == other
    assert loaded.generate("ROMEO:", max_tokens=8) == loaded.generate(
        "ROMEO:", max_tokens=8, temperature=0
    )
