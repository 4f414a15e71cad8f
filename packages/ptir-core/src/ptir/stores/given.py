"""Models in a folder that a user names: folders, GGUF files and single files, each by its path."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from ptir.checkpoint import foreign
from ptir.checkpoint.folder import CONFIG
from ptir.stores.files import ADAPTER, ADAPTER_CONFIG, SUFFIX, Found, broken, grouped, stem_of

NAME: Final = "given"
SAFETENSORS: Final = ".safetensors"


def models_under(path: Path) -> Iterator[Found]:
    """The model that a file is, or the models in a folder and its folders, by their paths.

    Only names are read. A folder that cannot be is one with that problem.
    """
    if not path.is_dir():
        lost = "" if path.exists() else f"{path}: no such file or folder"
        yield Found(str(path), "", path, NAME, (path,), lost, stem=_stem(path))
        return
    refused: list[OSError] = []
    for where, inside, names in os.walk(path, onerror=refused.append):
        inside.sort()
        yield from _models_of(Path(where), sorted(names))
    for error in refused:
        folder = Path(error.filename)
        said = f"{folder}: cannot be read ({error.strerror or error})"
        yield Found(str(folder), "", folder, NAME, problem=said)


def _models_of(folder: Path, names: Sequence[str]) -> Iterator[Found]:
    """The models among the files of one folder."""
    for group in grouped(names):
        paths = tuple(folder / name for name in group.files)
        told, stem = group.companion, stem_of(group.files[0])
        yield Found(str(paths[0]), "", paths[0], NAME, paths, broken(paths), told, stem)
    weights = [name for name in names if name.endswith(SAFETENSORS)]
    if CONFIG not in names and ADAPTER_CONFIG not in names:
        for name in weights:
            alone = (folder / name,)
            yield Found(str(alone[0]), "", alone[0], NAME, alone, broken(alone))
    elif weights or any(map(foreign.told, names)):
        files = tuple(folder / name for name in names if not name.lower().endswith(SUFFIX))
        told = "" if CONFIG in names else ADAPTER
        yield Found(str(folder), "", folder, NAME, files, broken(files), told)


def _stem(path: Path) -> str:
    return stem_of(path.name) if path.name.lower().endswith(SUFFIX) else ""
