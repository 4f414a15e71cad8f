"""GGUF files of models with linear attention, convolutions or a mixture of windows are written.

What is held against is a file that the package ``gguf`` writes by the converter's rules.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize
from test_runtime_gguf_forms import CASES, TOKENS, assert_heads_agree, checkpoint_of, write

import ptir
from ptir.checkpoint import open_checkpoint, save_folder
from ptir.checkpoint.gguf.mixtures import MIXTURES
from ptir.errors import CheckpointError
from ptir.params.source import ArraySource
from ptir.runtime.gguf_file import save_gguf
from ptir.runtime.gguf_linear import as_stored
from ptir.runtime.published import with_files
from ptir.runtime.specs import random_checkpoint
from running import REF, assert_close

HYBRIDS: Final = (
    "lfm2",
    "qwen3_5",
    "qwen3_5 with a head",
    "qwen3_5 with experts",
    "qwen3_next",
    "mamba2",
    "gemma4",
    "gemma4 with experts",
)
LOGARITHMS: Final = (".ssm_a", ".A_log")
"""What is stored as another number, and rounded once on its way."""


def read(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """A file's keys and tensors, as ``gguf`` reads them."""
    found = gguf.GGUFReader(path)
    keys = {key: field.contents() for key, field in found.fields.items()}
    return keys, {one.name: one for one in found.tensors}


