"""What a witness says: one row per piece of evidence, and totals that leave nothing out."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any, Literal

from ptir_testsuite.reports.report import CONFORMANT, INCOMPLETE, NOT_CONFORMANT

Outcome = Literal["passed", "failed", "explained", "refused", "skipped"]


@dataclass(frozen=True)
class Row:
    """One piece of evidence and what became of it.

    ``explained`` means that it differs and a table of principles says why, ``refused`` that the
    backend refused the program with a typed error before it ran, ``skipped`` that it was not
    tried, for ``reason``. ``count`` rows of a table may share one row.
    """

    case: str
    outcome: Outcome
    reason: str = ""
    detail: str = ""
    count: int = 1
    worst: float = 0.0


@dataclass(frozen=True)
class Report:
    """All rows of one witness on one backend; ``incomplete`` says why evidence is missing."""

    witness: str
    source: str
    backend: str
    rows: tuple[Row, ...]
    incomplete: str = ""

    def count(self, *outcomes: Outcome) -> int:
        """How many pieces of evidence had one of ``outcomes``; all without arguments."""
        return sum(row.count for row in self.rows if not outcomes or row.outcome in outcomes)

    @property
    def total(self) -> int:
        """Everything the witness has, tried or not."""
        return self.count()

    @property
    def attempted(self) -> int:
        """What was given to the backend."""
        return self.count("passed", "failed", "explained", "refused")

    @property
    def passed(self) -> int:
        """What agreed."""
        return self.count("passed")

    @property
    def failures(self) -> tuple[Row, ...]:
        """The rows that disagree."""
        return tuple(row for row in self.rows if row.outcome == "failed")

    @property
    def remainder(self) -> dict[str, int]:
        """How many did not pass, by reason, the most frequent first."""
        counts: Counter[str] = Counter()
        for row in self.rows:
            if row.outcome != "passed":
                counts[row.reason] += row.count
        return dict(counts.most_common())

    @property
    def exit_code(self) -> int:
        """0 everything tried agrees, 1 something disagrees, 3 incomplete or nothing was tried."""
        if self.failures:
            return NOT_CONFORMANT
        return INCOMPLETE if self.incomplete or not self.passed else CONFORMANT

    def record(self) -> dict[str, Any]:
        """The report as JSON values."""
        totals = {"total": self.total, "attempted": self.attempted, "passed": self.passed}
        return {
            "witness": self.witness,
            "source": self.source,
            "backend": self.backend,
            "incomplete": self.incomplete,
            **totals,
            "remainder": self.remainder,
            "rows": [asdict(row) for row in self.rows],
        }

    def table(self) -> str:
        """The totals as a Markdown table, one line per failure, and the count as the last line."""
        lines = [
            f"{self.witness} ({self.source}) on {self.backend}",
            "",
            "| | count |",
            "|---|---|",
        ]
        totals = {"total": self.total, "attempted": self.attempted, "passed": self.passed}
        for name, count in (totals | self.remainder).items():
            lines.append(f"| {name} | {count} |")
        lines += [f"FAILED {row.case}: {row.detail}" for row in self.failures]
        if self.incomplete:
            lines.append(f"INCOMPLETE: {self.incomplete}")
        differ = self.attempted - self.passed
        lines.append(f"\n{self.passed} of {self.attempted} attempted pass, {differ} do not")
        return "\n".join(lines)
