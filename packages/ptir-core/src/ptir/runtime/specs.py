"""Model specs: ``demo``, a folder, a file, ``random:NAME``, or a model of a store by its name."""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

from ptir.checkpoint import BpeFiles, Checkpoint, open_checkpoint
from ptir.checkpoint.folder import CONFIG
from ptir.errors import CheckpointError, UsageError, nearest
from ptir.models import ModelDefinition
from ptir.models.table import preset, presets
from ptir.params.source import RandomSource
from ptir.types import TensorType

DEMO: Final = "demo"
RANDOM = "random:"
HUB: Final = re.compile(r"^((https?://)?(www\.)?(huggingface\.co|hf\.co)/|hf://)")
"""What addresses of the hub begin with."""
ID: Final = re.compile(r"(?P<owner>[^/:\s]+)/(?P<name>[^/:\s]+)(:(?P<pattern>[^/]+))?")
"""OWNER/NAME, and perhaps a pattern of one of its GGUF files."""
PAGE: Final = re.compile(
    r"(?P<owner>[^/:]+)/(?P<name>[^/:]+)"
    r"(/(tree|blob|resolve|raw)/(?P<revision>[^/]+)(/(?P<path>.+))?|/(?P<file>.+\.gguf))?/?",
    re.IGNORECASE,
)
"""What a browser shows of a repository, of a folder or of a file in it."""
FILES: Final = (".gguf", ".safetensors", ".gptrs")
"""Ends of names that are files and no repositories."""
BYTES = 256
"""The first ids of a byte-level tokenizer, one for each byte."""


def data_folder(name: str) -> Path:
    """A folder of data that is shipped inside the package."""
    return Path(str(resources.files("ptir"))) / "data" / name


def resolve(spec: str, *, seed: int = 0) -> Checkpoint:
    """The checkpoint that ``spec`` names; ``seed`` is for random weights.

    Nothing is fetched (``ptir pull`` does). Raises ``CheckpointError`` or ``UsageError``.
    """
    if spec.startswith(RANDOM):
        return random_checkpoint(spec.removeprefix(RANDOM), seed)
    return open_checkpoint(located(spec))


def located(spec: str) -> Path:
    """The folder or file that ``spec`` names: the shipped model, a path, or one of a store.

    Raises ``CheckpointError`` for a model that is damaged or not on this machine, ``UsageError``
    for a name of several and for what is no name.
    """
    if spec == DEMO:
        return data_folder(DEMO)
    path = Path(spec).expanduser()
    if path.is_file() or (path / CONFIG).exists():
        return path
    from ptir.stores import STORES, found_models, named, within  # most are found without them

    folder, _, pattern = spec.rpartition(":")
    if path.exists():
        return within(path)
    if folder and Path(folder).expanduser().is_dir():
        return within(Path(folder).expanduser(), pattern)

    models, asked = found_models(), split_hub_id(spec)
    found = named(spec, models)
    if found is None and asked is not None and HUB.match(spec):
        found = named(str(asked), models)
    if found is not None:
        if found.problem:
            title = next(store.title for store in STORES if store.name == found.store)
            raise CheckpointError(f"model {spec!r} of {title}: {found.problem}")
        return found.path
    if asked is not None:
        raise CheckpointError(
            f"model {spec!r} is not on this machine; fetch it with `ptir pull {spec}`"
        )
    known = [DEMO, *(f"{RANDOM}{name}" for name in presets()), *(one.name for one in models)]
    near = nearest(spec, known)
    meant = f" (nearest: {', '.join(near)})" if near else ""
    raise UsageError(
        f"model {spec!r}: no such file or folder{meant}; a model is `demo`, random:NAME, a folder,"
        " a file, a hub id OWNER/NAME fetched with `ptir pull`, or a name in Ollama, LM Studio or"
        " llama.cpp's cache"
    )


