"""From where a backend or plugin is imported, and whether its distribution installed it there.

A folder or file of the module's name that comes earlier on ``sys.path``, such as one in the working
directory, hides what was installed. Nothing here imports a backend or plugin.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib import machinery, metadata, util
from pathlib import Path
from typing import Final

from ptir.backend.entries import Entry

SUFFIXES: Final = tuple(machinery.all_suffixes())
"""The ends of the names of files that are modules."""


@dataclass(frozen=True)
class Hiding:
    """A module that is imported from ``place`` and hides the one that a distribution installed."""

    module: str
    place: str
    distribution: str
    installed: str

    @property
    def fix(self) -> str:
        """What to do about it."""
        return (
            f"rename {self.place}, or take its folder off the path where modules are looked for"
            " (PYTHONPATH, the working directory)"
        )

    def __str__(self) -> str:
        return (
            f"{self.module} is imported from {self.place}, which hides what {self.distribution}"
            f" installed: {self.installed}"
        )


def hiding(entry: Entry) -> Hiding | None:
    """What hides the module of ``entry``; None where nothing does, or its metadata do not tell.

    A module that its distribution has not installed (an entry point may name another one's) is not
    hidden, and of an editable one whatever lies in the folder that is edited is right.
    """
    try:
        return _hiding(entry, entry.point.dist) if entry.point and entry.point.dist else None
    except Exception:  # noqa: BLE001  metadata of others may be anything, and then do not tell
        return None


def _hiding(entry: Entry, distribution: metadata.Distribution) -> Hiding | None:
    found = imported_from(entry.value.partition(":")[0].strip())
    if found is None:
        return None
    module, place = found
    folder = edited_folder(distribution)
    if folder is not None and _real(place).is_relative_to(_real(folder)):
        return None
    homes = [*_recorded(distribution, module), *_edited(distribution, folder, module)]
    if not homes or any(_real(home) == _real(place) for home in homes):
        return None
    named = f"{entry.distribution} {entry.version}"
    return Hiding(module, _whole(place), named, _whole(homes[0]))


def explained(entry: Entry, reason: str) -> str:
    """Why ``entry`` does not load; with what hides its module, which may be why."""
    found = hiding(entry)
    return f"{reason}; {found}; {found.fix}" if found else reason


def imported_from(module: str) -> tuple[str, str] | None:
    """The outermost package or module of ``module`` that is a file, and that file."""
    parts = module.split(".")
    for depth in range(1, len(parts) + 1):
        name = ".".join(parts[:depth])
        with suppress(ImportError, ValueError):  # it says so itself where it is loaded
            spec = util.find_spec(name)
            if spec is None:
                return None
            if spec.has_location and spec.origin:
                return name, spec.origin
    return None


def edited_folder(distribution: metadata.Distribution) -> str | None:
    """The folder that ``distribution`` is installed from by ``pip install -e``, else None."""
    said = distribution.read_text("direct_url.json")
    origin = json.loads(said) if said else {}
    if not origin.get("dir_info", {}).get("editable"):
        return None
    from urllib.parse import urlsplit
    from urllib.request import url2pathname

    return url2pathname(urlsplit(origin["url"]).path)


def _whole(place: str | Path) -> str:
    """The folder of a package, the file of a module."""
    path = Path(place)
    return str(path.parent if path.name.startswith("__init__.") else path)


def _real(path: str | Path) -> Path:
    return Path(os.path.realpath(path))


def _recorded(distribution: metadata.Distribution, module: str) -> Iterator[Path]:
    """Where the distribution's list of files has a module."""
    name = module.replace(".", "/")
    for path in distribution.files or ():
        stem = path.with_name(path.name.partition(".")[0]).as_posix()
        if stem in (name, f"{name}/__init__") and path.name.endswith(SUFFIXES):
            yield Path(str(path.locate()))


def _edited(distribution: metadata.Distribution, folder: str | None, module: str) -> Iterator[Path]:
    """Where a module lies that is edited below ``folder``: its list of files does not have it."""
    if folder is None:
        return
    links = [path for path in distribution.files or () if path.suffix == ".pth"]
    texts = [Path(str(link.locate())).read_text(encoding="utf-8") for link in links]
    lines = [line for text in texts for line in text.splitlines()]
    for base in (folder, os.path.join(folder, "src"), *filter(os.path.isdir, lines)):
        name = Path(base, *module.split("."))
        yield from filter(Path.is_file, (name / "__init__.py", name.with_suffix(".py")))
