"""GGUF files of the architectures with layer norms against the folders that they are made of."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind

import ptir
from gguf_models import kind_of_matrices, write
from layer_norm_families import CONFIGS, VARIANTS, checkpoint, folder_of
from ptir.checkpoint import open_checkpoint, save_folder
from ptir.errors import CheckpointError
from ptir.params.source import ArraySource
from ptir.runtime.gguf_file import save_gguf
from running import REF, assert_close

TOKENS = list(range(0, 60, 3))
UNSAID = ("opt", "falcon in turn", "stablelm, parallel", "starcoder2", "phi, norms of heads")
"""What no file says, or says in another shape than the witness writes."""
WINDOWLESS = {"starcoder2": {**CONFIGS["starcoder2"], "sliding_window": None}}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 100.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
SAID = {name: one for name, one in VARIANTS.items() if not name.startswith(UNSAID)} | WINDOWLESS


@pytest.mark.parametrize("kind", [Kind.F32, Kind.Q8_0], ids=lambda kind: kind.name)
@pytest.mark.parametrize("name", SAID)
def test_a_file_gives_the_logits_of_the_folder(name: str, kind: Kind, tmp_path: Path) -> None:
    """Of the numbers that are in the file; the rows of fused tensors stand in another order."""
    made = checkpoint(SAID[name])
    written = write(tmp_path / "m.gguf", made, kind_of_matrices(kind))
    found = ptir.load_model(written.path, backend=REF)
    held = replace(made, source=ArraySource(written.weights))
    same = ptir.load_model(save_folder(held, tmp_path / "same"), backend=REF)
    assert_close(found.forward(TOKENS), same.forward(TOKENS), 1e-4)
    assert found.context == same.context


@pytest.mark.parametrize("name", SAID)
def test_a_folder_comes_back_to_the_bit(name: str, tmp_path: Path) -> None:
    folder = open_checkpoint(folder_of(SAID[name], tmp_path))
    path = save_gguf(folder, tmp_path / "m.gguf")
    back = open_checkpoint(save_folder(open_checkpoint(path), tmp_path / "back"))
    assert set(back.source.names()) == set(folder.source.names())
    for one in back.source.names():
        assert np.array_equal(back.source.read(one), folder.source.read(one)), one
    wanted = ptir.load_model(folder.path, backend=REF).forward(TOKENS)
    assert_close(ptir.load_model(back.path, backend=REF).forward(TOKENS), wanted)


@pytest.mark.parametrize("name", SAID)
def test_a_file_is_what_the_witness_makes_of_the_model(name: str, tmp_path: Path) -> None:
    folder = open_checkpoint(folder_of(SAID[name], tmp_path))
    found = gguf.GGUFReader(save_gguf(folder, tmp_path / "m.gguf"))
    wanted = gguf.GGUFReader(write(tmp_path / "theirs.gguf", folder).path)
    ours = {one.name: one.data for one in found.tensors}
    assert set(ours) == {one.name for one in wanted.tensors}
    for one in wanted.tensors:
        assert np.array_equal(ours[one.name], one.data), one.name
    for key, field in wanted.fields.items():
        if not key.startswith("GGUF.") and key != "general.quantization_version":
            assert found.fields[key].contents() == field.contents(), key


def test_norms_of_heads_are_rows_of_one_tensor(tmp_path: Path) -> None:
    """As converters stack StableLM's; such a block is parallel, and has no norm of the MLP."""
    config = VARIANTS["stablelm, parallel"]
    whole = checkpoint(config)
    names = [name for name in whole.source.names() if ".norms." not in name]
    stacked: dict[str, Any] = {}
    for layer in range(2):
        for part, heads in (("q", 4), ("k", 2)):
            before = f"layers.{layer}.self_attn.{part}_layernorm.norms"
            rows = [whole.source.read(f"{before}.{head}.weight") for head in range(heads)]
            stacked[f"blk.{layer}.attn_{part}_norm.weight"] = np.stack(rows)
    rest = replace(whole, source=ArraySource({name: whole.source.read(name) for name in names}))
    path = write(tmp_path / "m.gguf", rest, extra=stacked).path
    wanted = ptir.load_model(folder_of(config, tmp_path), backend=REF).forward(TOKENS)
    assert_close(ptir.load_model(path, backend=REF).forward(TOKENS), wanted)


def test_fused_rows_of_phi_are_cut_apart(tmp_path: Path) -> None:
    apart = checkpoint(CONFIGS["phi"])
    merged: dict[str, Any] = {}
    kept = {name: apart.source.read(name) for name in apart.source.names()}
    for layer in range(2):
        for kind in ("weight", "bias"):
            names = [f"layers.{layer}.self_attn.{one}_proj.{kind}" for one in "qkv"]
            merged[f"blk.{layer}.attn_qkv.{kind}"] = np.concatenate([kept.pop(n) for n in names])
    path = write(tmp_path / "m.gguf", replace(apart, source=ArraySource(kept)), extra=merged).path
    wanted = ptir.load_model(folder_of(CONFIGS["phi"], tmp_path), backend=REF).forward(TOKENS)
    assert_close(ptir.load_model(path, backend=REF).forward(TOKENS), wanted)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a window": (CONFIGS["starcoder2"], "says window None and the model has 8"),
    "an activation": ({**CONFIGS["phi"], "hidden_act": "relu"}, "says activation 'gelu_new'"),
    "divided frequencies": (
        {**WINDOWLESS["starcoder2"], "rope_parameters": LLAMA3},
        "says frequencies .* and the model has",
    ),
    "norms of heads": (VARIANTS["phi, norms of heads"], "q_layernorm.weight' has no name in GGUF"),
    "a norm behind attention": (VARIANTS["falcon in turn"], "post_attention_layernorm.*no name"),
    "opt": (CONFIGS["opt"], "'opt' cannot be written as GGUF"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_file_cannot_say_is_refused(case: str, tmp_path: Path) -> None:
    config, words = REFUSED[case]
    with pytest.raises(CheckpointError, match=words):
        save_gguf(checkpoint(config), tmp_path / "m.gguf")


@pytest.mark.parametrize(
    ("name", "keys", "words"),
    [
        ("gpt_neox", {"rope.dimension_count": 9}, "dimension_count': 9: heads of 8 have no more"),
        ("gpt_neox", {"use_parallel_residual": 1}, "residual': 1 must be true or false"),
        ("falcon", {"attention.head_count_kv": 3}, "of 4 heads, their keys and values are needed"),
        ("falcon", {"attention.head_count": 7}, "of 7 heads, their keys and values are needed"),
        ("stablelm", {"attention.layer_norm_epsilon": None}, "layer_norm_epsilon': is missing"),
    ],
)
def test_keys_that_cannot_be_run_are_named(
    name: str, keys: dict[str, Any], words: str, tmp_path: Path
) -> None:
    path = write(tmp_path / "m.gguf", checkpoint(CONFIGS[name]), keys=keys).path
    with pytest.raises(CheckpointError, match=words):
        ptir.load_model(path, backend=REF)
