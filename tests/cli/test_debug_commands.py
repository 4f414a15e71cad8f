"""``ptir trace``, ``diff``, ``verify`` and ``bisect``: what they print, write and refuse."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from ptir.checkpoint import load_archive, save_archive, save_folder
from ptir.cli.main import main
from ptir.ir.printer import print_program
from random_programs import COLUMNS, ROWS, random_program
from running import SMALL, Command, command, small_checkpoint

__all__ = ["command"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "model"
    save_folder(small_checkpoint(), path)
    return path


def test_a_trace_holds_every_layer_and_equals_itself(
    folder: Path, tmp_path: Path, command: Command
) -> None:
    one, other = tmp_path / "one.safetensors", tmp_path / "other.safetensors"
    value = command("trace", folder, "--tokens", "1,2,3", "--out", one, "--json").value
    assert value["token_ids"] == [1, 2, 3] and [*value["layers"]][-1] == "logits"
    assert {"h.0.attn", "h.1.mlp", "ln_f"} <= value["layers"].keys()
    command("trace", folder, "--tokens", "1,2,3", "--out", other)
    done = command("diff", one, other)
    assert done.code == 0 and "wrong" not in done.out and "h.1.mlp" in done.out


def test_diff_names_the_first_layer_that_differs(
    folder: Path, tmp_path: Path, command: Command
) -> None:
    one, other = tmp_path / "one.safetensors", tmp_path / "other.safetensors"
    command("trace", folder, "--tokens", "1,2,3", "--out", one)
    archive = load_archive(one)
    arrays = {name: np.array(array) for name, array in archive.arrays.items()}
    arrays["h.0.mlp"][..., 0] += 0.5
    arrays["logits"] += 0.5
    save_archive(other, arrays, archive.metadata)
    done = command("diff", one, other)
    assert done.code == 5 and "2 of " in done.err and "h.0.mlp first" in done.err
    stopped = command("diff", one, other, "--stop-on-first-mismatch")
    assert stopped.code == 5 and "logits" not in stopped.out
    assert stopped.out.splitlines()[-1].split()[0] == "h.0.mlp"
    assert command("diff", one, other, "--tolerance", 100).code == 0
    rows = json.loads(command("diff", one, other, "--json").out)["layers"]
    assert [row["name"] for row in rows if not row["right"]] == ["h.0.mlp", "logits"]


def test_diff_refuses_what_is_not_comparable(
    folder: Path, tmp_path: Path, command: Command
) -> None:
    one, other, none = (tmp_path / f"{name}.safetensors" for name in ("one", "other", "none"))
    command("trace", folder, "--tokens", "1,2,3", "--out", one)
    command("trace", folder, "--tokens", "1,2", "--out", other)
    done = command("diff", one, other)
    assert done.code == 2 and "of other tokens (1,2,3 and 1,2)" in done.err
    save_archive(none, {"x": np.zeros(2, "f4")})
    done = command("diff", one, none)
    assert done.code == 1 and "is no trace" in done.err


def test_a_backend_is_not_compared_with_itself(folder: Path, command: Command) -> None:
    for name in ("verify", "bisect"):
        done = command(name, folder)
        assert done.code == 2 and "is compared with itself" in done.err


def test_weights_do_not_come_and_go_while_backends_are_compared(
    folder: Path, command: Command
) -> None:
    done = command("verify", folder, "--device-memory", "1MiB")
    assert done.code == 2 and "leave --device-memory out" in done.err


@pytest.fixture
def program(tmp_path: Path) -> tuple[Path, Path]:
    path, arrays = tmp_path / "p.ptir", tmp_path / "arrays.safetensors"
    path.write_text(print_program(random_program(4)), encoding="utf-8")
    rng = np.random.default_rng(4)
    save_archive(arrays, {n: rng.normal(size=(ROWS, COLUMNS)).astype("f4") for n in ("x", "y")})
    return path, arrays


def test_programs_need_their_arrays_and_no_text(
    program: tuple[Path, Path], command: Command
) -> None:
    path, arrays = program
    done = command("verify", path, "text", "--input", arrays)
    assert done.code == 2 and "a program takes no text" in done.err
    assert SMALL["n_layer"] == 2


@pytest.mark.slice(2)
@pytest.mark.parametrize("model", ["random:vit-tiny", "random:bert-tiny", "random:whisper-micro"])
def test_models_that_see_hear_or_read_are_verified(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run over an image, a text or a recording is compared as a step of others is."""
    assert main(["verify", model, "--backend", "c", "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["right"] and len(value["layers"]) > 5
    assert main(["verify", model, "--backend", "c", "--step", "decode"]) == 2
    assert "for models that generate" in capsys.readouterr().err


@pytest.mark.parametrize("model, port", [("vit-tiny", "pixels"), ("bert-tiny", "kinds")])
def test_models_that_see_or_read_are_dumped(model: str, port: str, command: Command) -> None:
    ports = command("dump", f"random:{model}", "--backend", "ref", "--json").value["ports"]
    assert port in {one["name"] for one in ports}
    options = ("--backend", "ref", "--folded", "--json")
    assert isinstance(command("explain", f"random:{model}", *options).value, list)


def test_a_run_over_texts_is_reported(tmp_path: Path, command: Command) -> None:
    page = tmp_path / "page.html"
    options = ("--prefill", 2, "--batch", 2, "-r", 1, "--backend", "ref", "--out", page)
    done = command("report", "random:bert-tiny", *options)
    assert "a run over texts of 4 tokens together" in done.out, done.err
    assert "embeddings" in page.read_text(encoding="utf-8")


def test_an_image_is_traced(tmp_path: Path, command: Command) -> None:
    pillow = pytest.importorskip("PIL.Image")
    file, one, other = (tmp_path / name for name in ("a.png", "one.st", "other.st"))
    pillow.fromarray(np.arange(48 * 48 * 3, dtype=np.uint8).reshape(48, 48, 3)).save(file)
    model = ("trace", "random:vit-tiny", "--backend", "ref")
    value = command(*model, file, "--out", one, "--json").value
    assert "token_ids" not in value and {"features", "scores"} <= value["layers"].keys()
    command(*model, file, "--out", other)
    assert command("diff", one, other).code == 0
    refused = command(*model, "--tokens", "1,2", "--out", other)
    assert refused.code == 2 and "give an image file" in refused.err
    text = ("trace", "random:bert-tiny", "--backend", "ref", "--tokens", "1,2", "--out", other)
    assert command(*text).code == 0
    assert "other image" in command("diff", one, other).err


def test_traces_of_other_models_are_named(folder: Path, tmp_path: Path, command: Command) -> None:
    """Logits are no layer: any two models have them."""
    one, other = tmp_path / "one.safetensors", tmp_path / "other.safetensors"
    for model, out in ((folder, one), ("random:llama-tiny", other)):
        command("trace", model, "--tokens", "1,2,3", "--backend", "ref", "--out", out)
    done = command("diff", one, other)
    assert done.code == 2 and "share no layer" in done.err and "random:llama-tiny has" in done.err
