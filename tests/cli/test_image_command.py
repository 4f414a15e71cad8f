"""``ptir run --image``: what it prints, and what it refuses before it prints anything."""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import image_models
from ptir.checkpoint import save_folder
from ptir.cli.main import main

PIXELS = np.random.default_rng(0).integers(0, 256, (30, 40, 3), np.uint8)


@pytest.fixture
def picture(tmp_path: Path) -> str:
    path = tmp_path / "x.png"
    Image.fromarray(PIXELS).save(path)
    return str(path)


def run(*arguments: str) -> int:
    return main(["run", *arguments, "--backend", "ref"])


def test_classes_are_printed_best_first(
    picture: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = tmp_path / "labels.txt"
    names.write_text("".join(f"kind {n}\n" for n in range(10)))
    options = ("random:vit-tiny", "--image", picture, "--top-k", "3")
    assert run(*options, "--json") == 0
    (shown,) = json.loads(capsys.readouterr().out)["images"]
    best = shown["labels"]
    assert shown["image"] == picture and len(best) == 3
    assert best[0]["probability"] >= best[1]["probability"] >= best[2]["probability"] > 0
    assert run(*options, "--labels", str(names)) == 0
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    assert lines[0].split() == ["probability", "class"]
    first = best[0]
    assert lines[1].split() == [f"{first['probability']:.2%}", "kind", str(first["id"])]
    assert "random weights: what it sees is noise" in printed.err
    assert "1 image in" in printed.err and "0 ops ran elsewhere" in printed.err


def test_several_images_and_stdin(
    picture: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stdin = io.TextIOWrapper(io.BytesIO(Path(picture).read_bytes()))
    monkeypatch.setattr(sys, "stdin", stdin)
    assert run("random:vit-tiny", "--image", picture, "--image", "-", "--top-k", "1") == 0
    _, first, second = capsys.readouterr().out.splitlines()
    assert first.split()[0] == picture and second.split()[0] == "-"
    assert first.split()[1:] == second.split()[1:]


def test_a_model_without_classes_prints_features(
    picture: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case = image_models.cases()["dinov2, timm"]
    given = image_models.checkpoint(case["config"], case["shapes"])
    folder = str(save_folder(given, tmp_path / "m"))
    assert run(folder, "--image", picture, "--json") == 0
    (found,) = json.loads(capsys.readouterr().out)["images"]
    assert len(found["embedding"]) == 24
    assert run(folder, "--image", picture) == 0
    printed = capsys.readouterr()
    wanted = np.array(found["embedding"])
    np.testing.assert_allclose(np.fromstring(printed.out, sep=" "), wanted, rtol=1e-5)
    assert "the model does not say how images are prepared" in printed.err
    assert run(folder, "--image", picture, "--labels", picture) == 4
    assert "cannot classify; it can embed, forward, trace" in capsys.readouterr().err


def test_texts_that_an_image_may_show(picture: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("random:clip-tiny", "--image", picture, "--label", "a cat", "--json") == 0
    (found,) = json.loads(capsys.readouterr().out)["images"]
    assert found["labels"] == [{"id": 0, "name": "a cat", "probability": 1.0}]


REFUSED = [
    (("random:vit-tiny", "--image", "nowhere.png"), 1, "PTIR-303.*cannot be read"),
    (("random:vit-tiny", "hello"), 4, "cannot generate; it can classify"),
    (("demo", "--image", "{picture}"), 4, "cannot embed; it can generate"),
    (("random:vit-tiny", "text", "--image", "{picture}"), 2, "a prompt or --image, not both"),
    (("random:vit-tiny", "--image", "-", "--image", "-"), 2, "stdin is one image"),
    (("demo", "x", "--label", "cat"), 2, "--label and --labels are about images"),
    (("random:clip-tiny", "--image", "{picture}"), 2, "no classes of its own; give labels"),
    (("random:vit-tiny", "--image", "{picture}", "--label", "x"), 2, "10 classes of its own"),
    (("random:vit-tiny", "--image", "{picture}", "--labels", "{short}"), 2, "has 1 labels, and"),
    (("random:vit-tiny", "--image", "{picture}", "--image", "{short}"), 1, "is no image"),
]


@pytest.mark.parametrize(("arguments", "code", "words"), REFUSED)
def test_what_is_wrong_is_one_message_and_no_output(
    arguments: tuple[str, ...],
    code: int,
    words: str,
    picture: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    short = tmp_path / "short.txt"
    short.write_text("only\n")
    given = [one.format(picture=picture, short=short) for one in arguments]
    assert run(*given) == code
    printed = capsys.readouterr()
    assert printed.out == ""
    assert re.search(words, printed.err)


def test_explain_shows_a_run_over_images(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["explain", "random:vit-tiny", "--backend", "ref", "--batch", "2", "-r", "1"]
    assert main([*command, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["step"], shown["tokens"], shown["cache_bytes"]) == ("images", 2, 0)
    assert shown["ops_elsewhere"] == 0 and shown["parameter_bytes"] > 0
