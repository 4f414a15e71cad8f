"""What came of verifying a report: what was looked at, what is wrong, what is left open."""

from __future__ import annotations

from dataclasses import dataclass, field

from ptir_testsuite.reports.report import CONFORMANT, INCOMPLETE, NOT_CONFORMANT


@dataclass
class Verification:
    """What was looked at, what speaks against the report, and what could not be checked."""

    checked: list[str] = field(default_factory=list[str])
    wrong: list[str] = field(default_factory=list[str])
    open: list[str] = field(default_factory=list[str])

    @property
    def exit_code(self) -> int:
        """0 believed, 1 rejected, 3 where a part of it could not be checked."""
        if self.wrong:
            return NOT_CONFORMANT
        return INCOMPLETE if self.open else CONFORMANT
