"""Parse JSON from files that are not trusted: one error for everything that can be wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ptir.errors import CheckpointError


def parse_json_object(text: str | bytes, what: str) -> dict[str, Any]:
    """The JSON object in ``text`` (bytes must be UTF-8).

    Raises ``CheckpointError`` opening with ``what`` when it is not UTF-8, not JSON, not an object,
    nested too deeply, or has a duplicate key or a string that is not valid Unicode.
    """
    try:
        decoded = text.decode("utf-8") if isinstance(text, bytes) else text
        value = json.loads(decoded, object_pairs_hook=_unique)
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{what} is not valid JSON: {_reason(error)}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{what} holds a JSON {type(value).__name__}; it must be an object")
    return value


def read_json_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file; raises ``CheckpointError``."""
    return parse_json_object(read_text(path), str(path))


def read_text(path: Path) -> str:
    """The text of a UTF-8 file, line ends untouched; raises ``CheckpointError``."""
    try:
        return path.read_bytes().decode("utf-8")
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path}: is not UTF-8 text: {error.reason}") from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"duplicate key {key!r}")
        found[key] = value
    return found


def _reason(error: Exception) -> str:
    return "nested too deeply" if isinstance(error, RecursionError) else str(error)
