"""Folders of compressed-tensors that ptir writes: what others find in them, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from ptir.checkpoint import Checkpoint, open_checkpoint, save_folder
from ptir.errors import CheckpointError, QuantizationError, UnsupportedError, UsageError
from ptir.params.source import ArraySource
from ptir.runtime import load_model
from ptir.runtime.quantized_folder import save_quantized_folder
from ptir.types import F32
from ptir.weights import FORMATS
from running import REF, assert_close, llama_folder, small_checkpoint

Array = np.ndarray[Any, Any]
SIZES = {"hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 1}


def original(folder: Path, **config: Any) -> Checkpoint:
    return open_checkpoint(llama_folder(folder, **{**SIZES, **config}))


def unpacked(words: Array, scale: Array, shape: Array, bits: int) -> Array:
    """What compressed-tensors reads: values counted from the lowest, low bits of words first."""
    found = np.zeros(tuple(shape), np.float64)
    per = 32 // bits
    for output, line in enumerate(words.view(np.uint32).tolist()):
        for place in range(int(shape[1])):
            code = line[place // per] >> bits * (place % per) & (1 << bits) - 1
            whole = code - (1 << bits - 1)
            found[output, place] = whole * float(scale[output, place // 32])
    return found


@pytest.mark.parametrize(("name", "bits"), [("int4", 4), ("int8", 8)])
def test_every_matrix_of_a_layer_is_rounded_to_nearest(
    tmp_path: Path, name: str, bits: int
) -> None:
    checkpoint = original(tmp_path)
    path = save_quantized_folder(checkpoint, tmp_path / "q", FORMATS[name])
    tensors = load_file(path / "model.safetensors")
    again = open_checkpoint(path).source
    packed = 0
    for one in checkpoint.source.names():
        values = checkpoint.source.read(one)
        if f"{one}_packed" not in tensors:
            np.testing.assert_array_equal(tensors[one], values)
            continue
        packed += 1
        scale = tensors[f"{one}_scale"]
        shape = tensors[f"{one}_shape"]
        assert (scale.dtype.name, shape.dtype, tensors[f"{one}_packed"].dtype) == (
            "bfloat16",
            np.int64,
            np.int32,
        )
        wanted = unpacked(tensors[f"{one}_packed"], scale, shape, bits)
        np.testing.assert_array_equal(again.read(one), wanted.astype(np.float32))
        steps = np.abs(np.repeat(scale.astype(np.float64), 32, axis=1))
        farthest = np.abs(values) >= 7.5 * steps if bits == 4 else np.abs(values) >= 127 * steps
        assert (np.abs(wanted - values) <= steps / 2 + farthest * steps).all()
        assert np.sqrt(np.square(wanted - values).mean()) < steps.mean() * 0.33
    assert packed == 7


def test_the_configuration_says_how_weights_are_packed(tmp_path: Path) -> None:
    path = save_quantized_folder(original(tmp_path), tmp_path / "q", FORMATS["int4"])
    said = json.loads((path / "config.json").read_text())
    found = said["quantization_config"]
    assert (found["quant_method"], found["format"]) == ("compressed-tensors", "pack-quantized")
    weights = found["config_groups"]["group_0"]["weights"]
    assert weights["num_bits"] == 4 and weights["group_size"] == 32 and weights["symmetric"]
    assert found["ignore"] == ["lm_head"] and said["model_type"] == "llama"


def test_the_model_answers_with_the_numbers_of_the_folder(tmp_path: Path) -> None:
    path = save_quantized_folder(original(tmp_path), tmp_path / "q", FORMATS["int4"])
    floats = save_folder(open_checkpoint(path), tmp_path / "floats", dtype=F32)
    assert "quantization_config" not in json.loads((floats / "config.json").read_text())
    tokens = list(range(3, 20))
    found, wanted = (load_model(one, backend=REF).forward(tokens) for one in (path, floats))
    assert_close(found, wanted, 1e-4)
    with pytest.raises(UsageError, match="has weights in ct-int4-g32 already"):
        save_quantized_folder(open_checkpoint(path), tmp_path / "r", FORMATS["int4"])


def test_what_cannot_be_packed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"'gpt2' stores weights as \[inputs, outputs\]"):
        save_quantized_folder(small_checkpoint(), tmp_path / "q", FORMATS["int8"])
    odd = original(tmp_path, intermediate_size=72)
    with pytest.raises(QuantizationError, match=r"down_proj\.weight': int4 takes groups of 32"):
        save_quantized_folder(odd, tmp_path / "q", FORMATS["int4"])
    assert not (tmp_path / "q").exists()


def test_weights_that_are_not_finite_leave_no_folder(tmp_path: Path) -> None:
    whole = original(tmp_path)
    arrays = {name: np.array(whole.source.read(name)) for name in whole.source.names()}
    name = next(name for name in arrays if name.endswith("up_proj.weight"))
    arrays[name][3, 5] = np.nan
    with pytest.raises(QuantizationError, match=f"parameter '{name}': a weight holds NaN"):
        save_quantized_folder(
            replace(whole, source=ArraySource(arrays)), tmp_path / "q", FORMATS["int4"]
        )
    assert sorted(one.name for one in tmp_path.iterdir()) == ["small"]


def test_a_folder_of_other_files_is_kept(tmp_path: Path) -> None:
    (tmp_path / "q").mkdir()
    (tmp_path / "q" / "notes.txt").write_text("mine")
    with pytest.raises(CheckpointError, match="exists already"):
        save_quantized_folder(original(tmp_path), tmp_path / "q", FORMATS["int4"])
    assert [one.name for one in (tmp_path / "q").iterdir()] == ["notes.txt"]
