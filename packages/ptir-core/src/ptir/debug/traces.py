"""Traces: the results of every layer of a model in a file, and what two of them differ in."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ptir.checkpoint import load_archive, save_archive
from ptir.debug.difference import Difference, Tolerance, difference
from ptir.errors import CheckpointError, UsageError
from ptir.types import dtype_of

if TYPE_CHECKING:
    from ptir.runtime.handle import Model
    from ptir.runtime.image_model import ImageModel

Array = np.ndarray[Any, Any]

KIND: Final = "ptir trace 1"
"""What the metadata of a trace says that it is."""
RESULTS: Final = frozenset({"logits", "output", "features", "scores"})
"""What models give, beside what their layers give: any two models may have these."""
ORDER: Final = "\n"
"""What stands between the names of layers in the metadata."""


@dataclass(frozen=True)
class Trace:
    """Arrays by layer, in the order of the model, and what they were computed of."""

    arrays: Mapping[str, Array]
    model: str
    tokens: str
    """Token ids, separated by commas; of an image a digest."""
    target: str


@dataclass(frozen=True)
class TraceDifference:
    """A layer that both traces have; ``found`` is None where their types differ."""

    name: str
    found: Difference | None
    right: bool


def trace_model(model: Model, tokens: Sequence[int]) -> Trace:
    """Every layer's output and the logits, for all positions of ``tokens``."""
    ids = ",".join(map(str, tokens))
    return Trace(model.trace([*tokens]), model.name, ids, str(model.target))


def trace_image(model: ImageModel, pixels: Array) -> Trace:
    """Every layer's output, features and scores, of prepared images f32[N,H,W,3]."""
    digest = hashlib.blake2b(np.ascontiguousarray(pixels).tobytes(), digest_size=16).hexdigest()
    shape = "x".join(map(str, pixels.shape))
    return Trace(model.trace(pixels), model.name, f"image {shape} {digest}", str(model.target))


def write_trace(path: Path, trace: Trace) -> None:
    """Write an archive (safetensors) whose metadata says what it is."""
    said = {"kind": KIND, "model": trace.model, "token_ids": trace.tokens, "target": trace.target}
    save_archive(path, trace.arrays, {**said, "order": ORDER.join(trace.arrays)})


def read_trace(path: Path) -> Trace:
    """A trace that was written; raises ``CheckpointError`` for other archives."""
    archive = load_archive(path)
    said = archive.metadata
    if said.get("kind") != KIND:
        raise CheckpointError(
            f"{path}: is no trace (its metadata say kind {said.get('kind')!r}, a trace {KIND!r});"
            " `ptir trace MODEL --out FILE` writes one"
        )
    names = said.get("order", "").split(ORDER)
    if sorted(names) != sorted(archive.arrays):
        raise CheckpointError(f"{path}: its arrays are not those that its metadata list")
    arrays = {name: archive.arrays[name] for name in names}
    return Trace(arrays, *(said.get(key, "") for key in ("model", "token_ids", "target")))


def diff_traces(one: Trace, other: Trace, tolerance: Tolerance) -> Iterator[TraceDifference]:
    """Layer by layer in the order of ``one``, what ``other`` differs in.

    Raises ``UsageError`` where the two are of other texts or images, or share no layer.
    """
    if one.tokens != other.tokens:
        what, which = ("image",) * 2 if "image" in one.tokens + other.tokens else ("tokens", "text")
        raise UsageError(
            f"the traces are of other {what} ({_short(one.tokens)} and {_short(other.tokens)}):"
            f" trace the same {which} with both"
        )
    shared = [name for name in one.arrays if name in other.arrays]
    if RESULTS.issuperset(shared) and not RESULTS.issuperset({*one.arrays, *other.arrays}):
        names = (_short(", ".join(trace.arrays)) for trace in (one, other))
        raise UsageError(
            f"the traces share no layer: {one.model} has {next(names)}, {other.model} has"
            f" {next(names)}; they are of models of other families"
        )
    for name in shared:
        wanted, got = one.arrays[name], other.arrays[name]
        if wanted.shape != got.shape or dtype_of(wanted) != dtype_of(got):
            yield TraceDifference(name, None, False)
            continue
        found = difference(got, wanted)
        yield TraceDifference(name, found, tolerance.allows(found))


def missing_layers(one: Trace, other: Trace) -> list[str]:
    """Layers that only one of them has."""
    return [*(one.arrays.keys() ^ other.arrays.keys())]


def _short(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:37]}..."
