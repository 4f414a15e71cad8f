"""What GGUF files say beside weights: keys of others with their types, defaults of sampling."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import pytest

import ptir
from gguf_models import write
from ptir.checkpoint import open_checkpoint, save_folder
from ptir.errors import CheckpointError
from ptir.runtime.gguf_file import save_gguf
from ptir.runtime.published import with_files
from ptir.types import F32
from running import llama_folder

DEMO = Path(ptir.__file__).parent / "data" / "demo"


def fields_of(path: Path) -> dict[str, tuple[list[str], Any]]:
    """The types and the value of each key."""
    found = gguf.GGUFReader(path).fields.items()
    return {key: ([kind.name for kind in one.types], one.contents()) for key, one in found}


TYPED = ("UINT8", "INT8", "UINT16", "INT16", "UINT32", "INT32", "UINT64", "INT64", "FLOAT64")


def test_keys_that_ptir_does_not_know_keep_their_types(tmp_path: Path) -> None:
    """Also those of the architecture and of its tokenizer, and numbers that only f64 holds."""
    added: dict[str, tuple[list[str], Any]] = {}
    first, second = tmp_path / "1.gguf", tmp_path / "2.gguf"

    def add(writer: gguf.GGUFWriter) -> None:
        for name in TYPED:
            kind, key = gguf.GGUFValueType[name], f"my.{name}"
            writer.add_key_value(key, 7, kind)
            writer.add_key_value(f"{key}s", [7, 8], gguf.GGUFValueType.ARRAY, sub_type=kind)
            added[key], added[f"{key}s"] = ([name], 7), (["ARRAY", name], [7, 8])
        writer.add_key_value("my.large", 1e300, gguf.GGUFValueType.FLOAT64)
        writer.add_key_value("my.flag", True, gguf.GGUFValueType.BOOL)
        writer.add_key_value("llama.my", 3, gguf.GGUFValueType.UINT8)
        writer.add_key_value("tokenizer.ggml.my", 3, gguf.GGUFValueType.INT16)
        added["my.large"], added["my.flag"] = (["FLOAT64"], 1e300), (["BOOL"], True)
        added["llama.my"], added["tokenizer.ggml.my"] = (["UINT8"], 3), (["INT16"], 3)

    write(first, open_checkpoint(llama_folder(tmp_path)), vocabulary=with_tokens(add))
    save_gguf(open_checkpoint(first), second)
    for path in (first, second):
        found = fields_of(path)
        assert {key: found[key] for key in added} == added, path


def with_tokens(add: Callable[[gguf.GGUFWriter], None]) -> Callable[[gguf.GGUFWriter], None]:
    """What writes a tokenizer of as many tokens as the model has, and more keys."""

    def written(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model("gpt2")
        writer.add_token_list([f"t{n}" for n in range(97)])
        add(writer)

    return written


SAMPLING: dict[str, Any] = {
    "do_sample": True,
    "temperature": 0.6,
    "top_k": 20,
    "top_p": 0.95,
    "min_p": 0,
    "repetition_penalty": 1.05,
}


def test_defaults_of_sampling_survive_a_file(tmp_path: Path) -> None:
    folder = save_folder(replace(open_checkpoint(DEMO), generation_config=SAMPLING), tmp_path / "a")
    file = save_gguf(open_checkpoint(folder), tmp_path / "m.gguf")
    found = fields_of(file)
    assert found["general.sampling.top_k"] == (["INT32"], 20)
    for key, value in (("temp", 0.6), ("top_p", 0.95), ("penalty_repeat", 1.05), ("min_p", 0)):
        assert found[f"general.sampling.{key}"] == (["FLOAT32"], pytest.approx(value))
    again = save_gguf(open_checkpoint(file), tmp_path / "again.gguf", dtype=F32)
    for path in (file, again):
        back = save_folder(with_files(open_checkpoint(path)), tmp_path / f"{path.stem}-folder")
        told = json.loads((back / "generation_config.json").read_text())
        assert {key: told[key] for key in SAMPLING} == SAMPLING


def test_what_is_not_sampled_has_no_settings(tmp_path: Path) -> None:
    for said in ({**SAMPLING, "do_sample": False}, {}):
        checkpoint = replace(open_checkpoint(DEMO), generation_config=said)
        path = save_gguf(checkpoint, tmp_path / "m.gguf", overwrite=True)
        assert not any("sampling" in key for key in fields_of(path))
        assert "do_sample" not in open_checkpoint(path).generation_config


@pytest.mark.parametrize(
    ("field", "value", "rule"),
    [
        ("temperature", "hot", "must be a number; correct it"),
        ("top_k", 2.5, "must be a whole number of 32 bits"),
        ("top_k", True, "must be a whole number of 32 bits"),
    ],
)
def test_a_setting_that_is_no_number_is_refused(
    tmp_path: Path, field: str, value: Any, rule: str
) -> None:
    checkpoint = replace(open_checkpoint(DEMO), generation_config={field: value})
    with pytest.raises(CheckpointError, match=f"generation_config.json: {field} .* {rule}"):
        save_gguf(checkpoint, tmp_path / "m.gguf")
