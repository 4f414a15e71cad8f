"""Reading files that are given by name or open, up to a limit: nobody vouches for their sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ptir.errors import PtirError, UsageError, short


def read_path(path: Path, most: int, error: type[PtirError], remedy: str) -> bytes:
    """The bytes of a file; raises ``error`` where it cannot be read or has more than ``most``.

    ``remedy`` is what to do with a file that is too large.
    """
    try:
        with path.open("rb") as file:
            return read_file(file, str(path), most, error, remedy)
    except (OSError, ValueError) as failure:  # a name with a NUL is a ValueError
        raise error(f"{short(str(path))}: cannot be read: {_why(failure)}") from failure


def read_file(file: Any, name: str, most: int, error: type[PtirError], remedy: str) -> bytes:
    """The same of a file that is open; ``UsageError`` where it is one of text."""
    held = file.read(most + 1)
    if not isinstance(held, bytes):
        raise UsageError(f"{name} gives {type(held).__name__}; open it in binary mode")
    if len(held) > most:
        raise error(f"{name}: has more than {most >> 20:,} MiB; {remedy}")
    return held


def read_lines(path: Path, most: int, what: str) -> list[str]:
    """The lines of a text file in UTF-8, which hold ``what``; raises ``UsageError``."""
    try:
        with path.open("rb") as file:
            held = read_file(file, str(path), most, UsageError, f"give a file of {what} alone")
        return held.decode("utf-8-sig").splitlines()
    except (OSError, ValueError) as failure:
        raise UsageError(f"{path}: {what} cannot be read: {_why(failure)}") from failure


def _why(failure: Exception) -> object:
    return getattr(failure, "strerror", None) or failure
