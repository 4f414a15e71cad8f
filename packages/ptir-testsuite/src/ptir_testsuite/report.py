"""What a run found: rows summed up, a table for people, JSON lines for programs, an exit code."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from ptir_testsuite.outcomes import Outcome, Row

SCHEMA: Final = 1
CONFORMANT, NOT_CONFORMANT, DEFECT, INCOMPLETE = 0, 1, 2, 3
SHOWN: Final = 10  # failures printed in full


@dataclass
class Report:
    """The rows of a run and the facts that they rest on.

    ``total`` counts the whole corpus; ``selected`` what this run was asked to attempt. ``praise``
    is the verdict of a run in which nothing failed and nothing is missing.
    """

    header: dict[str, Any]
    total: int
    selected: int
    partial: bool = False
    praise: str = "conformant"
    rows: list[Row] = field(default_factory=list[Row])
    samples_only: tuple[str, ...] = ()
    unchecked: tuple[str, ...] = ()

    @property
    def counts(self) -> Counter[Outcome]:
        """Rows by outcome."""
        return Counter(row.outcome for row in self.rows)

    @property
    def failures(self) -> list[Row]:
        """The rows that speak against the backend."""
        return [row for row in self.rows if row.failed]

    @property
    def executed(self) -> int:
        """Rows that ran and were judged."""
        skipped = (Outcome.UNSUPPORTED, Outcome.WAIVED)
        return sum(row.outcome not in skipped for row in self.rows)

    @property
    def exit_code(self) -> int:
        """0 conformant, 1 not, 3 incomplete: a part only, rows missing, or nothing executed."""
        if self.failures:
            return NOT_CONFORMANT
        whole = len(self.rows) == self.selected and not self.partial
        passed = self.counts[Outcome.PASS] > 0
        return CONFORMANT if whole and passed else INCOMPLETE

    @property
    def verdict(self) -> str:
        """The exit code in words."""
        if self.exit_code == NOT_CONFORMANT:
            return "not conformant"
        if self.exit_code == CONFORMANT:
            return self.praise
        return (
            "incomplete: nothing was executed" if not self.executed else "incomplete: a part only"
        )

    def lines(self) -> Iterable[str]:
        """The report as JSON lines: a header, a row per case, a footer."""
        yield json.dumps({"kind": "header", "schema": SCHEMA, **self.header})
        for row in self.rows:
            yield json.dumps(row.record(), allow_nan=False)
        counts = {outcome.value: self.counts[outcome] for outcome in Outcome}
        footer = {"attempted": len(self.rows), "selected": self.selected, "total": self.total}
        yield json.dumps({"kind": "footer", **footer, "outcomes": counts, "verdict": self.verdict})

    def write(self, path: Path) -> None:
        """Write the JSON lines."""
        path.write_text("\n".join(self.lines()) + "\n", encoding="utf-8")


def show(report: Report, console: Console) -> None:
    """Print the failures, the table of ops, and the headline last."""
    for row in report.failures[:SHOWN]:
        console.print(f"{row.outcome.value} [{row.phase}] {row.message}")
    if len(report.failures) > SHOWN:
        console.print(f"... and {len(report.failures) - SHOWN} more; --json FILE has all of them")
    console.print(_table(report.rows))
    if report.samples_only:
        names = ", ".join(report.samples_only)
        console.print(f"samples only (no oracle says more about them): {names}")
    if report.unchecked:
        names = ", ".join(report.unchecked)
        console.print(f"not checked (no formula for the composite): {names}")
    facts = [f"{key} {value}" for key, value in report.header.items() if isinstance(value, str)]
    console.print("; ".join(facts))
    console.print(headline(report))


def headline(report: Report) -> str:
    """Attempted and total, what became of them, and the verdict."""
    counts = report.counts
    listed = ", ".join(f"{counts[o]} {o.value}" for o in Outcome if counts[o])
    attempted = f"attempted {len(report.rows)}/{report.total}"
    return f"{attempted}: {listed or 'nothing'}; {report.verdict}"


def _table(rows: Sequence[Row]) -> Table:
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in ("op", "attempted", "passed", "failed", "unsupported", "worst error"):
        grid.add_column(column, header_style="bold", justify="left" if column == "op" else "right")
    for op in dict.fromkeys(row.op for row in rows):
        mine = [row for row in rows if row.op == op]
        counts = Counter(row.outcome for row in mine)
        grid.add_row(
            op,
            str(len(mine)),
            str(counts[Outcome.PASS]),
            str(sum(row.failed for row in mine)),
            str(counts[Outcome.UNSUPPORTED]),
            _worst(mine),
        )
    return grid


def _worst(rows: Sequence[Row]) -> str:
    ulps = [row.worst_ulp for row in rows if row.worst_ulp is not None]
    shares = [row.worst_share for row in rows if row.worst_share is not None]
    if shares:
        return f"{max(shares):.0%} of its bound"
    return f"{max(ulps):.3g} ULP" if ulps else ""
