"""Reports side by side: what became of every op in every dtype on every backend."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

from rich.table import Table

from ptir.errors import UsageError
from ptir.ops import OPS
from ptir.types import DTYPES
from ptir_testsuite.reports.files import read
from ptir_testsuite.reports.report import Report, worst_error
from ptir_testsuite.reports.verify import rejections
from ptir_testsuite.running.outcomes import Outcome, Row

PASSED, FAILED, WAIVED, REFUSED, ABSENT = "✓", "✗", "w", "–", "·"
LEGEND: Final = (
    f"{PASSED} every case passed, {FAILED} one failed, {WAIVED} one is waived, {REFUSED} refused"
    f" outside the claimed profiles, {ABSENT} no case"
)
ERRORS: Final = (
    "worst error that passed: ULP, or a share of the bound of sums; = where all is exact"
)
NO_DTYPE: Final = "—"  # refusals and what has no operands and no results of one dtype

Grid = list[list[str]]


@dataclass(frozen=True)
class Column:
    """A report, under the name that it has in the table."""

    name: str
    report: Report

    @cached_property
    def cells(self) -> dict[tuple[str, str], list[Row]]:
        """Its rows by op and dtype."""
        found: dict[tuple[str, str], list[Row]] = {}
        for row in self.report.rows:
            found.setdefault((row.op, about(row.op, row.dtypes)), []).append(row)
        return found


def about(op: str, dtypes: Sequence[str]) -> str:
    """The dtype that a call is counted under: its first operand's, or its result's.

    Where the first operand has no choice (the predicate of ``select``), the next one of the call.
    """
    record = OPS.get(op)
    fixed = record is not None and record.operands and len(record.dtypes[record.operands[0]]) == 1
    return (*dtypes[1 if fixed and len(dtypes) > 1 else 0 :], NO_DTYPE)[0]


def columns(paths: Sequence[Path]) -> list[Column]:
    """The reports at ``paths``; raises ``UsageError`` for those that do not belong together.

    A report whose digests or verdict do not fit its rows is refused.
    """
    reports = [finished(path) for path in paths]
    for path, report in zip(paths, reports, strict=True):
        if report.header["alone"]:
            raise UsageError(
                f"{path} is of random programs alone, which are of no op; give reports of `run`"
            )
        if report.header["corpus"] != reports[0].header["corpus"]:
            raise UsageError(
                f"{path} is of another corpus than {paths[0]}; make both with one version of the"
                " suite"
            )
    names = [report.header["backend"] for report in reports]
    full = [
        f"{name} ({report.header['device']})" if names.count(name) > 1 else name
        for name, report in zip(names, reports, strict=True)
    ]
    twice = [name for name in full if full.count(name) > 1]
    if twice:
        raise UsageError(f"two reports are of {twice[0]}; leave one out")
    return [Column(name, report) for name, report in zip(full, reports, strict=True)]


def finished(path: Path) -> Report:
    """The report at ``path``; raises ``UsageError`` where it is unfinished or was edited."""
    contents = read(path)
    wrong = rejections(contents)
    if wrong:
        raise UsageError(f"{path} is rejected: {wrong[0]}")
    report = Report(contents.plain_header, contents.parsed)
    report.interrupted = bool(contents.footer and contents.footer["interrupted"])
    return report


def summary(found: Iterable[Column]) -> Grid:
    """One row for every report: what was attempted, what became of it, the verdict."""
    grid = [["backend", "device", "attempted", *(o.value for o in SUMMED), "failed", "verdict"]]
    for column in found:
        report, header = column.report, column.report.header
        device = f"{header['device']}, {header['detail']}" if header["detail"] else header["device"]
        grid.append(
            [
                f"{header['backend']} {header['version']}",
                device,
                f"{len(report.rows)}/{header['total']}",
                *(str(sum(r.outcome is o and not r.failed for r in report.rows)) for o in SUMMED),
                str(len(report.failures)),
                report.verdict,
            ]
        )
    return grid


SUMMED: Final = (Outcome.PASS, Outcome.UNSUPPORTED, Outcome.WAIVED)


def matrix(found: Sequence[Column], errors: bool = False) -> Grid:
    """Ops down, dtypes across; a cell has a mark or a worst error for every report, in order."""
    used = {dtype for column in found for _, dtype in column.cells}
    known = (*DTYPES, NO_DTYPE)
    dtypes = [*(name for name in known if name in used), *sorted(used.difference(known))]
    ops = dict.fromkeys(op for column in found for op, _ in column.cells)
    grid = [["op", *dtypes]]
    for op in ops:
        grid.append([op, *(_cell(found, op, dtype, errors) for dtype in dtypes)])
    return grid


def _cell(found: Sequence[Column], op: str, dtype: str, errors: bool) -> str:
    written = _error if errors else _mark
    marks = [written(column.cells.get((op, dtype), [])) for column in found]
    if set(marks) == {ABSENT}:
        return ""
    return (" / " if errors else "").join(marks)


def _mark(rows: Sequence[Row]) -> str:
    if not rows:
        return ABSENT
    if any(row.failed for row in rows):
        return FAILED
    if any(row.outcome is Outcome.WAIVED for row in rows):
        return WAIVED
    return PASSED if any(row.outcome is Outcome.PASS for row in rows) else REFUSED


def _error(rows: Sequence[Row]) -> str:
    mark = _mark(rows)
    if mark != PASSED:
        return mark
    return worst_error(rows).removesuffix(" of its bound").removesuffix(" ULP") or "="


def markdown(grid: Grid) -> Iterator[str]:
    """The table as lines of Markdown."""
    head, *rows = grid
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(cell.replace('|', '&#124;') for cell in row)} |"


def page(grids: Sequence[Grid], legend: str) -> str:
    """The tables as a page of HTML, to be searched and sorted."""
    from ptir import report

    titles = "Backends", "Ops by dtype"
    sections = [
        report.table(title, grid[0], [[_toned(cell) for cell in row] for row in grid[1:]])
        for title, grid in zip(titles, grids, strict=True)
    ]
    return report.page("Conformance", [("legend", legend)], sections)


TONES: Final = ((FAILED, "bad"), (PASSED, "good"), (WAIVED, "quiet"), (REFUSED, "quiet"))
"""What a cell is in a page: by the first mark that it holds."""


def _toned(cell: str) -> str | int | dict[str, str]:
    """A cell for a page: counts are numbers, marks have a tone."""
    if cell.isdecimal():
        return int(cell)
    marks = {*cell} <= {PASSED, FAILED, WAIVED, REFUSED, ABSENT}
    tone = next((tone for mark, tone in TONES if mark in cell), "") if marks else ""
    return {"text": cell, "tone": tone} if tone else cell


def table(grid: Grid) -> Table:
    """The table for a terminal."""
    head, *rows = grid
    found = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in head:
        found.add_column(name, header_style="bold", no_wrap=True)
    for row in rows:
        found.add_row(*row)
    return found
