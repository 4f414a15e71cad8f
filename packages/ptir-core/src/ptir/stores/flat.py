"""LM Studio's folders, ``OWNER/NAME/FILES``, and llama.cpp's, ``OWNER_NAME_FILE.gguf``."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ptir.stores.files import SUFFIX, Found, gguf_models, models_in, stem_of
from ptir.stores.hub import cache_home

LMSTUDIO, LLAMA_CPP = "lmstudio", "llama.cpp"
DOWNLOADED: Final = re.compile(
    r"(?P<owner>[^_]+)_(?P<name>.+?-GGUF)_(?P<file>.+)", re.IGNORECASE | re.DOTALL
)
"""A file that llama.cpp fetched: names are told apart by the repository's, which ends in -GGUF."""


def lmstudio_folders() -> tuple[Path, ...]:
    """Where LM Studio keeps models, now and in older versions."""
    return Path.home() / ".lmstudio/models", Path.home() / ".cache/lm-studio/models"


def lmstudio_models(folder: Path) -> Iterator[Found]:
    """The models of every folder of a folder."""
    for repository in sorted(path for path in folder.glob("*/*") if path.is_dir()):
        yield from models_in(repository, repository.relative_to(folder).as_posix(), LMSTUDIO)


def llama_cpp_folders() -> tuple[Path, ...]:
    """``LLAMA_CACHE``, else ``llama.cpp`` in the user's cache folder."""
    chosen = os.environ.get("LLAMA_CACHE")
    return (Path(chosen).expanduser() if chosen else cache_home() / "llama.cpp",)


def llama_cpp_models(folder: Path) -> Iterator[Found]:
    """The models of every repository; one whose repository cannot be told goes by its file."""
    repositories: dict[str, dict[str, Path]] = {}
    for path in sorted(folder.iterdir()):
        if path.name.lower().endswith(SUFFIX):
            match = DOWNLOADED.fullmatch(path.name)
            name = f"{match['owner']}/{match['name']}" if match else stem_of(path.name)
            inside = match["file"] if match else path.name
            repositories.setdefault(name, {})[inside] = path
    for name, files in repositories.items():
        for found in gguf_models(files, name, LLAMA_CPP):
            variant = "" if "/" not in name and len(repositories[name]) == 1 else found.variant
            yield Found(**{**vars(found), "variant": variant})
