"""``ptir eval``: what it prints, and how it refuses."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from ptir.runtime.likelihood import perplexity
from running import Command, command, model

__all__ = ["command"]

TEXT = "First Citizen:\nBefore we proceed any further, hear me speak.\n\nAll:\nSpeak, speak.\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path


def test_json_of_eval_says_what_was_measured_and_how(file: Path, command: Command) -> None:
    value = command("eval", "demo", file, "--window", 16, "--stride", 8, "--json").value
    wanted = perplexity(model(dtype="auto"), TEXT, window=16, stride=8)
    given = {"workload": "perplexity", "model": "demo", "file": str(file), "backend": "ref"}
    assert value.items() >= given.items()
    for name in ("window", "stride", "windows", "text_tokens", "counted", "evaluated", "nll"):
        assert value[name] == getattr(wanted, name)
    assert value["perplexity"] == math.exp(value["nll"])
    assert value["perplexity_error"] == value["perplexity"] * value["standard_error"]
    assert value["tokens_per_second"] == value["evaluated"] / value["seconds"]


def test_eval_shows_one_line_and_its_weights(file: Path, command: Command) -> None:
    arguments = ("--workload", "perplexity", "--window", 8, "--quant", "int8")
    shown = command("eval", "demo", file, *arguments).out.splitlines()
    assert shown[0].split() == ["model", "weights", "tokens", "nll", "perplexity", "tok/s"]
    assert shown[1].startswith("demo   int8     ") and shown[1].count("±") == 2 and len(shown) == 2


REFUSED = {
    "empty": (b"", "is empty; a text of two tokens at least is needed"),
    "latin": (b"\xe4h", "is not UTF-8 text: 'utf-8' codec can't decode byte 0xe4 in position 0"),
    "short": (b"Hi", "fill no window of 256"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_eval_refuses_files_that_are_no_text(case: str, tmp_path: Path, command: Command) -> None:
    held, message = REFUSED[case]
    (tmp_path / case).write_bytes(held)
    done = command("eval", "demo", tmp_path / case)
    assert done.code == 2 and message in done.err and not done.out


def test_eval_refuses_files_and_workloads_that_are_none(file: Path, command: Command) -> None:
    done = command("eval", "demo", file.with_name("none"))
    assert done.code == 2 and "does not exist" in done.err
    done = command("eval", "demo", file, "--workload", "mmlu")
    assert done.code == 2 and "'mmlu' is not one of 'perplexity', 'accuracy'" in done.err
