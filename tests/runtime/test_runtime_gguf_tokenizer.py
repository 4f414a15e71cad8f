"""The tokenizer of a GGUF model: made of the metadata, else of what lies beside the file."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import gguf
import pytest

import ptir
from gguf_models import write
from ptir.checkpoint import DescribedTokenizer, open_checkpoint
from ptir.errors import CheckpointError, UsageError
from ptir.text import gguf_tokenizer
from ptir.text.gguf_tokenizer import GgufTokenizer, tokenizer_of
from running import REF

DEMO = Path(ptir.__file__).parent / "data" / "demo"
END = 0


def described(writer: gguf.GGUFWriter, pre: str = "gpt-2", last: tuple[str, ...] = ()) -> None:
    """The demo's tokenizer, as a converter writes it; its last tokens are called ``last``."""
    model = json.loads((DEMO / "tokenizer.json").read_text("utf-8"))["model"]
    merges = [one if isinstance(one, str) else " ".join(one) for one in model["merges"]]
    merges = merges[: len(merges) - len(last)]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    tokens[len(tokens) - len(last) :] = last
    control = int(gguf.TokenType.CONTROL)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    kinds = [int(gguf.TokenType.NORMAL)] * (len(tokens) - 1 - len(last))
    writer.add_token_types([control, *kinds, *[control] * len(last)])
    writer.add_token_merges(merges)
    writer.add_eos_token_id(END)
    writer.add_name("A demo")


def unknown(writer: gguf.GGUFWriter) -> None:
    """The same with a rule of splitting that nobody knows."""
    described(writer, "nobody's")


def demo_file(folder: Path, vocabulary: object = described) -> Path:
    return write(folder / "m.gguf", open_checkpoint(DEMO), vocabulary=vocabulary).path  # type: ignore[arg-type]


def test_a_file_answers_as_the_folder_it_was_made_of(tmp_path: Path) -> None:
    """The metadata comes before a file beside it."""
    path = demo_file(tmp_path)
    (path.parent / "tokenizer.json").write_text("not even JSON")
    model, folder = ptir.load_model(path, backend=REF), ptir.load_model(DEMO, backend=REF)
    for text in ("Once upon a time", "  two  spaces, and 3 lines\n\n\n", "naïve 猫 🐈"):
        assert model.encode(text) == folder.encode(text)
    assert model.eos_ids == (END,)
    prompt = "Once upon a time"
    said = [each.generate(prompt, max_tokens=12).text for each in (model, folder)]
    assert said[0] == said[1] != ""


def test_the_names_of_the_model_are_handed_to_its_tokenizer(tmp_path: Path) -> None:
    """By them a few models' tokens are known that take white space beside them."""
    held = open_checkpoint(demo_file(tmp_path)).tokenizer
    assert isinstance(held, DescribedTokenizer)
    assert held.vocabulary.plain()["general.name"] == "A demo"


def test_what_cannot_be_used_is_told_when_a_text_comes(tmp_path: Path) -> None:
    model = ptir.load_model(demo_file(tmp_path, unknown), backend=REF)
    assert len(model.generate([1, 2], max_tokens=2, ignore_eos=True).token_ids) == 2
    why = r"has no tokenizer \(the one in its file cannot be used \(.*tokenizer.ggml.pre.*nobody's"
    with pytest.raises(UsageError, match=f"{why}.*put the model's tokenizer.json beside the file"):
        model.encode("text")


def test_a_tokenizer_beside_the_file_is_taken_where_the_metadata_makes_none(tmp_path: Path) -> None:
    path = demo_file(tmp_path, unknown)
    shutil.copy(DEMO / "tokenizer.json", path.parent)
    model = ptir.load_model(path, backend=REF)
    with pytest.warns(UserWarning, match=r"m\.gguf: .*nobody's.*lies beside the file"):
        assert model.tokenizer is not None
    assert model.eos_ids == (END,)


def test_what_lies_beside_and_cannot_be_used_either_is_an_error_when_a_text_comes(
    tmp_path: Path,
) -> None:
    path = demo_file(tmp_path, unknown)
    (path.parent / "tokenizer.json").write_text("not even JSON")
    model = ptir.load_model(path, backend=REF)
    with (
        pytest.warns(UserWarning, match="nobody's"),
        pytest.raises(CheckpointError, match=r"m\.gguf: beside it: "),
    ):
        model.encode("text")


def test_a_tokenizer_is_built_when_a_text_first_needs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tokens go in, are checked, and what ends a text is known, without one."""
    built: list[str] = []

    def counted(metadata: Any) -> GgufTokenizer:
        built.append("once")
        return tokenizer_of(metadata)

    monkeypatch.setattr(gguf_tokenizer, "tokenizer_of", counted)
    model = ptir.load_model(demo_file(tmp_path), backend=REF)
    assert model.eos_ids == (END,) and model.encode([1, 2]) == [1, 2]
    assert model.forward([1, 2]).shape[0] == 2 and not built
    assert model.encode("Once") and model.encode("upon") and built == ["once"]


CUT = """
import os, sys, ptir
from ptir.errors import CheckpointError, UsageError
model = ptir.load_model(sys.argv[1], backend="ref")
os.truncate(sys.argv[1], 0)
for use in (lambda: model.encode("text"), lambda: model.forward([1, 2])):
    try:
        use()
    except (CheckpointError, UsageError) as error:
        print(type(error).__name__, error)
"""


def test_a_file_that_is_cut_before_a_text_comes_is_an_error(tmp_path: Path) -> None:
    """In a process of its own, which the system would end where bytes that are gone are read."""
    command = [sys.executable, "-c", CUT, str(demo_file(tmp_path))]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    text, weights = run.stdout.splitlines()
    said = r"the file was cut from \d+ to 0 bytes while it was in use"
    assert re.match(rf"UsageError .*has no tokenizer \(.*key 'tokenizer\..*{said}", text)
    assert re.match(rf"CheckpointError .*tensor '.*{said}", weights)


def harmony(writer: gguf.GGUFWriter) -> None:
    """Three tokens get the names of gpt-oss's, and the key of a turn's end says ``<|end|>``."""
    described(writer, last=("<|end|>", "<|return|>", "<|call|>"))
    writer.add_eot_token_id(1021)


def test_what_only_ends_a_part_of_an_answer_ends_no_text(tmp_path: Path) -> None:
    """Whatever a key says: the tokenizer's rule, by names, is llama.cpp's."""
    path = demo_file(tmp_path, harmony)
    assert ptir.load_model(path, backend=REF).eos_ids == (END, 1022, 1023)
    model = ptir.load_model(path, backend=REF)
    assert model.encode("Once") and model.eos_ids == (END, 1022, 1023), "of a built tokenizer"
