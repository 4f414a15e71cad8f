"""Comparing with a peer in another process: what is found, and how it fails."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ptir.checkpoint import save_folder
from ptir.cli.eval_measures import unsteady
from ptir.cli.eval_options import LIBRARIES
from ptir.errors import UnsupportedError, UsageError
from ptir.peers import process
from ptir.peers.process import Library, PeerProcess, library
from ptir.peers.workloads import Greedy, _arranged, alternating
from running import Command, command, small_checkpoint

__all__ = ["command"]

FAKE = Library("PyTorch", (sys.executable, str(Path(__file__).with_name("fake_peer.py"))), ())
IDS = ("--tokens", "5,9,33,2")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small GPT-2, and the fake in PyTorch's place."""
    monkeypatch.setitem(process.LIBRARIES, "torch", FAKE)
    return save_folder(small_checkpoint(), tmp_path / "small")


def test_outputs_and_tokens_that_agree_are_right(
    folder: Path, tmp_path: Path, command: Command
) -> None:
    page = tmp_path / "page.html"
    arguments = ("--workload", "validate", "--against", "torch", *IDS, "-n", 5, "--threads", 1)
    value = command("eval", folder, *arguments, "--json", "--html", page).value
    assert value["right"] and value["against"]["threads"] == "1"
    (found,) = value["outputs"]
    assert (found["differing"], found["max_abs"], found["best_agree"]) == (0, 0, 4)
    assert found["greedy"]["same"] == 5 and found["greedy"]["ahead"] is None
    assert "outputs beside torch" in page.read_text(encoding="utf-8")


FAULTS = {
    "output": (5, "the output is off by"),
    "greedy": (5, "token 2 differs from torch's"),
    "close": (0, "ahead of its second by 1e-07 of the largest logit: a close call"),
    "refuses": (1, "[PTIR-301]: PyTorch: no such tensor"),
    "breaks": (4, "PyTorch cannot open the model: ZeroDivisionError: 'by nothing'"),
    "dies": (4, "ended with 7 when asked to open the model: the last words"),
}