class HubId(NamedTuple):
    """A repository of the hub, and a pattern of one of its GGUF files; nothing means the whole.

    ``revision`` is what an address says besides.
    """

    repository: str
    pattern: str
    revision: str = ""

    def __str__(self) -> str:
        return f"{self.repository}:{self.pattern}" if self.pattern else self.repository


def split_hub_id(spec: str) -> HubId | None:
    """``spec`` as OWNER/NAME or OWNER/NAME:PATTERN; None where it has neither form.

    The address of the hub may stand before it, and may be that of a folder or a file's page.
    """
    bare = HUB.sub("", spec)
    page = PAGE.fullmatch(bare.partition("?")[0].partition("#")[0]) if bare != spec else None
    if page is not None:
        revision = unquote(page["revision"] or "")
        pattern = _pattern_of(page["path"] or page["file"] or "")
        repository = f"{page['owner']}/{page['name']}"
        return HubId(repository, pattern, "" if revision == "main" else revision)
    found = ID.fullmatch(bare)
    if found is None or bare.startswith((".", "~")) or found["name"].lower().endswith(FILES):
        return None
    return HubId(f"{found['owner']}/{found['name']}", found["pattern"] or "")


def _pattern_of(path: str) -> str:
    """The pattern of the GGUF file, or of the folder of such, at a path; nothing for others."""
    from ptir.stores.files import SUFFIX, stem_of

    name = unquote(path).rstrip("/").rpartition("/")[2]
    if name.lower().endswith(SUFFIX):
        return stem_of(name)
    return "" if re.search(r"\.[a-z]+$", name) else name


def random_checkpoint(name: str, seed: int) -> Checkpoint:
    """Seeded random weights at the real shapes of the architecture preset called ``name``.

    Matrices are normal with standard deviation 0.02, as GPT-2 was initialized, and filters of
    convolutions have a variance of one over their inputs; biases are noise around 0, norm scales
    and variances noise around 1, so that none of them goes unnoticed.
    """
    model, config = preset(name)
    source = RandomSource(parameter_types(model, config), seed, _deviation, _mean)
    return Checkpoint(
        path=Path(f"{RANDOM}{name}"),
        config=config,
        generation_config={},
        tokenizer_config={},
        source=source,
        tokenizer=shipped_tokenizer(model.tokenizer, int(config.get("vocab_size", 0))),
        files=(),
    )


def parameter_types(model: ModelDefinition, config: Mapping[str, Any]) -> dict[str, TensorType]:
    """The declared parameters of an architecture at ``config``."""
    types: dict[str, TensorType] = model.build(config).parameters()
    return types


def _deviation(name: str, type: TensorType) -> float:
    if type.rank == 4:
        return 1 / math.sqrt(math.prod(type.shape[1:]))
    return 0.1 if type.rank == 1 else 0.02


AROUND_ONE: Final = (".weight", "scale", ".layer_scalar", ".running_var")
"""Ends of the names of vectors that scale."""


def _mean(name: str, type: TensorType) -> float:
    return 1.0 if type.rank == 1 and name.endswith(AROUND_ONE) else 0.0


@functools.cache
def shipped_tokenizer(name: str, size: int) -> BpeFiles | None:
    """The byte-level tokenizer called ``name`` that the package carries, for ``size`` ids.

    A smaller vocabulary gets its first ids: the 256 bytes, then one token a merge in the order of
    the merges, so that what is left is a whole tokenizer. None where there is no such folder, or
    where not even the bytes fit.
    """
    folder = data_folder(f"{name}-tokenizer")
    if not name or not folder.is_dir() or size < BYTES:
        return None
    vocab = (folder / "vocab.json").read_text(encoding="utf-8")
    merges = (folder / "merges.txt").read_text(encoding="utf-8")
    ids: dict[str, int] = json.loads(vocab)
    if size >= len(ids):
        return BpeFiles(vocab, merges)
    kept = {token: index for token, index in ids.items() if index < size}
    lines = merges.splitlines()[: 1 + size - BYTES]  # the first one is the version
    return BpeFiles(json.dumps(kept, ensure_ascii=False), "\n".join(lines) + "\n")
