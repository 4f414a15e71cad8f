"""Model specs: ``demo``, a folder, a file, ``random:NAME`` or a Hugging Face hub id."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from ptir.checkpoint import BpeFiles, Checkpoint, open_checkpoint
from ptir.errors import CheckpointError, UsageError
from ptir.models import ModelDefinition
from ptir.models.table import preset
from ptir.params.source import RandomSource
from ptir.types import TensorType

RANDOM = "random:"


def data_folder(name: str) -> Path:
    """A folder of data that is shipped inside the package."""
    return Path(str(resources.files("ptir"))) / "data" / name


def resolve(spec: str, *, seed: int = 0) -> Checkpoint:
    """The checkpoint that ``spec`` names; ``seed`` is for random weights.

    A hub id is looked up in the local cache only (``ptir pull`` fetches). Raises
    ``CheckpointError`` or ``UsageError``.
    """
    if spec == "demo":
        return open_checkpoint(data_folder("demo"))
    if spec.startswith(RANDOM):
        return random_checkpoint(spec.removeprefix(RANDOM), seed)
    path = Path(spec).expanduser()
    if path.exists():
        return open_checkpoint(path)
    if looks_like_hub_id(spec):
        return open_checkpoint(cached_snapshot(spec))
    raise UsageError(
        f"model {spec!r}: no such file or folder; a model is `demo`, random:NAME, a folder, a"
        " file, or a hub id OWNER/NAME fetched with `ptir pull`"
    )


def looks_like_hub_id(spec: str) -> bool:
    """Whether ``spec`` has the form OWNER/NAME."""
    owner, slash, name = spec.partition("/")
    return bool(owner and slash and name) and "/" not in name and not spec.startswith((".", "/"))


def cached_snapshot(hub_id: str) -> Path:
    """The local snapshot of a hub model; raises ``CheckpointError`` when it was not pulled."""
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(hub_id, local_files_only=True))
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"model {hub_id!r} is not on this machine; fetch it with `ptir pull {hub_id}`"
        ) from error


def random_checkpoint(name: str, seed: int) -> Checkpoint:
    """Seeded random weights at the real shapes of the architecture preset called ``name``.

    Matrices are normal with standard deviation 0.02, as GPT-2 was initialized; biases are noise
    around 0 and norm scales noise around 1, so that none of them goes unnoticed.
    """
    model, config = preset(name)
    source = RandomSource(parameter_types(model, config), seed, _deviation, _mean)
    return Checkpoint(
        path=Path(f"{RANDOM}{name}"),
        config=config,
        generation_config={},
        tokenizer_config={},
        source=source,
        tokenizer=shipped_tokenizer(model.tokenizer),
        files=(),
    )


def parameter_types(model: ModelDefinition, config: Mapping[str, Any]) -> dict[str, TensorType]:
    """The declared parameters of an architecture at ``config``."""
    types: dict[str, TensorType] = model.build(config).parameters()
    return types


def _deviation(name: str, type: TensorType) -> float:
    return 0.1 if type.rank == 1 else 0.02


def _mean(name: str, type: TensorType) -> float:
    return 1.0 if type.rank == 1 and name.endswith(".weight") else 0.0


def shipped_tokenizer(name: str) -> BpeFiles | None:
    """The tokenizer called ``name`` that the package carries, or None."""
    folder = data_folder(f"{name}-tokenizer")
    if not name or not folder.is_dir():
        return None
    vocab = (folder / "vocab.json").read_text(encoding="utf-8")
    return BpeFiles(vocab, (folder / "merges.txt").read_text(encoding="utf-8"))
