"""Folders of compressed-tensors against Transformers, which decompresses what ptir packed."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch
import transformers

import ptir
from ptir.checkpoint import open_checkpoint, save_folder
from ptir.params.source import ArraySource
from ptir.runtime.published import with_files
from ptir.runtime.quantized_folder import save_quantized_folder
from ptir.runtime.specs import random_checkpoint
from ptir.types import F32
from ptir.weights import FORMATS

sys.path.append(str(Path(__file__).parent.parent))

from quantized_experts import EXPERT, mixture

TOKENS = [*range(1, 30)]


def transformers_logits(folder: Path) -> np.ndarray:
    """The logits f32[T,V] of a folder all of whose tensors Transformers has a place for."""
    model, said = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    assert not said["missing_keys"] and not said["mismatched_keys"]
    for one in model.parameters():  # experts are of the type of scales
        one.data = one.data.float() if one.is_floating_point() else one.data
    with torch.no_grad():
        found: np.ndarray = model.eval()(torch.tensor([TOKENS])).logits[0].numpy()
    return found


@pytest.mark.parametrize("format", ["int4", "int8"])
@pytest.mark.parametrize("preset", EXPERT)
def test_transformers_read_packed_experts(preset: str, format: str, tmp_path: Path) -> None:
    """Its experts are bf16, the type of scales, to which each weight is rounded; no other is."""
    given = mixture(preset, tmp_path / "f")
    path = save_quantized_folder(given, tmp_path / "q", FORMATS[format])
    wanted = transformers_logits(path)
    opened = open_checkpoint(path)
    arrays = {name: np.array(opened.source.read(name)) for name in opened.source.names()}
    for name in arrays:
        if ".experts." in name:
            arrays[name] = arrays[name].astype(ml_dtypes.bfloat16).astype(np.float32)
    rounded = replace(opened, source=ArraySource(arrays))
    floats = save_folder(rounded, tmp_path / "x", dtype=F32)
    found = ptir.load_model(floats, backend="ref", dtype="f32").forward(TOKENS)
    assert np.abs(found - wanted).max() <= 1e-4 * np.abs(wanted).max()
    words = ptir.load_model(path, backend="ref", dtype="f32").forward(TOKENS)
    assert np.abs(words - wanted).max() <= 0.02 * np.abs(wanted).max()


@pytest.mark.parametrize("preset", ["llama-tiny", "gemma4-tiny"])
def test_transformers_read_packed_matrices(preset: str, tmp_path: Path) -> None:
    given = save_folder(with_files(random_checkpoint(preset, 0)), tmp_path / "f")
    path = save_quantized_folder(open_checkpoint(given), tmp_path / "q", FORMATS["int4"])
    found = ptir.load_model(path, backend="ref", dtype="f32").forward(TOKENS)
    wanted = transformers_logits(path)
    assert np.abs(found - wanted).max() <= 1e-4 * np.abs(wanted).max()
