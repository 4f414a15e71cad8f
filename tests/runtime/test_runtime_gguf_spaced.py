"""Models with tokenizers of SentencePiece's kind: from a folder to a GGUF file and back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers

import ptir
from awkward_text import awkward_lines
from ptir.checkpoint import Checkpoint, DescribedTokenizer, open_checkpoint, save_folder
from ptir.checkpoint.gguf.mixtures import MIXTURES
from ptir.errors import CheckpointError
from ptir.models.table import definition
from ptir.runtime.gguf_file import save_gguf
from ptir.runtime.published import with_files
from ptir.runtime.specs import random_checkpoint
from running import REF
from spaced_tokenizers import marks, trained

STYLES = {"llama": "llama-tiny", "gemma": "gemma-tiny", "phi": "phi3-tiny"}


def model(style: str, monkeypatch: pytest.MonkeyPatch) -> Checkpoint:
    """A small model with the tokenizer of a style."""
    text, preset = trained(style), STYLES[style]
    family: Any = definition(str(random_checkpoint(preset, 3).config["model_type"])).presets
    size = {"vocab_size": tokenizers.Tokenizer.from_str(text).get_vocab_size() + 3}
    monkeypatch.setitem(family, "written", {**family[preset], **size})
    return replace(random_checkpoint("written", 3), path=Path(f"{style}-3"), tokenizer=text)


def said(path: Path) -> dict[str, Any]:
    held = open_checkpoint(path).tokenizer
    assert isinstance(held, DescribedTokenizer)
    return held.vocabulary.plain()


@pytest.mark.parametrize("style", STYLES)
def test_a_folder_is_a_file_and_a_folder_again(
    style: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save_folder(model(style, monkeypatch), tmp_path / f"{style}-3")
    path = save_gguf(open_checkpoint(folder), tmp_path / "m.gguf", mixture=MIXTURES["q8_0"])
    back = save_folder(with_files(open_checkpoint(path)), tmp_path / "back" / f"{style}-3")
    own = tokenizers.Tokenizer.from_str(trained(style))
    file, again = (ptir.load_model(one, backend=REF) for one in (path, back))
    for line in awkward_lines(300, 16, *marks(style)):
        if style != "gemma" or "▁▁" not in line:
            assert file.tokenizer.encode(line) == own.encode(line).ids, line
            assert again.tokenizer.encode(line) == own.encode(line).ids, line
    given = said(path)
    floats = replace(model(style, monkeypatch), tokenizer=open_checkpoint(back).tokenizer)
    for key, value in said(save_gguf(floats, tmp_path / "again.gguf")).items():
        assert np.array_equal(value, given[key]), key


def test_the_tokenizer_model_in_the_folder_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save_folder(model("llama", monkeypatch), tmp_path / "llama")
    (folder / "tokenizer.model").write_bytes(b"<html>")
    with pytest.raises(CheckpointError, match=r"tokenizer\.model: is no model of SentencePiece"):
        save_gguf(open_checkpoint(folder), tmp_path / "m.gguf")
    assert not (tmp_path / "m.gguf").exists()
