"""Where ptir keeps what it can compute again, and how a file there is replaced."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path


def cache_folder() -> Path:
    """Where ptir keeps what it can compute again: ``PTIR_CACHE_DIR``, else the platform's place."""
    if chosen := os.environ.get("PTIR_CACHE_DIR"):
        return Path(chosen)
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData/Local") / "ptir/Cache"
    if sys.platform == "darwin":
        return Path.home() / "Library/Caches/ptir"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ptir"


def replace_file(path: Path, content: bytes) -> None:
    """Write a file in one step, so that a reader sees the old one or the new one.

    Raises ``OSError``.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".part", delete=False) as part:
        part.write(content)
    os.replace(part.name, path)
