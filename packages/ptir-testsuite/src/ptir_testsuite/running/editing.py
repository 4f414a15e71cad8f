"""Edited texts on several backends: each ends the same way on all of them, or is a fault.

A text may be refused with an error of ptir, or run and give what its oracles and the other
backends say. A run that does not end is none of a backend's faults where it ends on no other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ptir.backend import registry
from ptir_testsuite.corpus.edited import EditedProgram
from ptir_testsuite.oracles.accuracy import Terms
from ptir_testsuite.running.kinds.edited import ENDLESS
from ptir_testsuite.running.outcomes import Outcome, Row
from ptir_testsuite.running.workers import Order, run_in_processes

RAN = "ran"

Rows = dict[str, dict[str, Row]]
"""By backend, then by the id of the text."""


@dataclass
class Edited:
    """What became of the texts on every backend."""

    rows: Rows = field(default_factory=dict[str, dict[str, Row]])
    interrupted: bool = False


def edited_programs(count: int, seed: int = 0, first: int = 0) -> list[EditedProgram]:
    """Texts ``first`` to ``first + count - 1`` of a seed."""
    return [EditedProgram(seed, number) for number in range(first, first + count)]


def order_of(name: str) -> Order:
    """What the workers of a backend need: it is held to all that it claims."""
    target = registry.get(name)
    backend = target.backend
    return Order(name, (), backend.claimed(target.device), Terms(backend.correctly_rounded))


def run_texts(
    found: Edited,
    names: Sequence[str],
    items: Sequence[EditedProgram],
    progress: Callable[[Row], None],
    jobs: int,
    timeout: float,
) -> None:
    """Run the texts on every backend; what is known is in ``found`` at any time."""
    try:
        for name in names:
            rows = found.rows.setdefault(name, {})
            for row in run_in_processes(items, order_of(name), jobs, timeout):
                rows[row.case] = row
                progress(row)
    except KeyboardInterrupt:
        found.interrupted = True


def faults(rows: Mapping[str, Mapping[str, Row]]) -> Iterator[tuple[str, Row]]:
    """The rows that speak against a backend, by themselves or beside the other backends'."""
    names = list(rows)
    for case in dict.fromkeys(case for mine in rows.values() for case in mine):
        both = {name: rows[name][case] for name in names if case in rows[name]}
        for name, row in both.items():
            if row.failed and not (row.outcome is Outcome.TIMEOUT and not _ended(both)):
                yield name, row
        yield from _differing(both)


def how(row: Row) -> str:
    """How a text ended: refused, run, without an end, or in a fault."""
    return ENDLESS if row.outcome is Outcome.TIMEOUT else str(row.facts.get("ended", "fault"))


def _ended(both: Mapping[str, Row]) -> bool:
    """Whether the program ran to its end anywhere."""
    return any(how(row) == RAN for row in both.values())


def _differing(both: Mapping[str, Row]) -> Iterator[tuple[str, Row]]:
    """The rows that do not agree with the first backend on which the program ran."""
    ran = {name: row for name, row in both.items() if how(row) == RAN}
    if not ran:
        return
    first, wanted = next(iter(ran.items()))
    for name, row in both.items():
        if how(row) == ENDLESS and row.outcome is Outcome.PASS:
            text = f"it ends on {first}, and not on {name}"
            yield name, replace(row, outcome=Outcome.TIMEOUT, phase="execute", message=text)
        if name not in ran:
            continue
        pairs = zip(wanted.facts["bits"], row.facts["bits"], strict=True)
        places = [str(n) for n, (one, other) in enumerate(pairs) if one and other and one != other]
        if places:
            text = f"{name} and {first} give other bits for output {', '.join(places)}"
            yield name, replace(row, outcome=Outcome.MISMATCH, phase="compare", message=text)


def told(name: str, row: Row, names: Sequence[str]) -> Iterator[str]:
    """A fault for a reader: what happened, the text, the command that meets it again."""
    _, seed, number = row.case.split("-")
    yield f"{name}: {row.case}: {row.outcome.value} [{row.phase}] {row.message}"
    yield from (f"  {line}" for line in EditedProgram(int(seed), int(number)).text.splitlines())
    backends = " ".join(f"--backend {one}" for one in names)
    yield f"  again: ptir-conformance fuzz-text --seed {seed} --first {number} --count 1 {backends}"


def headline(found: Edited, failures: int) -> str:
    """How many texts ended how, by backend."""
    parts = []
    for name, rows in found.rows.items():
        ends = Counter(how(row) for row in rows.values())
        counted = ", ".join(f"{count} {end}" for end, count in sorted(ends.items()))
        parts.append(f"{name}: {len(rows)} texts: {counted or 'none'}")
    verdict = f"{failures} faults" if failures else "no fault"
    return "\n".join((*parts, "interrupted" if found.interrupted and not failures else verdict))
