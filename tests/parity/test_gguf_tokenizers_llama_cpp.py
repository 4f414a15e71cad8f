"""Tokenizers that GGUF files of ours describe give llama.cpp the ids of their ``tokenizer.json``.

Needs ``pip install llama-cpp-python`` besides, which builds llama.cpp; skipped without.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
import tokenizers

from awkward_text import awkward_lines
from ptir.models.table import definition
from ptir.runtime.gguf_file import save_gguf
from ptir.runtime.specs import random_checkpoint
from spaced_tokenizers import marks, trained

llama_cpp = pytest.importorskip("llama_cpp")
_WIDE: Final = re.compile(r"[>][^\S\x85\xa0]*(?![ \t\n\r\v\f])\s")
STYLES: Final = {"llama": "llama-tiny", "gemma": "gemma-tiny", "phi": "phi3-tiny"}


def written(style: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, Path]:
    """A small model with the tokenizer of a style, as a GGUF file."""
    text, preset = trained(style), STYLES[style]
    own = tokenizers.Tokenizer.from_str(text)
    family: Any = definition(str(random_checkpoint(preset, 3).config["model_type"])).presets
    size = {"vocab_size": own.get_vocab_size() + 3}
    monkeypatch.setitem(family, "written", {**family[preset], **size})
    given = replace(random_checkpoint("written", 3), path=Path(f"{style}-3"), tokenizer=text)
    return text, save_gguf(given, folder / "m.gguf")


@pytest.mark.parametrize("style", STYLES)
def test_llama_cpp_gives_the_ids_of_the_tokenizer_json(
    style: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, path = written(style, tmp_path, monkeypatch)
    own = tokenizers.Tokenizer.from_str(text)
    theirs = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
    lines = [line for line in awkward_lines(3000, 15, *marks(style)) if "\0" not in line]
    if style == "phi":  # white space behind a mark is ASCII's there
        lines = [line for line in lines if not _WIDE.search(line)]
    if style == "gemma":  # runs of spaces are no tokens of a text that spells them
        lines = [line for line in lines if "▁▁" not in line]
    for line in lines:
        found = theirs.tokenize(line.encode(), add_bos=True, special=True)
        assert found == own.encode(line).ids, line
