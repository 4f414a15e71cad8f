"""``ptir embed``, ``classify``, ``rerank``: what they print, what they refuse before that."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import ptir
from ptir.checkpoint import load_archive
from ptir.cli.main import main
from running import REF, Command, command

__all__ = ["command"]

TINY = "random:bert-tiny"


def numbers(line: str) -> list[float]:
    return [float(one) for one in line.split()]


def test_a_line_of_numbers_for_each_text(command: Command, tmp_path: Path) -> None:
    wanted = ptir.load_model(TINY, backend=REF).embed(["a cat", "two", "x y"])
    lines = tmp_path / "texts.txt"
    lines.write_text("two\n\nx y\n")
    done = command("embed", TINY, "a cat", "--file", lines)
    assert done.code == 0, done.err
    found = [numbers(line) for line in done.out.splitlines()]
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
    assert "random weights: what it finds is noise" in done.err
    assert "3 texts in" in done.err and "0 ops ran elsewhere" in done.err
    done = command("embed", TINY, "-", "--json", stdin=b"a cat\ntwo\n")
    assert [one["text"] for one in done.value["texts"]] == ["a cat", "two"]
    np.testing.assert_allclose([t["embedding"] for t in done.value["texts"]], wanted[:2], rtol=1e-5)
    assert done.value["shape"] == [2, 24] and done.value["stats"]["host_fallback_ops"] == 0


def test_a_line_ends_where_an_editor_ends_it_and_a_mark_of_order_is_no_text(
    command: Command, tmp_path: Path
) -> None:
    lines = tmp_path / "texts.txt"
    lines.write_bytes("\ufeffone\r\ntwo\u2028 and\x0c\x85 more\rthree\n\n".encode())
    done = command("embed", TINY, "--file", lines, "--json")
    texts = [one["text"] for one in done.value["texts"]]
    assert texts == ["one", "two\u2028 and\x0c\x85 more", "three"]
    lines.write_bytes(b"\n \n")
    done = command("embed", TINY, "--file", lines)
    assert done.code == 2 and f"{lines}: every line is empty" in done.err


def test_vectors_go_to_a_file(command: Command, tmp_path: Path) -> None:
    wanted = ptir.load_model(TINY, backend=REF).embed(["a cat", "two"])
    for name in ("e.npy", "e.safetensors"):
        done = command("embed", TINY, "a cat", "two", "--out", tmp_path / name)
        assert done.code == 0 and done.out == ""
    np.testing.assert_array_equal(np.load(tmp_path / "e.npy"), wanted)
    held = load_archive(tmp_path / "e.safetensors").arrays["embeddings"]
    np.testing.assert_array_equal(held, wanted)
    done = command("embed", TINY, "a", "--out", tmp_path / "e.txt")
    assert done.code == 2 and "must end in .npy or .safetensors" in done.err
    done = command("embed", TINY, "a", "--out", tmp_path / "no" / "e.npy")
    assert done.code != 0 and "cannot be written" in done.err


def test_images_are_embedded_and_classified_by_the_same_commands(
    command: Command,
    tmp_path: Path,
) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (30, 40, 3), np.uint8)
    picture = tmp_path / "x.png"
    Image.fromarray(pixels).save(picture)
    model = ptir.load_model("random:vit-tiny", backend=REF)
    (found,) = command("embed", "random:vit-tiny", picture).out.splitlines()
    np.testing.assert_allclose(numbers(found), model.embed(pixels)[0], rtol=1e-4, atol=1e-5)
    said = command("classify", "random:vit-tiny", picture, "--top-k", 2, "--json").value
    (wanted,) = model.classify(pixels, top_k=2)
    assert [one["id"] for one in said["images"][0]["labels"]] == [one.id for one in wanted]
    for options, words in (
        (("embed", "random:vit-tiny", picture, "--truncate"), "takes images"),
        (("classify", "random:vit-tiny", "--file", picture), "takes images"),
        (("run", TINY, "--image", picture), "takes texts, not images"),
    ):
        done = command(*options)
        assert done.code == 2 and words in done.err, done.err


def test_classes_of_texts_and_of_tokens(command: Command, tmp_path: Path) -> None:
    names = tmp_path / "names.txt"
    names.write_text("bad\ngood\nneither\n")
    options = ("random:bert-tiny-classifier", "a cat", "--labels", names)
    (found,) = command("classify", *options, "--json").value["texts"]
    assert {one["name"] for one in found["labels"]} == {"bad", "good", "neither"}
    assert sum(one["probability"] for one in found["labels"]) == pytest.approx(1.0)
    lines = command("classify", *options, "--top-k", 1).out.splitlines()
    best = found["labels"][0]
    assert lines[0].split() == ["probability", "class"]
    assert lines[1].split() == [f"{best['probability']:.2%}", best["name"]]
    (found,) = command("classify", "random:bert-tiny-tagger", "a cat", "--json").value["texts"]
    assert "".join(one["text"] for one in found["tokens"]) == "a cat"
    spans = [(one["start"], one["end"]) for one in found["tokens"]]
    assert spans == sorted(spans) and spans[-1][1] == 5
    done = command("classify", "random:bert-tiny-tagger", "a cat")
    assert done.out.splitlines()[0].split() == ["token", "probability", "class"]


def test_documents_are_sorted_by_a_score(command: Command) -> None:
    texts = ["a cat", "the second", "third"]
    for spec, by in ((TINY, "cosine"), ("random:bert-tiny-reranker", "cross-encoder")):
        said = command("rerank", spec, "which", *texts, "--json").value
        assert said["by"] == by
        scores = [one["score"] for one in said["documents"]]
        assert scores == sorted(scores, reverse=True)
        assert {one["index"] for one in said["documents"]} == {0, 1, 2}
        for one in said["documents"]:
            assert texts[one["index"]] == one["document"]
            (alone,) = command("rerank", spec, "which", one["document"], "--json").value[
                "documents"
            ]
            assert alone["score"] == pytest.approx(one["score"], abs=1e-6)
    assert len(command("rerank", TINY, "which", *texts, "--top-k", 2).out.splitlines()) == 3


REFUSED: list[tuple[tuple[object, ...], int, str]] = [
    (("embed", "demo", "x"), 4, "cannot embed; it can generate"),
    (("classify", "demo", "x"), 4, "cannot classify; it can generate"),
    (("rerank", "random:vit-tiny", "x", "y"), 4, "cannot rerank; it can classify"),
    (("forward", "random:vit-tiny", "x"), 4, "takes images, not texts or token ids"),
    (("trace", "random:vit-tiny", "x"), 1, "cannot be read"),
    (("run", TINY, "x"), 4, "cannot generate; it can embed"),
    (("chat", TINY), 4, "cannot generate; it can embed"),
    (("embed", TINY), 2, "give a text"),
    (("embed", TINY, ""), 2, "text 0 is empty"),
    (("embed", TINY, "-", "-"), 2, "give it once"),
    (("embed", TINY, "x", "--prompt", "query"), 2, "unknown prompt 'query'"),
    (("embed", TINY, "--file", "nowhere.txt"), 2, "nowhere.txt: cannot be read"),
    (("rerank", TINY, "x"), 2, "give a text"),
    (("classify", "random:bert-tiny-tagger", "x" * 90), 2, "takes 66 (its positions)"),
    (("classify", "random:bert-tiny-classifier", "x", "--label", "y"), 2, "of its own"),
]


def test_what_cannot_be_done_is_refused_before_anything_is_printed(
    command: Command,
) -> None:
    for arguments, code, words in REFUSED:
        done = command(*arguments)
        assert done.code == code and words in done.err, (arguments, done)
        assert done.out == ""


def test_outputs_and_layers_of_a_text_are_written(command: Command, tmp_path: Path) -> None:
    for name, classes in (("random:bert-tiny", 0), ("random:bert-tiny-classifier", 1)):
        found: dict[str, Any] = {}
        for what in ("forward", "trace"):
            file = tmp_path / f"{what}.safetensors"
            done = command(what, name, "a text", "--out", file)
            assert done.code == 0, done
            found[what] = load_archive(file).arrays
        model = ptir.load_model(name, backend=REF)
        (row,) = model.encode_texts(["a text"])
        wanted = model.vectors([row.ids])[0]
        assert wanted.ndim == (1 if classes else 2)
        np.testing.assert_allclose(found["forward"]["output"], wanted, rtol=0, atol=1e-5)
        np.testing.assert_allclose(found["trace"]["output"][0], wanted, rtol=0, atol=1e-5)


def test_texts_that_are_cut_are_told(command: Command) -> None:
    done = command("embed", TINY, "x" * 90, "y", "--truncate")
    assert done.code == 0 and "1 of 2 texts had more than 66 tokens (up to" in done.err


def test_explain_shows_a_run_over_texts(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("explain", TINY, "--batch", "3", "--prefill", "16", "-r", "1")
    assert main([*options, "--backend", "c", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["step"] == "texts" and said["tokens"] == 48 and said["kernels"] > 5
    assert said["ops_elsewhere"] == 0
    assert main([*options, "--backend", "c"]) == 0
    printed = capsys.readouterr().out
    assert "texts of 48 tokens together" in printed and "attention" in printed
