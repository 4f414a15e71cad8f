"""How ``ptir eval`` shows what it found: a table, JSON, CSV, a page."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ptir.cli import show
from ptir.errors import UsageError, VerifyError

if TYPE_CHECKING:
    from ptir.cli.common import CommonOptions
    from ptir.cli.eval_options import Asked
    from ptir.peers.subject import Pair
    from ptir.runtime import Model

Cell = str | int | float | None


@dataclass(frozen=True)
class Column:
    """The title of a column, and how its numbers are written (``format``'s words)."""

    title: str
    form: str = ""

    def text(self, cell: Cell) -> str:
        """A cell as a table shows it."""
        if cell is None:
            return ""
        return format(cell, self.form) if self.form and not isinstance(cell, str) else str(cell)


@dataclass(frozen=True)
class Result:
    """What a workload found.

    ``value`` is for programs. ``wrong`` says why the command fails, behind the table. ``records``
    are the rows of CSV where those of the table hold numbers as texts.
    """

    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    value: dict[str, Any]
    facts: Sequence[tuple[str, str]] = ()
    summary: Sequence[str] = ()
    wrong: str | None = None
    bars: Mapping[str, Sequence[dict[str, Any]]] = field(default_factory=dict)
    """Rows of bars by the title that stands above them."""
    unit: str = ""
    records: Sequence[dict[str, Any]] = ()


def finish(
    result: Result, asked: Asked, common: CommonOptions, csv: Path | None, html: Path | None
) -> None:
    """Write what was asked for, print the rest; raises ``VerifyError`` where something is wrong."""
    if csv is not None:
        _write_csv(csv, result)
    if html is not None:
        _write_html(html, result)
    if common.json:
        show.value(result.value)
    else:
        titles = [column.title for column in result.columns]
        show.table(titles, [_texts(result, row) for row in result.rows])
        for line in result.summary:
            show.note(line)
    if result.wrong is not None:
        raise VerifyError(result.wrong)


def _texts(result: Result, row: Sequence[Cell]) -> list[str]:
    return [column.text(cell) for column, cell in zip(result.columns, row, strict=True)]


def _write_csv(path: Path, result: Result) -> None:
    """Titles, and rows with numbers as they are; raises ``UsageError``."""
    titles = [column.title or "verdict" for column in result.columns]
    rows: Sequence[Sequence[Any]] = result.rows
    if result.records:
        titles, rows = [*result.records[0]], [[*one.values()] for one in result.records]
    try:
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(titles)
            writer.writerows(["" if cell is None else cell for cell in row] for row in rows)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}; choose another file") from error


def _write_html(path: Path, result: Result) -> None:
    from ptir.report import bars, page, table, write_page

    titles = [column.title or "verdict" for column in result.columns]
    rows = [
        [_html(column, cell) for column, cell in zip(result.columns, row, strict=True)]
        for row in result.rows
    ]
    drawn = [bars(title, result.unit, rows) for title, rows in result.bars.items()]
    note = " ".join(result.summary)
    sections = [*drawn, table("Results", titles, rows, note)]
    write_page(path, page(result.title, result.facts, sections))


def _html(column: Column, cell: Cell) -> object:
    """A cell of a page's table, where verdicts have tones and numbers the digits of a table."""
    if cell in ("wrong", "right"):
        return {"text": cell, "tone": "bad" if cell == "wrong" else "quiet"}
    if isinstance(cell, float) and not math.isfinite(cell):
        return str(cell)
    if isinstance(cell, float):
        return float(column.text(cell)) if column.form else cell
    return cell


def peer_line(pair: Pair) -> str:
    """What computes beside ours, in which versions, on how many threads."""
    facts = pair.peer.facts
    versions = ", ".join(f"{name} {one}" for name, one in facts.items() if name in _VERSIONS)
    threads = int(facts["threads"])
    return f"{facts['class']} of {versions}, {threads} thread{'s' * (threads > 1)}"


_VERSIONS: Final = ("transformers", "torch")


def about(model: Model, pair: Pair | None, asked: Asked) -> dict[str, Any]:
    """What every workload says of the two sides, for programs."""
    target = model.target
    said = {
        "workload": asked.workload,
        "model": asked.model,
        "backend": target.backend.name,
        "device": target.device.name,
        **asked.formats.given(),
    }
    return said if pair is None else {**said, "against": dict(pair.peer.facts)}


def facts_of(model: Model, pair: Pair | None, asked: Asked) -> list[tuple[str, str]]:
    """The same for people."""
    target = model.target
    rows = [
        ("ran on", f"{target.backend.name}:{target.device.index} {target.device.name}"),
        ("weights", asked.formats.weights(model)),
    ]
    return rows if pair is None else [*rows, ("beside", peer_line(pair))]
