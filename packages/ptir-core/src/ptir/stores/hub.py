"""The cache of the Hugging Face hub: ``models--OWNER--NAME/snapshots/REVISION/FILES``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ptir.stores.files import Found, models_in

NAME: Final = "hub"
MODELS: Final = "models--"


def folders() -> tuple[Path, ...]:
    """``HF_HUB_CACHE``, else ``hub`` in ``HF_HOME``, else in the user's cache folder."""
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if chosen := os.environ.get(variable):
            return (Path(chosen).expanduser(),)
    if home := os.environ.get("HF_HOME"):
        return (Path(home).expanduser() / "hub",)
    return (cache_home() / "huggingface" / "hub",)


def cache_home() -> Path:
    """``XDG_CACHE_HOME``, else ``~/.cache``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def models(folder: Path) -> Iterator[Found]:
    """The models of every repository's snapshot that ``main`` names, or of its only one."""
    for repository in sorted(folder.glob(f"{MODELS}*")):
        name = repository.name.removeprefix(MODELS).replace("--", "/")
        snapshots = sorted(path for path in (repository / "snapshots").glob("*") if path.is_dir())
        main = _main(repository)
        chosen = [path for path in snapshots if path.name == main] if main else snapshots
        if len(chosen) == 1:
            yield from models_in(chosen[0], name, NAME)
        else:
            yield Found(name, "", repository, NAME, problem=_problem(name, main, snapshots))


def _main(repository: Path) -> str:
    """The revision that ``main`` names; nothing where it is not known."""
    try:
        return (repository / "refs" / "main").read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _problem(name: str, main: str, snapshots: list[Path]) -> str:
    again = f"fetch it with `ptir pull {name}`"
    if main:
        return f"the snapshot {main} that main names is not there; {again}"
    if not snapshots:
        return f"it has no snapshot; {again}"
    return (
        f"main names none of its {len(snapshots)} snapshots; give the path of one of"
        f" {', '.join(map(str, snapshots))}"
    )