@pytest.mark.slice(3)
@pytest.mark.parametrize("name", HYBRIDS)
def test_a_file_is_what_the_witness_makes_of_the_model(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASES[name]
    checkpoint = checkpoint_of(case, monkeypatch)
    write(tmp_path / "theirs.gguf", case, checkpoint, plain=True)
    keys, tensors = read(save_gguf(checkpoint, tmp_path / "m.gguf"))
    their_keys, their_tensors = read(tmp_path / "theirs.gguf")
    assert tensors.keys() == their_tensors.keys()
    for key, one in their_tensors.items():
        ours = tensors[key]
        assert [*ours.shape] == [*one.shape], key
        assert ours.tensor_type == one.tensor_type == gguf.GGMLQuantizationType.F32, key
        assert np.allclose(ours.data, one.data, rtol=1e-6 * key.endswith(LOGARITHMS), atol=0), key
    for key, value in their_keys.items():
        rotates = "num_attention_heads" in checkpoint.config  # the witness says it of all
        if key.startswith(case.architecture) and (rotates or ".rope." not in key):
            assert_said(keys, key, value)


def assert_said(keys: dict[str, Any], key: str, value: Any) -> None:
    """A number for all layers may be one for each, and 0 the same as none."""
    found = keys.get(key, 0)
    found, value = ([*one] if isinstance(one, list) else [one] for one in (found, value))
    longest = max(len(found), len(value))
    whole = [one * longest if len(one) == 1 else one for one in (found, value)]
    assert np.allclose(*whole), key


@pytest.mark.slice(2)
@pytest.mark.parametrize("name", HYBRIDS)
def test_a_folder_becomes_a_file_and_comes_back_to_the_bit(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Norms lie on bf16's grid, as those of checkpoints do, so that 1 can be added and taken."""
    given = checkpoint_of(CASES[name], monkeypatch)
    arrays = {one: given.source.read(one) for one in given.source.names()}
    coarse = {one: array for one, array in arrays.items() if array.ndim == 1}
    arrays |= {one: np.round(array * 256) / 256 for one, array in coarse.items()}
    given = replace(given, source=ArraySource({k: v.astype("f4") for k, v in arrays.items()}))
    wanted = ptir.load_model(save_folder(given, tmp_path / "folder"), backend=REF)
    path = save_gguf(given, tmp_path / "m.gguf")
    found = ptir.load_model(path, backend=REF)
    assert_close(found.forward(TOKENS), wanted.forward(TOKENS))
    assert found.has_head == wanted.has_head
    if found.has_head:
        assert_heads_agree(found, wanted)
    ordered = as_stored(given).source
    back = open_checkpoint(save_folder(found.checkpoint, tmp_path / "back"))
    assert {*back.source.names()} == {*ordered.names()}
    for one in back.source.names():
        near = 1e-6 * one.endswith(LOGARITHMS)
        values = ordered.read(one)
        held = back.source.read(one).reshape(values.shape)  # experts may have an axis
        assert np.allclose(held, values, rtol=0, atol=near), one
    again = save_gguf(back, tmp_path / "again.gguf")
    (keys, first), (their_keys, second) = read(path), read(again)
    architecture = CASES[name].architecture
    for key in keys.keys() | their_keys.keys():
        if key.startswith(architecture):
            assert keys[key] == their_keys[key], key
    for key, one in first.items():
        assert np.allclose(one.data, second[key].data, rtol=1e-6 * key.endswith(LOGARITHMS)), key


def test_a_model_in_a_file_s_order_computes_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six heads of values over two of keys: their order counts."""
    given = checkpoint_of(CASES["qwen3_5"], monkeypatch)
    ordered = as_stored(given)
    assert ordered.config["linear_values_tiled"] is True
    name = "layers.0.linear_attn.in_proj_a.weight"
    rows = given.source.read(name)
    assert np.array_equal(ordered.source.read(name), rows[[0, 3, 1, 4, 2, 5]])
    assert as_stored(ordered) is ordered


@pytest.mark.parametrize("name", ["qwen3_5", "qwen3_5 with experts"])
def test_a_folder_made_of_a_file_has_the_order_that_others_read(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = checkpoint_of(CASES[name], monkeypatch)
    path = save_gguf(given, tmp_path / "m.gguf")
    back = open_checkpoint(save_folder(with_files(open_checkpoint(path)), tmp_path / "back"))
    assert "linear_values_tiled" not in back.config
    names = [one for one in given.source.names() if ".linear_attn." in one]
    assert len(names) > 8
    for one in names:
        near = 1e-6 * one.endswith(LOGARITHMS)
        assert np.allclose(back.source.read(one), given.source.read(one), rtol=0, atol=near), one
    tokens = ptir.load_model(tmp_path / "back", backend=REF).forward(TOKENS)
    assert_close(tokens, ptir.load_model(path, backend=REF).forward(TOKENS))


def test_quantized_files_keep_small_tensors_in_floats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = checkpoint_of(CASES["qwen3_5"], monkeypatch)
    path = save_gguf(given, tmp_path / "m.gguf", mixture=MIXTURES["q8_0"])
    tensors = read(path)[1]
    kinds = {name: one.tensor_type.name for name, one in tensors.items()}
    blocks = {name for name, kind in kinds.items() if kind != "F32"}
    assert kinds["blk.0.ssm_conv1d.weight"] == kinds["blk.0.ssm_a"] == "F32"
    assert {"blk.0.attn_qkv.weight", "blk.0.ssm_out.weight", "token_embd.weight"} <= blocks
    exact = read(save_gguf(given, tmp_path / "exact.gguf"))[1]
    for name in blocks:
        found, wanted = (
            dequantize(one.data, one.tensor_type) for one in (tensors[name], exact[name])
        )
        assert np.abs(found - wanted).max() <= np.abs(wanted).max() / 200, name
    assert np.isfinite(ptir.load_model(path, backend=REF).forward(TOKENS)).all()


REFUSED: Final = {
    "opt-tiny": "model_type 'opt' cannot be written as GGUF; gpt2, .*, mistral can",
    "qwen3_next-tiny": r"layers\.1\.mlp\.gate_proj\.weight' has no name in GGUF",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_file_can_say_is_refused_by_name(name: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=REFUSED[name]):
        save_gguf(random_checkpoint(name, 1), tmp_path / "m.gguf")
    assert not (tmp_path / "m.gguf").exists()
