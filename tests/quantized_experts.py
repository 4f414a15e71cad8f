"""Small mixtures whose rows make whole groups, stored as Transformers does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ptir.checkpoint import Checkpoint, open_checkpoint, save_folder
from ptir.models import definition
from ptir.runtime.published import with_files
from ptir.runtime.specs import random_checkpoint

EXPERT = {
    "mixtral-tiny": "block_sparse_moe.experts.{}.w{}.weight",
    "qwen3_moe-tiny": "mlp.experts.{}.{}_proj.weight",
    "qwen3.5-moe-tiny": "mlp.experts.{}.{}_proj.weight",
    "qwen3_next-tiny": "mlp.experts.{}.{}_proj.weight",
}
"""What Transformers calls an expert's projections (its ``conversion_mapping``)."""
PARTS = {"gate": "1", "up": "3", "down": "2"}
"""Mixtral's numbers of projections."""


def expert(preset: str, layer: int, number: int, part: str) -> str:
    """The name of a matrix of one expert in a folder."""
    called = PARTS[part] if preset.startswith("mixtral") else part
    return f"layers.{layer}.{EXPERT[preset].format(number, called)}"


def mixture(preset: str, folder: Path) -> Checkpoint:
    """A folder of random weights; experts of Qwen3 MoE are 64 wide, which 32 divide."""
    with _changed(preset):
        path = save_folder(with_files(random_checkpoint(preset, 0)), folder)
    return open_checkpoint(path)


@contextmanager
def _changed(preset: str) -> Iterator[None]:
    presets = definition("qwen3_moe").presets
    with pytest.MonkeyPatch.context() as patch:
        if preset in presets:
            wider = {**presets[preset], "moe_intermediate_size": 64}
            patch.setitem(presets, preset, wider)  # type: ignore[arg-type]
        yield
