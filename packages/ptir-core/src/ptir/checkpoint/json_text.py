"""Parse JSON from files that are not trusted: one error for everything that can be wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from ptir.checkpoint import foreign
from ptir.errors import CheckpointError

MOST_NESTED: Final = 100
"""Levels of objects and lists in a file of settings."""


def parse_json_object(text: str | bytes, what: str) -> dict[str, Any]:
    """The JSON object in ``text`` (bytes must be UTF-8).

    Raises ``CheckpointError`` opening with ``what`` when it is not UTF-8, not JSON (and says what
    it is, where that is known), not an object, nested too deeply, or has a duplicate key or a
    string that is not valid Unicode.
    """
    decoded = ""
    try:
        decoded = text.decode("utf-8") if isinstance(text, bytes) else text
        value = json.loads(decoded, object_pairs_hook=_unique)
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except (ValueError, RecursionError) as error:
        other = foreign.instead_of_json(decoded) if decoded or not text else None
        said = f"is no JSON but {other}" if other else f"is not valid JSON: {_reason(error)}"
        raise CheckpointError(f"{what} {said}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{what} holds a JSON {type(value).__name__}; it must be an object")
    return value


def parse_settings(text: str, what: str) -> dict[str, Any]:
    """Like ``parse_json_object``, and nested as little as settings are: they are printed again."""
    found = parse_json_object(text, what)
    level: list[Any] = [found]
    for _ in range(MOST_NESTED):
        inner = (one.values() if isinstance(one, dict) else one for one in level)
        level = [one for values in inner for one in values if isinstance(one, dict | list)]
    if level:
        raise CheckpointError(f"{what} is nested too deeply: more than {MOST_NESTED} levels")
    return found


def read_json_object(path: Path) -> dict[str, Any]:
    """The settings in a JSON file; raises ``CheckpointError``."""
    return parse_settings(read_text(path), str(path))


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
