"""What a run found: a header of facts, a row for every case, and the verdict that follows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from ptir_testsuite.running.again import again
from ptir_testsuite.running.outcomes import BROKEN, Outcome, Row

CONFORMANT, NOT_CONFORMANT, DEFECT, INCOMPLETE = 0, 1, 2, 3
SHOWN: Final = 10  # failures printed in full
FACTS: Final = ("backend", "version", "device", "detail", "spec", "suite", "corpus", "accuracy")
"""What is printed of the header."""


@dataclass
class Report:
    """The rows of a run and the facts that they rest on.

    Of the header, ``total`` counts the whole corpus, ``selected`` what the run was asked to attempt
    and ``words`` is the expression that selected it; programs may be ``alone``. The two lists of
    names, of what could not be checked in full, are for people only.
    """

    header: dict[str, Any]
    rows: list[Row] = field(default_factory=list[Row])
    interrupted: bool = False
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
        """0 conformant, 1 not, 3 incomplete: a part only, interrupted, or nothing executed."""
        if self.interrupted:
            return INCOMPLETE
        if self.failures:
            return NOT_CONFORMANT
        picked = bool(self.header["words"]) or self.header["slice"] is not None
        whole = len(self.rows) == self.header["selected"] and not picked
        passed = self.counts[Outcome.PASS] > 0
        return CONFORMANT if whole and passed else INCOMPLETE

    @property
    def verdict(self) -> str:
        """The exit code in words."""
        if self.interrupted:
            return "incomplete: interrupted"
        if self.exit_code == NOT_CONFORMANT:
            return "not conformant"
        if self.exit_code == CONFORMANT and self.counts[Outcome.WAIVED]:
            return "conformant but for waivers"
        if self.exit_code == CONFORMANT:
            return "every program agrees" if self.header["alone"] else "conformant"
        return (
            "incomplete: nothing was executed" if not self.executed else "incomplete: a part only"
        )

    def footer(self) -> dict[str, Any]:
        """What the rows come to: their number, the outcomes and the verdict."""
        return {
            "kind": "footer",
            "attempted": len(self.rows),
            "selected": self.header["selected"],
            "total": self.header["total"],
            "outcomes": {outcome.value: self.counts[outcome] for outcome in Outcome},
            "interrupted": self.interrupted,
            "verdict": self.verdict,
            "exit_code": self.exit_code,
        }


def show(report: Report, console: Console, path: Path | None = None) -> None:
    """Print the failures, the table of ops, and the headline last; ``path`` has all of them."""

    def line(text: str) -> None:
        console.print(text, soft_wrap=True)

    where = f"{path} has" if path is not None else "--json FILE would have"
    reasons = {
        waiver["id"]: f"{waiver['reason']}, until {waiver['expires']}"
        for waiver in report.header.get("waivers", ())
    }
    for row in report.failures[:SHOWN]:
        line(told(row))
    if len(report.failures) > SHOWN:
        line(f"... and {len(report.failures) - SHOWN} more; {where} all of them")
    for row in report.rows:
        if row.outcome is Outcome.WAIVED:
            what = f"{row.facts['waived']} [{row.phase}]"
            line(f"waived {row.case}: {what}; {reasons[row.case]}")
    console.print(_table(report.rows))
    if report.samples_only:
        names = ", ".join(report.samples_only)
        line(f"samples only (no oracle says more about them): {names}")
    if report.unchecked and not report.header["words"] and not report.header["alone"]:
        names = ", ".join(report.unchecked)
        line(f"not checked (no formula for the composite): {names}")
    if any("memory" in row.facts for row in report.rows):
        line("not checked: leaks (the backend does not report live bytes)")
    for row in report.failures[:1]:
        line(f"to see it in full: {again_of(report, row)}")
    facts = [f"{name} {report.header[name]}" for name in FACTS if report.header[name]]
    line("; ".join(facts))
    line(headline(report))


def again_of(report: Report, row: Row) -> str:
    """The command that runs a row again."""
    header = report.header
    claims = header["profiles"] if header["narrowed"] else None
    return again(
        row,
        f"{header['backend']}:{header['number']}",
        claims,
        header["relaxations"],
        header["imports"],
    )


def told(row: Row) -> str:
    """A failure for a reader: outcome, phase and message; of a broken claim the call and the id."""
    message = row.message
    if row.outcome is Outcome.UNSUPPORTED and row.claimed:
        within = f"profile{'s' if len(row.profiles) > 1 else ''} {', '.join(row.profiles)}"
        claim = within if row.profiles else "profiles"
        broken = f"refused within the claimed {claim}: {row.call}:"
        message = f"{broken} {message.removeprefix(f'{row.call}: ')}\n  case {row.case}"
    return f"{row.outcome.value} [{row.phase}] {message}"


def headline(report: Report) -> str:
    """Attempted and total, what became of them, and the verdict."""
    counts = Counter(_became(row) for row in report.rows)
    words = [word for outcome in Outcome for word in (outcome.value, BROKEN.get(outcome, ""))]
    listed = ", ".join(f"{counts[word]} {word}" for word in words if counts[word])
    attempted = f"attempted {len(report.rows)}/{report.header['total']}"
    return f"{attempted}: {listed or 'nothing'}; {report.verdict}"


def _became(row: Row) -> str:
    return BROKEN.get(row.outcome, row.outcome.value) if row.failed else row.outcome.value


def _table(rows: Sequence[Row]) -> Table:
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in ("op", "attempted", "passed", "failed", "unsupported", "worst error"):
        grid.add_column(column, header_style="bold", justify="left" if column == "op" else "right")
    by_op: dict[str, list[Row]] = {}
    for row in rows:
        by_op.setdefault(row.op, []).append(row)
    for op, mine in by_op.items():
        counts = Counter(row.outcome for row in mine)
        grid.add_row(
            op,
            str(len(mine)),
            str(counts[Outcome.PASS]),
            str(sum(row.failed for row in mine)),
            str(sum(row.outcome is Outcome.UNSUPPORTED and not row.failed for row in mine)),
            worst_error(mine),
        )
    return grid


def worst_error(rows: Sequence[Row]) -> str:
    """The worst error of some rows: a share of the bound where there are sums, else in ULP."""
    ulps = [row.worst_ulp for row in rows if row.worst_ulp is not None]
    shares = [row.worst_share for row in rows if row.worst_share is not None]
    if shares:
        return f"{max(shares):.0%} of its bound"
    return f"{max(ulps):.3g} ULP" if ulps else ""
