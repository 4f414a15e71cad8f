"""A page: one HTML file from a title, facts, and sections of the kinds that ``assets`` can draw."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Final

from ptir.errors import UsageError

STYLES: Final = ("base.css", "sections.css")
SCRIPTS: Final = (
    *("dom.js", "units.js", "list.js", "folding.js", "graph.js", "details.js"),
    *("roofline.js", "timeline.js", "memory.js", "table.js", "bars.js", "main.js"),
)
"""Files of ``assets``, in the order in which they stand in a page."""


@dataclass(frozen=True)
class Section:
    """A part of a page: ``kind`` is the name that its file in ``assets`` registers, ``data`` JSON.

    ``note`` says under the title how it is to be read.
    """

    kind: str
    title: str
    data: Any
    note: str = ""


def table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], note: str = ""
) -> Section:
    """A table that can be sorted and searched; numbers stand to the right.

    A cell is text, a number, or ``{"text": ..., "tone": "good" | "bad" | "quiet"}``.
    """
    return Section("table", title, {"columns": [*columns], "rows": [[*row] for row in rows]}, note)


def bars(title: str, unit: str, rows: Sequence[dict[str, Any]], note: str = "") -> Section:
    """Horizontal bars: each row has ``name``, ``value``, and perhaps ``low`` and ``high``."""
    return Section("bars", title, {"unit": unit, "rows": [*rows]}, note)


def page(title: str, facts: Sequence[tuple[str, str]], sections: Sequence[Section]) -> str:
    """The HTML of a page."""
    data = {
        "title": title,
        "facts": [[*fact] for fact in facts],
        "sections": [vars(section) for section in sections],
    }
    # "</script>" in a string would end the element; escaped it is the same JSON.
    held = json.dumps(data, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    parts = {
        "TITLE": html.escape(title),
        "STYLE": "\n".join(map(_asset, STYLES)),
        "DATA": held.replace("<", "\\u003c"),
        "SCRIPT": "\n".join(map(_asset, SCRIPTS)),
    }
    # What was put in is not looked at again: data may hold the names of what is replaced.
    pieces = _asset("page.html").split("@@")
    return "".join(parts[piece] if n % 2 else piece for n, piece in enumerate(pieces))


def write_page(path: Path, text: str) -> None:
    """Write a page; raises ``UsageError``."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}; choose another file") from error


def _asset(name: str) -> str:
    return resources.files("ptir.report").joinpath("assets", name).read_text(encoding="utf-8")
