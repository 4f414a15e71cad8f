"""Waivers: failures that are known and accepted for a while, each named by the exact case.

A waiver says what the case comes to, why that is accepted and until when. It never makes a pass:
the row is *waived*, in every count, and the verdict says so. One that no longer fits fails the run.
"""

from __future__ import annotations

import datetime
import json
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Final

from ptir.errors import UsageError
from ptir_testsuite.running.outcomes import PHASES, Outcome, Row

WAIVABLE: Final = frozenset(Outcome) - {Outcome.PASS, Outcome.WAIVED}


@dataclass(frozen=True)
class Waiver:
    """One known failure: the case's id, its outcome and phase, the reason and the last day."""

    id: str
    outcome: str
    phase: str
    reason: str
    expires: str

    @property
    def day(self) -> datetime.date:
        """The last day; raises ``ValueError`` where it is none, written as 2027-01-31."""
        found = datetime.date.fromisoformat(self.expires)
        if found.isoformat() != self.expires:
            raise ValueError(f"write {found.isoformat()}, not {self.expires}")
        return found

    def expired(self, today: datetime.date) -> bool:
        """Whether its last day is over."""
        return self.day < today

    def record(self) -> dict[str, str]:
        """The waiver as a part of a report's header."""
        return {name: getattr(self, name) for name in FIELDS}

    def applied(self, row: Row) -> Row:
        """The row of its case: waived where it fails as foreseen, a failure where it does not."""
        found = row.outcome.value, row.phase
        if row.failed and found == (self.outcome, self.phase):
            facts = {**row.facts, "waived": self.outcome}
            return replace(row, outcome=Outcome.WAIVED, facts=facts)
        if row.failed:
            return replace(row, message=f"{row.message}\n  {self._told()}, and it is that no more")
        text = f"{row.call}: it comes to {row.outcome.value}; {self._told()}: remove the waiver"
        return replace(row, outcome=Outcome.UNEXPECTED_PASS, phase=self.phase, message=text)

    def _told(self) -> str:
        return f"waived as {self.outcome} [{self.phase}] ({self.reason})"


FIELDS: Final = tuple(field.name for field in fields(Waiver))
"""What every waiver says, all of it."""


def read_waivers(path: Path, today: datetime.date | None = None) -> tuple[Waiver, ...]:
    """The waivers of a TOML or JSON file, by id.

    Raises ``UsageError`` where one is incomplete, expired or there twice.
    """
    try:
        text = path.read_text(encoding="utf-8")
        whole = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (OSError, ValueError) as error:
        raise UsageError(f"--waivers {path}: {error}") from error
    own = isinstance(whole, dict) and set(whole) <= {"waiver"}
    listed = whole.get("waiver", []) if own else None
    if not isinstance(listed, list):
        raise UsageError(f"--waivers {path}: it must hold [[waiver]] tables and nothing else")
    found = [_of(path, number, record) for number, record in enumerate(listed, 1)]
    ids = [waiver.id for waiver in found]
    for waiver in found:
        if ids.count(waiver.id) > 1:
            raise UsageError(f"--waivers {path}: {waiver.id} is waived twice; leave one out")
        if waiver.expired(today or datetime.date.today()):
            raise UsageError(
                f"--waivers {path}: the waiver of {waiver.id} expired on {waiver.expires}; mend the"
                " backend, or decide anew and give another date"
            )
    return tuple(sorted(found, key=lambda waiver: waiver.id))


def _of(path: Path, number: int, record: Any) -> Waiver:
    where = f"--waivers {path}: waiver {number}"
    if not isinstance(record, dict) or set(record) != set(FIELDS):
        raise UsageError(f"{where}: it must say {', '.join(FIELDS)}, and nothing else")
    found = Waiver(**{name: str(record[name]) for name in FIELDS})
    try:
        _ = found.day
    except ValueError as error:
        raise UsageError(f"{where} ({found.id}): expires is no date: {error}") from error
    if found.outcome not in {outcome.value for outcome in WAIVABLE}:
        known = ", ".join(o.value for o in Outcome if o in WAIVABLE)
        raise UsageError(
            f"{where} ({found.id}): {found.outcome!r} cannot be waived; known: {known}"
        )
    if found.phase not in PHASES:
        known = ", ".join(PHASES)
        raise UsageError(f"{where} ({found.id}): unknown phase {found.phase!r}; known: {known}")
    if not found.reason.strip():
        raise UsageError(f"{where} ({found.id}): a waiver needs a reason")
    return found


def require_known(waivers: Sequence[Waiver], ids: Collection[str]) -> None:
    """Raise ``UsageError`` for a waiver of what is not in the corpus."""
    for waiver in waivers:
        if waiver.id not in ids:
            raise UsageError(
                f"--waivers: there is no case {waiver.id} (its content changed, or it is mistyped);"
                " remove the waiver"
            )


def applied(row: Row, waivers: Mapping[str, Waiver]) -> Row:
    """The row as the waivers leave it."""
    waiver = waivers.get(row.case)
    return row if waiver is None else waiver.applied(row)


def waivers_of(header: Mapping[str, Any]) -> dict[str, Waiver]:
    """The waivers of a report's header, by id."""
    return {record["id"]: Waiver(**record) for record in header["waivers"]}


def misused(rows: Sequence[Row], listed: Sequence[Mapping[str, Any]]) -> list[str]:
    """What is wrong with the waived rows of a report whose header lists these waivers."""
    waivers = {record["id"]: Waiver(**record) for record in listed}
    found = ["a case is waived twice"] if len(waivers) != len(listed) else []
    for row in rows:
        given = waivers.get(row.case)
        waived = row.outcome is Outcome.WAIVED
        if given is None:
            found += [f"{row.case} is waived, and the header has no waiver for it"] * waived
        elif waived and (row.facts.get("waived"), row.phase) != (given.outcome, given.phase):
            found.append(f"{row.case} is waived for something else than its waiver says")
        elif not waived and not row.failed:
            found.append(f"{row.case} has a waiver, does not fail, and is no unexpected pass")
    return found
