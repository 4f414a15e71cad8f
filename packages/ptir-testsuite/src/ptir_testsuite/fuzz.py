"""Random programs on several backends at once; what fails is shrunk, and can be kept.

Programs are drawn within the profiles that all of the backends claim, so that all run the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from ptir.backend import registry
from ptir.errors import BackendUnavailable, UsageError
from ptir_testsuite.accuracy import Terms
from ptir_testsuite.outcomes import Outcome, Row
from ptir_testsuite.programs import drawn_program
from ptir_testsuite.programs.check import RandomProgram
from ptir_testsuite.programs.shrink import shrunk
from ptir_testsuite.programs.stored import Stored
from ptir_testsuite.workers import Order, run_in_processes


@dataclass(frozen=True)
class Shared:
    """What the backends have in common: profiles, and ops that they round correctly."""

    names: tuple[str, ...]
    claims: frozenset[str]
    terms: Terms

    def order(self, name: str, imports: tuple[str, ...]) -> Order:
        """What the workers of one backend need."""
        return Order(name, imports, self.claims, self.terms)


@dataclass
class Found:
    """What became of the programs, by backend, and the smallest forms of those that failed."""

    rows: dict[str, list[Row]] = field(default_factory=dict[str, list[Row]])
    smallest: list[tuple[str, Row, Stored]] = field(default_factory=list[tuple[str, Row, Stored]])
    interrupted: bool = False

    @property
    def failures(self) -> list[Row]:
        """The rows that speak against a backend."""
        return [row for rows in self.rows.values() for row in rows if row.failed]


def shared(names: Sequence[str]) -> Shared:
    """What the named backends have in common; all that work, where none is named."""
    chosen = tuple(names) or tuple(s.name for s in registry.status_table() if s.status == "ok")
    if not chosen:
        raise BackendUnavailable("no backend works here; see `ptir backends`")
    targets = [registry.get(name) for name in chosen]
    claims = frozenset.intersection(*(t.backend.claimed(t.device) for t in targets))
    if not claims:
        raise UsageError(f"{', '.join(chosen)} have no profile in common")
    rounds = frozenset.intersection(*(t.backend.correctly_rounded for t in targets))
    return Shared(chosen, claims, Terms(rounds))


Progress = Callable[[str, Row], None]


def fuzz(
    found: Found,
    common: Shared,
    programs: Sequence[RandomProgram],
    progress: Progress,
    imports: tuple[str, ...] = (),
    jobs: int = 1,
    timeout: float = 60.0,
    most: int = 10,
) -> None:
    """Run the programs on every backend and shrink the first ``most`` that fail on each.

    What is known is in ``found`` at any time; Ctrl-C ends with that.
    """
    try:
        for name in common.names:
            order = common.order(name, imports)
            rows = found.rows.setdefault(name, [])
            for row in run_in_processes(programs, order, jobs, timeout):
                rows.append(row)
                progress(name, row)
            failing = [row for row in rows if row.failed][:most]
            for row in failing:
                found.smallest.append((name, row, smallest(row, order, timeout)))
    except KeyboardInterrupt:
        found.interrupted = True


def smallest(row: Row, order: Order, timeout: float) -> Stored:
    """The smallest program found that fails as the one of ``row`` does."""
    _, seed, number = row.case.split("-")
    drawn = drawn_program(int(seed), int(number), order.claims, order.terms.rounds)
    note = f"{row.case} on {order.backend}: {row.outcome.value} in {row.phase}"

    def failing(candidates: Sequence[Stored]) -> Stored | None:
        by_id = {one.id: one for one in candidates}
        rows = run_in_processes(list(by_id.values()), order, 1, timeout)
        alike = [by_id[r.case] for r in rows if (r.outcome, r.phase) == (row.outcome, row.phase)]
        return min(alike, key=list(by_id.values()).index, default=None)

    return shrunk(drawn.program, drawn.arrays, failing, note)


def told(name: str, row: Row, small: Stored) -> Iterator[str]:
    """A failure for a reader: the smallest program, its inputs, how to meet it again."""
    first = row.message.splitlines()[0] if row.message else ""
    yield f"{name}: {row.case}: {row.outcome.value} [{row.phase}] {first}"
    yield from (f"  {line}" for line in small.text.splitlines())
    for number, literal in enumerate(small.inputs):
        yield f"  x{number} = {literal.type} {literal.numpy().tolist()}"
    yield f"  {small.id}; as drawn: ptir-conformance replay {row.case} --backend {name}"


def headline(found: Found, count: int) -> str:
    """How many programs ran on how many backends, and what became of them."""
    ran = sum(len(rows) for rows in found.rows.values())
    failed = len(found.failures)
    refused = sum(r.outcome is Outcome.UNSUPPORTED for rows in found.rows.values() for r in rows)
    text = f"{ran}/{count * len(found.rows)} runs of {count} programs on {', '.join(found.rows)}"
    verdict = "interrupted" if found.interrupted else "every program agrees"
    end = f"{failed} failed" if failed else verdict
    return f"{text}: {f'{refused} unsupported, ' if refused else ''}{end}"
