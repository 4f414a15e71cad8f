"""Random programs on several backends at once; what fails is shrunk, and can be kept.

Programs are drawn within the profiles that all of the backends claim, so that all run the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from ptir.backend import registry
from ptir.errors import BackendUnavailable, UsageError
from ptir_testsuite.corpus.programs import drawn_program
from ptir_testsuite.corpus.stored import Stored
from ptir_testsuite.oracles.accuracy import Terms
from ptir_testsuite.running.kinds.programs import RandomProgram
from ptir_testsuite.running.kinds.shrink import shrunk
from ptir_testsuite.running.outcomes import BROKEN, Outcome, Row
from ptir_testsuite.running.workers import Order, run_in_processes


@dataclass(frozen=True)
class Shared:
    """The backends' names, and the profiles that all of them claim."""

    names: tuple[str, ...]
    claims: frozenset[str]

    def order(self, name: str, imports: tuple[str, ...]) -> Order:
        """What the workers of one backend need; it is held to all that it claims of accuracy."""
        terms = Terms(registry.get(name).backend.correctly_rounded)
        return Order(name, imports, self.claims, terms)


@dataclass(frozen=True)
class Smallest:
    """A failure of a backend, the smallest program that fails alike, how to meet it as drawn.

    There is no such program where what was drawn passes alone, and fails only beside others.
    """

    backend: str
    row: Row
    program: Stored | None
    again: str


@dataclass
class Found:
    """What became of the programs, by backend, and the smallest forms of those that failed."""

    rows: dict[str, list[Row]] = field(default_factory=dict[str, list[Row]])
    smallest: list[Smallest] = field(default_factory=list["Smallest"])
    interrupted: bool = False

    @property
    def failures(self) -> list[Row]:
        """The rows that speak against a backend."""
        return [row for rows in self.rows.values() for row in rows if row.failed]


def shared(names: Sequence[str]) -> Shared:
    """What the named backends have in common; all that work, where none is named."""
    working = (status.name for status in registry.status_table() if status.status == "ok")
    chosen = tuple(dict.fromkeys(names or working))
    if not chosen:
        raise BackendUnavailable("no backend works here; see `ptir backends`")
    targets = [registry.get(name) for name in chosen]
    claims = frozenset.intersection(*(t.backend.claimed(t.device) for t in targets))
    if not claims:
        raise UsageError(f"{', '.join(chosen)} have no profile in common")
    return Shared(chosen, claims)


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
            setting = order.setting()
            rows = found.rows.setdefault(name, [])
            for row in run_in_processes(programs, order, jobs, timeout):
                rows.append(row)
                progress(name, row)
            failing = [row for row in rows if row.failed][:most]
            for row in failing:
                small = smallest(row, order, timeout)
                found.smallest.append(Smallest(name, row, small, setting.again(row)))
    except KeyboardInterrupt:
        found.interrupted = True


def smallest(row: Row, order: Order, timeout: float) -> Stored | None:
    """The smallest program found that fails as the one of ``row`` does; None where none does."""
    _, seed, number = row.case.split("-")
    drawn = drawn_program(int(seed), int(number), order.claims)
    note = f"{row.case} on {order.backend}: {row.outcome.value} in {row.phase}"

    def failing(candidates: Sequence[Stored]) -> Stored | None:
        by_id = {one.id: one for one in candidates}
        rows = run_in_processes(list(by_id.values()), order, 1, timeout)
        alike = [by_id[r.case] for r in rows if (r.outcome, r.phase) == (row.outcome, row.phase)]
        return min(alike, key=list(by_id.values()).index, default=None)

    whole = Stored.of(drawn.program, drawn.arrays, note)
    return failing([whole]) and shrunk(drawn.program, drawn.arrays, failing, note)


def told(one: Smallest) -> Iterator[str]:
    """A failure for a reader: the smallest program, its inputs, how to meet it again."""
    row = one.row
    first = row.message.splitlines()[0] if row.message else ""
    yield f"{one.backend}: {row.case}: {row.outcome.value} [{row.phase}] {first}"
    if one.program is None:
        yield f"  it does not fail alone; with those that it was run with: {one.again}"
        return
    yield from (f"  {line}" for line in one.program.text.splitlines())
    for number, literal in enumerate(one.program.inputs):
        yield f"  x{number} = {literal.type} {literal.numpy().tolist()}"
    yield f"  {one.program.id}; as drawn: {one.again}"


def headline(found: Found, count: int) -> str:
    """How many programs ran on how many backends, and what became of them."""
    ran = sum(len(rows) for rows in found.rows.values())
    if not ran:
        return "incomplete: nothing was executed"
    failures = found.failures
    refused = sum(row.outcome is Outcome.UNSUPPORTED for row in failures)  # within what they claim
    beside = f", {refused} of them {BROKEN[Outcome.UNSUPPORTED]}" if refused else ""
    text = f"{ran}/{count * len(found.rows)} runs of {count} programs on {', '.join(found.rows)}"
    verdict = "interrupted" if found.interrupted else "every program agrees"
    return f"{text}: {f'{len(failures)} failed{beside}' if failures else verdict}"
