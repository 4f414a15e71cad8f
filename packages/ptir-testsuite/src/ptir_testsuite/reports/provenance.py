"""Where a report comes from: versions, and digests of the code that the run executed.

Rows of one run can be put together with rows of another only where all of this agrees.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable
from functools import cache
from importlib import metadata
from pathlib import Path

from ptir.backend import Backend, registry

NOT_CODE = ("__pycache__",)


def code_of(backend: Backend) -> dict[str, str]:
    """A digest of all files of every package that a run executes, by package."""
    own = type(backend).__module__.partition(".")[0]
    return {name: _digest(name) for name in sorted({"ptir", "ptir_testsuite", own})}


@cache
def _digest(package: str) -> str:
    module = sys.modules[package]
    place = getattr(module, "__file__", None)
    if place is None:
        return "unknown"
    root = Path(place)
    files = [root]
    if root.name == "__init__.py":
        root = root.parent
        files = sorted(p for p in root.rglob("*") if p.is_file() and _is_code(p))
    state = hashlib.blake2b(digest_size=8)
    for file in files:
        name = file.relative_to(root).as_posix() if file != root else file.name
        content = hashlib.blake2b(file.read_bytes(), digest_size=16).hexdigest()
        state.update(f"{name} {content}\n".encode())
    return state.hexdigest()


def _is_code(path: Path) -> bool:
    return not any(part in NOT_CODE or part.startswith(".") for part in path.parts)


def version_of(backend: Backend) -> str:
    """The version of the distribution that a backend was installed with, or that it was not."""
    found = [entry.version for entry in registry.listed() if entry.name == backend.name]
    return found[0] if found else "not installed"


def suite_version() -> str:
    """The installed version of this distribution, or that it is run from its sources."""
    try:
        return metadata.version("ptir-testsuite")
    except metadata.PackageNotFoundError:
        return "not installed"


def digest_of(texts: Iterable[str]) -> str:
    """A digest of some lines of text, in their order."""
    return hashlib.blake2b("\n".join(texts).encode(), digest_size=16).hexdigest()
