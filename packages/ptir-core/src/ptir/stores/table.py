"""**Table** of the programs whose models are found: where each keeps them, and how to list them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ptir.stores import flat, hub, ollama
from ptir.stores.files import Found


@dataclass(frozen=True)
class Store:
    """One program: its name before a model's (``ollama:llama3.2``), its title and its folders.

    ``models(folder)`` gives what a folder holds, reading names and manifests alone.
    """

    name: str
    title: str
    folders: Callable[[], tuple[Path, ...]]
    models: Callable[[Path], Iterator[Found]]


STORES: Final = (
    Store(hub.NAME, "the Hugging Face cache", hub.folders, hub.models),
    Store(ollama.NAME, "Ollama", ollama.folders, ollama.models),
    Store(flat.LMSTUDIO, "LM Studio", flat.lmstudio_folders, flat.lmstudio_models),
    Store(flat.LLAMA_CPP, "llama.cpp", flat.llama_cpp_folders, flat.llama_cpp_models),
)


def found_models() -> list[Found]:
    """Every model of every store; a folder that cannot be read is one with that problem."""
    return [found for store in STORES for folder in store.folders() for found in _in(store, folder)]


def _in(store: Store, folder: Path) -> list[Found]:
    try:
        return list(store.models(folder)) if folder.is_dir() else []
    except OSError as error:
        said = f"{folder}: cannot be read ({error.strerror or error})"
        return [Found(str(folder), "", folder, store.name, problem=said)]
