"""Ollama's store: ``manifests/HOST/OWNER/NAME/TAG``, JSON that names blobs by their digests."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from ptir.checkpoint.json_text import read_json_object
from ptir.errors import CheckpointError, short
from ptir.stores.files import Found

NAME: Final = "ollama"
HOST, OWNER = "registry.ollama.ai", "library"
"""What Ollama leaves out of a name."""
MODEL: Final = "application/vnd.ollama.image.model"
ADAPTER: Final = "application/vnd.ollama.image.adapter"
DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}", re.ASCII)
LATEST: Final = "latest"
"""The tag that a name without one means."""


def folders() -> tuple[Path, ...]:
    """``OLLAMA_MODELS``, else those of the user and of the service that installers set up."""
    if chosen := os.environ.get("OLLAMA_MODELS"):
        return (Path(chosen).expanduser(),)
    return Path.home() / ".ollama/models", Path("/usr/share/ollama/.ollama/models")


def models(folder: Path) -> Iterator[Found]:
    """The model of every manifest."""
    manifests = folder / "manifests"
    for path in sorted(manifests.glob("*/*/*/*")):
        if path.is_dir() or path.name.startswith("."):
            continue
        host, owner, model, tag = path.relative_to(manifests).parts
        before = () if (host, owner) == (HOST, OWNER) else (owner,)
        name = "/".join((*(() if host == HOST else (host,)), *before, model))
        try:
            blob = _blob(folder, path)
        except CheckpointError as error:
            yield Found(name, tag, path, NAME, problem=str(error))
        else:
            yield Found(name, tag, blob, NAME, (blob,))


def _blob(folder: Path, manifest: Path) -> Path:
    """The file with a manifest's model; raises ``CheckpointError`` saying what is wrong."""
    layers = read_json_object(manifest).get("layers")
    if not isinstance(layers, list) or not all(isinstance(layer, dict) for layer in layers):
        raise CheckpointError(f"{manifest}: layers {short(layers)} must be a list of objects")
    _check_kinds(manifest, [layer.get("mediaType") for layer in layers])
    digest = next(layer.get("digest") for layer in layers if layer.get("mediaType") == MODEL)
    if not isinstance(digest, str) or not DIGEST.fullmatch(digest):
        raise CheckpointError(
            f"{manifest}: digest {short(digest)} must be sha256: and 64 hexadecimal digits; pull"
            " the model with Ollama again"
        )
    blob = folder / "blobs" / digest.replace(":", "-")
    if not blob.is_file():
        raise CheckpointError(f"{blob}: is not there; pull the model with Ollama again")
    return blob


def _check_kinds(manifest: Path, kinds: list[Any]) -> None:
    if ADAPTER in kinds:
        raise CheckpointError(
            f"{manifest}: has a LoRA adapter, which is not implemented; merge it into the model"
        )
    if kinds.count(MODEL) != 1:
        raise CheckpointError(
            f"{manifest}: has {kinds.count(MODEL)} layers of type {MODEL}, and not one; choose a"
            " model that is one GGUF file"
        )
