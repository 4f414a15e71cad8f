"""Failures by what they have in common: one line of a backend's code fails hundreds of cases.

Those that an error ended belong together by the place where it was raised, others by their op and
what became of them. The largest groups come first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from ptir_testsuite.running.outcomes import BROKEN, Outcome, Row

SHOWN: Final = 10
"""Groups of which a run prints an example."""
OPS_SHOWN: Final = 6
UNCLAIM: Final = (
    "let the backend take it, or leave the profile out of its `claims`; `ptir-conformance support`"
    " lists all that is refused"
)
"""What the author of a backend does that refuses what it claims."""


@dataclass(frozen=True)
class Group:
    """Failures with one place, or with one op and outcome."""

    place: str
    rows: tuple[Row, ...]

    @property
    def head(self) -> str:
        """How many there are, and what they have in common."""
        names = list(dict.fromkeys(row.op for row in self.rows))
        more = f" and {len(names) - OPS_SHOWN} more" if len(names) > OPS_SHOWN else ""
        ops = ", ".join(names[:OPS_SHOWN]) + more
        if self.place:
            return f"{_counted(self.rows)} raised at {self.place}, of {ops}"
        way = ", run by other ops" if _is_decomposed(self.rows[0]) else ""
        return f"{_counted(self.rows)} of {ops}{way}: {became(self.rows[0])}"


def groups(failures: Iterable[Row]) -> list[Group]:
    """The failures in groups, the largest first; those of a group in their order."""
    found: dict[tuple[str, ...], list[Row]] = {}
    for row in failures:
        found.setdefault(_alike(row), []).append(row)
    made = [Group(rows[0].facts.get("raised", ""), tuple(rows)) for rows in found.values()]
    return sorted(made, key=lambda group: -len(group.rows))


def became(row: Row) -> str:
    """What a row came to, in the words of the verdict."""
    return BROKEN.get(row.outcome, row.outcome.value) if row.failed else row.outcome.value


def told(row: Row) -> str:
    """A failure for a reader: outcome, phase and message; of a broken claim the call and the id."""
    message = row.message
    if row.outcome is Outcome.UNSUPPORTED and row.claimed:
        within = f"profile{'s' if len(row.profiles) > 1 else ''} {', '.join(row.profiles)}"
        claim = within if row.profiles else "profiles"
        broken = f"refused within the claimed {claim}: {row.call}:"
        first, *rest = message.removeprefix(f"{row.call}: ").splitlines() or [""]
        message = "\n".join((f"{broken} {first}", f"  case {row.case}", *rest, f"  {UNCLAIM}"))
    return f"{row.outcome.value} [{row.phase}] {message}"


def examples(found: Sequence[Group]) -> Iterator[str]:
    """The largest groups, each with one of its failures in full."""
    for group in found[:SHOWN]:
        if len(group.rows) > 1:
            yield f"{group.head}; one of them:"
        yield told(group.rows[0])
        yield ""
    if len(found) > SHOWN:
        left = [row for group in found[SHOWN:] for row in group.rows]
        yield f"... and {_counted(left)} in {len(found) - SHOWN} smaller groups"


def everything(found: Sequence[Group], in_full: bool = False) -> Iterator[str]:
    """All groups with all of their failures, each on one line or in full.

    What was raised at one place is told once, and then which calls came there.
    """
    for group in found:
        yield f"{group.head}:"
        if in_full:
            yield from map(told, group.rows)
            continue
        if group.place:
            yield f"  {_said(group.rows[0])}"
        for row in group.rows:
            text = row.call if group.place else _said(row)
            yield f"  {row.case}: {text}" if text != row.case else f"  {row.case}"


def _said(row: Row) -> str:
    """The first line of the row's message, without the call."""
    first, *_ = row.message.splitlines() or [""]
    return first.removeprefix(f"{row.call}: ")


def _alike(row: Row) -> tuple[str, ...]:
    if place := row.facts.get("raised", ""):
        return (place,)
    return row.op, became(row), "other ops" if _is_decomposed(row) else ""


def _is_decomposed(row: Row) -> bool:
    """Whether the backend refuses the op, so that core ran others for it."""
    return "decomposed" in row.facts


def _counted(rows: Sequence[Row]) -> str:
    return f"{len(rows)} failure{'s' if len(rows) != 1 else ''}"
