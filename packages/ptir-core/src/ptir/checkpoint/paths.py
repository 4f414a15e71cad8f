"""Paths that files name: what may be opened beside them."""

from __future__ import annotations

from pathlib import PurePosixPath, PureWindowsPath
from typing import Final

_MAX_NAME_BYTES: Final = 255
"""Longer names are refused by file systems."""


def stays_inside(path: str) -> bool:
    """Whether ``path`` names something inside the folder that it is told for.

    Lexical on purpose: download caches store files as links that point elsewhere.
    """
    windows = PureWindowsPath(path)
    parts = PurePosixPath(path).parts
    unsafe = windows.drive or windows.root or "\\" in path or "\0" in path or ".." in parts
    return bool(parts) and not unsafe and len(path.encode()) <= _MAX_NAME_BYTES
