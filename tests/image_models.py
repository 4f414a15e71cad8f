"""Small models of images under the keys of each library, with weights that a name decides."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ptir.checkpoint import Checkpoint
from ptir.params.source import ArraySource

FILE = Path(__file__).parent / "data" / "vision-keys.json"
"""What torchvision and timm call the tensors of small models, and what the models compute.

Written by scripts/generate_vision_expectations.py.
"""


def cases() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = json.loads(FILE.read_text(encoding="utf-8"))
    return found


def values(name: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """The weights of a tensor: those of matrices shrink with their inputs, variances are > 0."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    if name.endswith("running_var"):
        return rng.uniform(0.5, 2.0, shape).astype(np.float32)
    if len(shape) < 2:
        return (0.5 + 0.3 * rng.standard_normal(shape)).astype(np.float32)
    deviation = 1.2 / np.sqrt(np.prod(shape[1:]))
    return (deviation * rng.standard_normal(shape)).astype(np.float32)


def image(shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Prepared images f32[N,H,W,3]."""
    return np.random.default_rng(7).standard_normal(shape).astype(np.float32)


def checkpoint(config: Mapping[str, Any], shapes: Mapping[str, Any], **more: Any) -> Checkpoint:
    """A checkpoint with tensors of these names."""
    source = ArraySource({n: values(n, tuple(shape)) for n, shape in shapes.items()})
    return Checkpoint(Path("m"), dict(config), {}, {}, source, None, (), **more)
