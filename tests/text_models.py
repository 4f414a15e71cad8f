"""Small encoders under the keys of Transformers, with weights that a name decides."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from ptir.checkpoint import Checkpoint, save_folder
from ptir.params.source import ArraySource
from ptir.runtime import TextModel

FILE = Path(__file__).parent / "data" / "encoders.json"
"""What Transformers calls the tensors of small encoders, and what the models compute.

Written by scripts/generate_encoder_expectations.py.
"""
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz"]
WORDS += [*(f"##{letter}" for letter in "abcdefghijklmnopqrstuvwxyz"), "cat", "dog", "##gy", "."]
"""A vocab.txt: letters, and a few words."""


def cases() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = json.loads(FILE.read_text(encoding="utf-8"))
    return found


def rows(lengths: list[int], vocabulary: int) -> tuple[np.ndarray[Any, Any], ...]:
    """Token ids i32[B,T], kinds that are 1 in the last third of a row, and lengths i32[B]."""
    rng = np.random.default_rng(11)
    ids = rng.integers(3, vocabulary, (len(lengths), max(lengths))).astype(np.int32)
    count = np.array(lengths, np.int32)
    places = np.arange(max(lengths))
    real = places < count[:, None]
    kinds = (real & (3 * places >= 2 * count[:, None])).astype(np.int32)
    return np.where(real, ids, 0).astype(np.int32), kinds, count


def output(model: TextModel, *given: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """What the network gives for tokens, kinds and counts."""
    with model.policies():
        found: np.ndarray[Any, Any] = model._output(*map(model._tensor, given)).numpy()
    return found


def saved(checkpoint: Checkpoint, folder: Path, **files: Any) -> Path:
    """The checkpoint in a folder of ``folder``, with further files: texts, or JSON."""
    place = save_folder(checkpoint, folder / f"m{len([*folder.iterdir()])}")
    for name, value in files.items():
        path = place / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(value if isinstance(value, str) else json.dumps(value))
    return place


def changed(checkpoint: Checkpoint, **arrays: np.ndarray[Any, Any]) -> Checkpoint:
    """The checkpoint with other tensors."""
    held = {name: checkpoint.source.read(name) for name in checkpoint.source.names()}
    return Checkpoint(**{**vars(checkpoint), "source": ArraySource({**held, **arrays})})
