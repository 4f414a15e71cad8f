"""The published schema of report files: whether a line is as it says."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache
from importlib import resources
from typing import Any, Final

import fastjsonschema

from ptir.errors import UsageError

KINDS: Final = {"header": "header", "case": "row", "footer": "footer"}
"""The kinds of lines, and what the schema calls them."""


@cache
def schema() -> dict[str, Any]:
    """The schema, as it is installed with the suite."""
    file = resources.files("ptir_testsuite.reports").joinpath("report.schema.json")
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found


@cache
def _checks() -> dict[str, Callable[[Any], Any]]:
    parts = schema()["$defs"]
    return {
        kind: fastjsonschema.compile({**parts[name], "$defs": parts})
        for kind, name in KINDS.items()
    }


def require(record: Mapping[str, Any], where: str) -> None:
    """Raise ``UsageError`` where a line is not as the schema says; ``where`` names it."""
    kind = record.get("kind")
    if kind not in KINDS:
        raise UsageError(
            f"{where}: not a line of a report: its kind is {kind!r}, and must be one of"
            f" {', '.join(KINDS)}"
        )
    try:
        _checks()[kind](record)
    except fastjsonschema.JsonSchemaValueException as error:
        text = error.message.removeprefix("data").lstrip(". ")
        raise UsageError(f"{where}: not as report.schema.json says: {text}") from None