@pytest.mark.slice(4)
@pytest.mark.parametrize("fault", FAULTS)
def test_what_differs_or_fails_is_told(
    fault: str, folder: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAULT", fault)
    code, message = FAULTS[fault]
    done = command("eval", folder, "--workload", "validate", "--against", "torch", *IDS, "-n", 4)
    assert done.code == code and message in done.err


@pytest.mark.parametrize("ours", ["eval", "verify"])
def test_the_first_layer_that_differs_is_named(
    ours: str, folder: Path, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAULT", "transformer.h.1.ln_1")
    written = tmp_path / "rows.csv"
    more = ("--workload", "trace", "--csv", written) if ours == "eval" else ()
    done = command(ours, folder, *more, "--against", "torch", *IDS)
    assert done.code == 5 and "is wrong in h.1.ln_1: 0.33 of the largest" in done.err
    assert done.out.count("wrong") == 1
    if ours == "eval":
        assert "the peer has no such module for wpe" in done.err
        with written.open(encoding="utf-8", newline="") as file:
            rows = [*csv.DictReader(file)]
        (wrong,) = (row for row in rows if row["verdict"] == "wrong")
        assert wrong["in torch"] == "transformer.h.1.ln_1" and float(wrong["relative"]) > 0.3


def test_perplexity_stands_beside_the_peers(folder: Path, tmp_path: Path, command: Command) -> None:
    text = tmp_path / "text.txt"
    text.write_text("To be, or not to be, that is the question", encoding="utf-8")
    value = command(
        *("eval", "demo", text, "--against", "torch", "--window", 8, "--stride", 8, "--json")
    ).value
    assert value["nll_difference"] == pytest.approx(-0.25, abs=1e-9)
    assert value["theirs"]["counted"] == value["counted"]


def test_speeds_are_ratios_of_rounds(folder: Path, command: Command) -> None:
    arguments = ("--workload", "bench", "--against", "torch", "-p", 8, "-n", 3, "-r", 2)
    rows = command("eval", folder, *arguments, "--json").value["rows"]
    assert [row["test"] for row in rows] == ["pp8", "tg3"]
    for row, theirs in zip(rows, (1000, 100), strict=True):
        assert row["speeds"]["torch"] == pytest.approx([theirs] * 2)
        wanted = [speed / theirs for speed in row["speeds"]["ptir"]]
        assert row["ratios"] == pytest.approx(wanted)


MICRO = "random:whisper-micro"


@pytest.mark.slice(2)
@pytest.mark.parametrize(
    ("fault", "code", "said"),
    [
        ("", 0, ""),
        ("output", 5, "the output is off by"),
        ("greedy", 5, "token 2 differs from torch's"),
        ("ends", 5, "token 2 differs from torch's"),
    ],
)
def test_windows_of_speech_are_compared_with_the_tokens_in_them(
    fault: str,
    code: int,
    said: str,
    folder: Path,
    command: Command,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FAULT", fault)
    arguments = ("--workload", "validate", "--against", "torch", "-n", 5, "--json")
    done = command("eval", MICRO, *arguments)
    assert done.code == code and said in done.err
    (found,) = json.loads(done.out)["outputs"]
    assert found["best_of"] == 4 and found["greedy"]["same"] == (
        2 if fault in ("greedy", "ends") else 5
    )


def test_windows_and_tokens_of_speech_are_timed_on_both_sides(
    folder: Path, command: Command
) -> None:
    arguments = ("--workload", "bench", "--against", "torch", "-n", 3, "-r", 2, "--json")
    rows = command("eval", MICRO, *arguments).value["rows"]
    assert [row["test"] for row in rows] == ["enc50", "tg3"]
    for row, theirs in zip(rows, (200, 50), strict=True):
        assert row["speeds"]["torch"] == pytest.approx([theirs] * 2)
    done = command("eval", MICRO, *arguments[:4], "--batch", 2)
    assert done.code == 2 and "--batch is for images and encoders" in done.err


def test_rounds_alternate_behind_one_that_warms_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ptir.peers.workloads.PAUSE", 0.0)
    said: list[str] = []

    def called(name: str) -> float:
        said.append(name)
        return float(len(said))

    found = alternating({"a": lambda: called("a"), "b": lambda: called("b")}, 2)
    assert said == [*"ababab"] and found == {"a": (3.0, 5.0), "b": (4.0, 6.0)}


def test_a_token_may_differ_where_the_error_explains_it() -> None:
    assert Greedy((1, 2), (1, 3), 1, 1.9e-4).right(1e-4)
    assert not Greedy((1, 2), (1, 3), 1, 2.1e-4).right(1e-4)
    assert Greedy((1, 2), (1, 2), 2, None).right(0.0)


def arrays(*shapes: tuple[int, ...]) -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]


def test_results_are_brought_into_the_order_of_ours() -> None:
    (image,) = arrays((1, 3, 4, 5))
    for axes in ((0, 3, 1, 2), (0, 2, 1, 3)):
        turned = image.transpose(axes)
        assert any(np.array_equal(one, image) for one in _arranged(image, [turned]))
    (square,) = arrays((1, 4, 4, 4))
    turned = square.transpose(0, 3, 1, 2)
    assert any(np.array_equal(one, square) for one in _arranged(square, [turned]))
    q, k = arrays((1, 6, 2), (1, 6, 3))
    beside = np.concatenate([q, k], -1)
    assert [one.tolist() for one in _arranged(beside, [q, k])] == [beside.tolist()]
    (tokens,) = arrays((1, 12, 5))
    grid = tokens.reshape(1, 3, 4, 5)
    assert [one.tolist() for one in _arranged(grid, [tokens])] == [grid.tolist()]
    (sound,) = arrays((1, 7, 5))
    (turned,) = _arranged(sound, [sound.transpose(0, 2, 1)])
    assert turned.tolist() == sound.tolist()
    assert not [*_arranged(image, [])] and not [*_arranged(q, [k])]
    assert not [*_arranged(image, arrays((1, 5, 4, 3)))]


def test_a_library_that_is_missing_is_told_with_the_command(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    lacking = Library("PyTorch", FAKE.command, ("numpy", "no_such_package"))
    monkeypatch.setitem(process.LIBRARIES, "torch", lacking)
    done = command("eval", "demo", "--workload", "validate", "--against", "torch")
    assert done.code == 4
    assert "needs no_such_package, which ptir does not depend on" in done.err
    assert "pip install numpy no_such_package" in done.err
    with pytest.raises(UsageError, match="unknown library 'jax'"):
        library("jax")


def test_a_program_that_cannot_be_started_is_told(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="cannot be started: No such file"):
        PeerProcess(Library("PyTorch", (str(tmp_path / "none"),), ()))


def test_a_closed_peer_leaves_no_process(folder: Path) -> None:
    with PeerProcess(FAKE) as peer:
        peer.open(folder, "generate", 1)
        assert peer.output(np.array([1, 2], np.int32)).shape == (2, 97)
        with pytest.raises(UsageError, match="no such file"):
            peer.open(folder / "none", "generate", 1)
    assert peer._process.returncode is not None
    assert not Path(peer._folder.name).exists()


def test_rounds_that_are_far_apart_are_told() -> None:
    tests = [{"test": "pp8", "speeds": {"ptir": [10.0, 14.0], "torch": [10.0, 16.0]}}]
    (told,) = unsteady(tests)
    assert told.startswith("pp8 of torch: rounds are more than 1.5 times apart")
    assert not unsteady([{"test": "pp8", "speeds": {"ptir": [10.0, 14.0]}}])


def test_the_names_of_libraries_are_those_of_the_table() -> None:
    assert tuple(process.LIBRARIES) == LIBRARIES


REFUSED = {
    "nothing to compare with": (("--workload", "validate"), "give --against torch"),
    "an option of another": (
        ("--workload", "trace", "--against", "torch", "-r", "2"),
        "-r is for --workload bench; leave it out for trace",
    ),
    "inputs of none": (("x", "--workload", "bench"), "INPUTS are for --workload perplexity"),
    "no truth": (("x", "--workload", "accuracy"), "needs --truth FILE"),
    "no file": (("--workload", "perplexity"), "give one file of text"),
    "a budget": (
        ("--workload", "trace", "--against", "torch", "--device-memory", "1MiB"),
        "leave --device-memory out",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_options_that_do_not_fit_are_refused(case: str, command: Command) -> None:
    arguments, message = REFUSED[case]
    done = command("eval", "demo", *arguments)
    assert done.code == 2 and message in done.err


def test_verify_beside_a_library_takes_whole_texts_alone(command: Command) -> None:
    done = command("verify", "demo", "--against", "torch", "--step", "decode")
    assert done.code == 2 and "leave --input and --step" in done.err
