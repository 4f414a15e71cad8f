"""What a backend says that it takes, asked of its capability predicate; nothing is run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ptir.backend.interpreter import query_of
from ptir.ops import OPS
from ptir.types import DTYPES
from ptir_testsuite.corpus.case import Case
from ptir_testsuite.corpus.composites import CompositeCall
from ptir_testsuite.corpus.profiles import PROFILES, names_of, profiles_of
from ptir_testsuite.reports.matrix import Grid, about
from ptir_testsuite.running.execute import Setting, has_way_around


@dataclass
class Cell:
    """The calls of an op in a dtype: taken by the backend, run by a way around, refused."""

    taken: int = 0
    around: int = 0
    refused: int = 0
    reason: str = ""
    broken: str = ""

    @property
    def mark(self) -> str:
        """The cell in a table: all, a part or nothing is taken; ``~`` by decomposition or so."""
        if self.broken:
            return "✗"
        if not self.refused:
            return "✓" if self.taken else "~"
        return f"{self.taken + self.around}/{self.taken + self.around + self.refused}"


@dataclass
class Support:
    """What was found: cells by op and dtype, and composites that are taken whole."""

    cells: dict[tuple[str, str], Cell]
    whole: list[str]

    @property
    def broken(self) -> list[str]:
        """Calls within the claimed profiles that are refused and have no way around."""
        return [cell.broken for cell in self.cells.values() if cell.broken]

    def grid(self) -> Grid:
        """Ops down, dtypes across."""
        used = {dtype for _, dtype in self.cells}
        dtypes = [name for name in DTYPES if name in used]
        ops = dict.fromkeys(op for op, _ in self.cells)
        rows = [
            [op, *(c.mark if (c := self.cells.get((op, d))) else "" for d in dtypes)] for op in ops
        ]
        return [["op", *dtypes], *rows]


def asked(setting: Setting, cases: Iterable[Case], composites: Iterable[CompositeCall]) -> Support:
    """Ask the predicate about every call of ``cases``, and which ``composites`` it takes whole."""
    backend, device = setting.target.backend, setting.target.device
    found = Support({}, [])
    answers: dict[Any, str | None] = {}
    for case in cases:
        program = case.program
        query = query_of(program.main, program.main.instructions[0])
        key = (query.op, query.attributes.text, query.operands, query.results)
        if key not in answers:
            answers[key] = backend.refusal(query, device)
            cell = found.cells.setdefault((case.op, about(case.op, case.dtypes)), Cell())
            _count(cell, case, answers[key], setting)
    for item in composites:
        program = item.program(item.arrays())
        query = query_of(program.main, program.main.instructions[0])
        if backend.refusal(query, device) is None and item.name not in found.whole:
            found.whole.append(item.name)
    return found


def _count(cell: Cell, case: Case, reason: str | None, setting: Setting) -> None:
    if reason is None:
        cell.taken += 1
    elif has_way_around(case):
        cell.around += 1
    else:
        cell.refused += 1
        cell.reason = cell.reason or reason
        if profiles_of(OPS[case.op], names_of(case.dtypes)) <= setting.claims:
            cell.broken = cell.broken or f"{case.call}: {reason}"


def profile_lines(claims: frozenset[str]) -> Iterator[str]:
    """Which profiles are claimed, and what the others are."""
    yield f"claimed: {', '.join(name for name in PROFILES if name in claims) or 'nothing'}"
    others = [f"{name} ({text})" for name, text in PROFILES.items() if name not in claims]
    if others:
        yield f"not claimed: {', '.join(others)}"


GAP: Final = 2  # spaces between two columns


def folded(grid: Grid, width: int) -> Iterator[Grid]:
    """The table in as many as it takes to be no wider than ``width``, each with the first column.

    One column beside the first stands even where it is too wide.
    """
    wide = [max(len(row[place]) for row in grid) + GAP for place in range(len(grid[0]))]
    places: list[int] = []
    for place in range(1, len(wide)):
        if places and sum(wide[p] for p in (0, *places, place)) - GAP > width:
            yield _columns(grid, places)
            places = []
        places.append(place)
    yield _columns(grid, places)


def _columns(grid: Grid, places: Sequence[int]) -> Grid:
    """The first column and those at ``places``, without rows that say nothing there."""
    head, *rows = ([row[0], *(row[p] for p in places)] for row in grid)
    return [head, *(row for row in rows if any(row[1:]))]
