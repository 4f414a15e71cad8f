"""The tokenizer of a GGUF model: made of the metadata, else of what lies beside the file."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import gguf
import pytest

import ptir
from gguf_models import write
from ptir.errors import CheckpointError, UsageError
from ptir.runtime.tokenizer import BUILDER
from ptir.text import Tokenizer
from running import REF, small_checkpoint

DEMO = Path(ptir.__file__).parent / "data" / "demo"
Builder = Callable[[dict[str, Any]], Any]


def vocabulary(writer: gguf.GGUFWriter) -> None:
    """Tokens, so that the metadata describes a tokenizer."""
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(["a", "b", "c"])
    writer.add_eos_token_id(1)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write(tmp_path / "m.gguf", small_checkpoint(), vocabulary=vocabulary).path


def built_by(monkeypatch: pytest.MonkeyPatch, builder: Builder) -> None:
    module = ModuleType(BUILDER)
    module.__spec__ = ModuleSpec(BUILDER, None)
    module.tokenizer_of = builder  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, BUILDER, module)


def demo(metadata: dict[str, Any]) -> Any:
    """The demo's tokenizer, whatever the metadata says."""
    assert metadata["tokenizer.ggml.tokens"] == ["a", "b", "c"]
    assert metadata["tokenizer.ggml.model"] == "gpt2"
    tokenizer = Tokenizer.from_json((DEMO / "tokenizer.json").read_text())
    return SimpleNamespace(tokenizer=tokenizer, ends=frozenset({1, 2}))


def refusing(metadata: dict[str, Any]) -> Any:
    raise CheckpointError("tokenizer.ggml.pre: missing")


def test_what_the_metadata_describes_is_taken_first(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built_by(monkeypatch, demo)
    (path.parent / "tokenizer.json").write_text("not even JSON")
    model = ptir.load_model(path, backend=REF)
    assert model.tokenizer is not None and model.tokenizer.encode("a") != []
    assert model.eos_ids == (1, 2)


def test_what_cannot_be_used_is_told_when_a_text_comes(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built_by(monkeypatch, refusing)
    model = ptir.load_model(path, backend=REF)
    assert len(model.generate([1, 2], max_tokens=2, ignore_eos=True).token_ids) == 2
    why = r"has no tokenizer \(the one in its file cannot be used \(tokenizer.ggml.pre: missing\)"
    with pytest.raises(UsageError, match=f"{why}: put the model's tokenizer.json beside the file"):
        model.encode("text")


def test_a_tokenizer_beside_the_file_is_taken_where_the_metadata_makes_none(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built_by(monkeypatch, refusing)
    shutil.copy(DEMO / "tokenizer.json", path.parent)
    model = ptir.load_model(path, backend=REF)
    assert model.tokenizer is not None and model.eos_ids == (1,)
