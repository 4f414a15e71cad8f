"""The closed set of outcomes, and what one case came to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from ptir.errors import UsageError


class Outcome(Enum):
    """What a case can come to; nothing else is ever reported."""

    PASS = "pass"
    MISMATCH = "mismatch"
    WRONG_ERROR = "wrong error"
    ACCEPTED_INVALID = "accepted invalid"
    ERROR = "error"
    CRASH = "crash"
    TIMEOUT = "timeout"
    UNSUPPORTED = "unsupported"
    WAIVED = "waived"
    UNEXPECTED_PASS = "unexpected pass"


PHASES: Final = ("load", "verify", "compile", "upload", "execute", "download", "compare")
"""Where a case can fail, in order."""

HARMLESS: Final = frozenset({Outcome.PASS, Outcome.UNSUPPORTED, Outcome.WAIVED})

BROKEN: Final = {Outcome.UNSUPPORTED: "refused though claimed"}
"""What an outcome is called where the backend claims to do better."""


@dataclass(frozen=True)
class Row:
    """One case's outcome. The worst errors are kept of passing cases too, None where there is none.

    ``worst_ulp`` is of results held to ULP, ``worst_share`` of sums: the error over its bound.

    ``claimed`` says whether the case lies inside the claimed profiles: there, unsupported fails.
    ``trace`` is where the backend raised, for people; it is in no report.
    """

    case: str
    op: str
    call: str
    dtypes: tuple[str, ...]
    profiles: tuple[str, ...]
    outcome: Outcome
    phase: str = ""
    message: str = ""
    claimed: bool = True
    worst_ulp: float | None = None
    worst_share: float | None = None
    seconds: float = 0.0
    facts: dict[str, Any] = field(default_factory=dict[str, Any])
    trace: tuple[str, ...] = field(default=(), compare=False)

    @property
    def failed(self) -> bool:
        """Whether the row speaks against the backend."""
        skipped = self.outcome is Outcome.UNSUPPORTED and self.claimed
        return skipped or self.outcome not in HARMLESS

    def record(self) -> dict[str, Any]:
        """The row as a JSON line."""
        return {
            "kind": "case",
            "id": self.case,
            "op": self.op,
            "call": self.call,
            "dtypes": list(self.dtypes),
            "profiles": list(self.profiles),
            "claimed": self.claimed,
            "outcome": self.outcome.value,
            "phase": self.phase,
            "message": self.message,
            "worst_ulp": self.worst_ulp,
            "worst_share": self.worst_share,
            "facts": self.facts,
            "seconds": round(self.seconds, 6),
        }

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Row:
        """The row that ``record`` was made from; raises ``UsageError`` for anything else."""
        if list(record) != FIELDS:
            odd = sorted(set(record) ^ set(FIELDS)) or ["their order"]
            raise UsageError(f"a row has other fields than a report's: {', '.join(odd)}")
        if record["outcome"] not in [outcome.value for outcome in Outcome]:
            raise UsageError(f"{record['id']}: {record['outcome']!r} is no outcome")
        given = {name: record[name] for name in FIELDS if name not in ("kind", "id")}
        given |= {name: tuple(given[name]) for name in ("dtypes", "profiles")}
        return cls(record["id"], **given | {"outcome": Outcome(given["outcome"])})


FIELDS: Final = list(Row("", "", "", (), (), Outcome.PASS).record())
"""The fields of a row's record, in order."""
