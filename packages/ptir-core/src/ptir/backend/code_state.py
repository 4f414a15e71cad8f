"""The state of installed code: what is kept on disk holds for the code that made it alone."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from ptir.backend.disk_cache import digest_key


def code_states(*made: type) -> list[str] | None:
    """The states of ptir and of the packages of ``made``, or None where one is unknown."""
    packages = sorted({"ptir", *(one.__module__.partition(".")[0] for one in made)})
    states = [state for name in packages if (state := _state(name)) is not None]
    return states if len(states) == len(packages) else None


@cache
def _state(package: str) -> str | None:
    """The sizes and times of change of a package's files: other code has another state.

    None where the code is not in files. Taken once a process, whose code does not change.
    """
    origin = getattr(sys.modules[package], "__file__", None)
    if origin is None or not os.path.exists(origin):
        return None
    path = Path(origin)
    if path.name == "__init__.py":
        files = sorted(_code_files(str(path.parent)))
    else:
        files = [(origin, path.stat())]
    states = (repr((name, status.st_size, status.st_mtime_ns)) for name, status in files)
    return digest_key(*states)


def _code_files(folder: str) -> Iterator[tuple[str, os.stat_result]]:
    with os.scandir(folder) as listing:
        for entry in listing:
            if entry.is_dir():
                yield from _code_files(entry.path)
            elif entry.name.endswith((".py", ".h", ".c")):
                yield entry.path, entry.stat()
