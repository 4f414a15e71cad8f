"""``fuzz`` on all installed backends, and ``mutants``: the grade of the suite itself."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click
from rich.console import Console
from rich.progress import Progress

from ptir_testsuite.cli.common import (
    COUNT,
    SECONDS,
    built_anew,
    console,
    in_processes,
    require_place,
    terminable,
)
from ptir_testsuite.corpus.selection import selection
from ptir_testsuite.corpus.stored import promote
from ptir_testsuite.mutants import MUTANTS, PLANTED
from ptir_testsuite.mutants.grading import graded
from ptir_testsuite.mutants.impostors import IMPOSTORS
from ptir_testsuite.mutants.planting import ON, KernelGrade
from ptir_testsuite.mutants.score import Grade, Unmasked
from ptir_testsuite.reports import matrix
from ptir_testsuite.reports.report import CONFORMANT, INCOMPLETE, NOT_CONFORMANT
from ptir_testsuite.running.fuzz import Found, fuzz, headline, shared, told
from ptir_testsuite.running.items import random_programs
from ptir_testsuite.running.outcomes import Row

ENOUGH: Final = 0.95
"""The share of all planted faults that a slice must reject."""


@click.command("fuzz")
@click.option("--backend", "names", multiple=True, help="NAME; several; default: all installed.")
@click.option("--count", type=COUNT, default=2000, help="How many programs.")
@click.option("--seed", type=COUNT, default=0, help="Where the draws start.")
@click.option("--first", type=COUNT, default=0, help="The number of the first one.")
@click.option("--most", type=COUNT, default=10, help="Failures of a backend that are shrunk.")
@click.option("--promote", "path", type=click.Path(path_type=Path), help="Keep failures there.")
@click.option("--import", "imports", multiple=True, help="A module that defines ops.")
@in_processes
def fuzz_command(
    names: tuple[str, ...],
    count: int,
    seed: int,
    first: int,
    most: int,
    path: Path | None,
    imports: tuple[str, ...],
    jobs: int,
    timeout: float,
) -> int:
    """Run random programs on several backends: 0 all agree, 1 not, 3 interrupted."""
    if path is not None:
        require_place("--promote", path)
    programs = list(random_programs(count, seed, first))
    common, found = shared(names), Found()
    with built_anew(), terminable(), Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("running", total=count * len(common.names))

        def progress(_name: str, _row: Row) -> None:
            bar.advance(task)

        fuzz(found, common, programs, progress, imports, max(jobs, 1), timeout, most)
    page = console()
    page.print(f"drawn within {', '.join(sorted(common.claims))}; seed {seed}, from {first}")
    for one in found.smallest:
        for line in told(one):
            page.print(line, soft_wrap=True)
        if path is not None and one.program is not None:
            kept = promote(path, one.program)
            page.print(f"  {'kept in' if kept else 'already in'} {path}", soft_wrap=True)
    page.print(headline(found, count))
    if found.failures:
        return NOT_CONFORMANT
    return CONFORMANT if any(found.rows.values()) and not found.interrupted else INCOMPLETE


@click.command("mutants")
@click.option(
    "-k", "words", default="", show_default=False, help="Only those whose name or ops match."
)
@click.option("--timeout", type=SECONDS, default=2.0, help="Seconds until an impostor is given up.")
@click.option("--slice", "number", type=COUNT, help="Grade this slice of the corpus instead.")
@click.option("--jobs", type=click.IntRange(1), default=1, help="Faults graded at a time.")
def mutants_command(words: str, timeout: float, number: int | None, jobs: int) -> int:
    """Grade the suite: which planted faults the corpus alone rejects; 0 where all are right.

    A slice must reject 95 of 100; what it leaves to a whole run is named.
    """
    matches = selection(words) if words else None
    rows = [r for r in MUTANTS.values() if not matches or matches(f"{r.name} {' '.join(r.ops)}")]
    names = [n for n, r in IMPOSTORS.items() if not matches or matches(f"{n} {' '.join(r.ops)}")]
    planted = [r for r in PLANTED.values() if not matches or matches(_words(r.name, r.shows))]
    grades = graded(rows, names, planted, timeout=timeout, number=number, jobs=jobs)
    found, unmasked, kernels = grades.faults, grades.impostors, grades.kernels
    grid = [["fault", "ops", "rejected by", "cases tried"]]
    for one in (g for g in found if not g.reason):
        grid.append([one.name, ", ".join(one.ops), one.caught or "NOTHING", str(one.tried)])
    liars = [["impostor", "must get", "got", "from"]]
    for liar in unmasked:
        wanted = " or ".join(outcome.value for outcome in liar.wanted)
        liars.append([liar.name, wanted, liar.outcome.value, liar.caught or "NOTHING"])
    equivalent = [["changes nothing", "why", "cases tried", "rejected by"]]
    for one in (g for g in found if g.reason):
        equivalent.append([one.name, one.reason, str(one.tried), one.caught])
    generated = [
        ["fault in generated kernels", "on", "shown by", "rejected by", "outcome", "tried"]
    ]
    for made in kernels:
        told = made.caught or ("NOTHING" if made.graded else "not graded")
        row = [made.name, made.backend or "-", ", ".join(made.ops), told, made.outcome.value]
        generated.append([*row, str(made.tried)])
    page = console()
    for table in (grid, generated, liars, equivalent):
        if len(table) > 1:
            page.print(matrix.table(table))
    faults, alike = ([g for g in found if bool(g.reason) is r] for r in (False, True))
    page.print(_of_kernels(kernels))
    page.print(
        f"{sum(g.right for g in faults)}/{len(faults)} planted faults rejected by"
        f" {'the corpus' if number is None else f'slice {number}'} alone,"
        f" {sum(u.right for u in unmasked)}/{len(unmasked)} impostors with the right outcome;"
        f" {sum(g.right for g in alike)}/{len(alike)} equivalent changes accepted"
    )
    ran = [g for g in kernels if g.graded]
    if not found and not unmasked and not ran:
        return INCOMPLETE
    every: list[Grade | Unmasked] = [*found, *ran, *unmasked]
    wrong = [one.name for one in every if not one.right]
    if number is None or any(g.reason for g in found if not g.right):
        return NOT_CONFORMANT if wrong else CONFORMANT
    total = len(faults) + len(ran) + len(unmasked)
    page.print(
        f"{total - len(wrong)}/{total} in all; left to a whole run: {'; '.join(wrong) or 'none'}"
    )
    return CONFORMANT if total - len(wrong) >= ENOUGH * total else NOT_CONFORMANT


def _words(name: str, shows: Sequence[str]) -> str:
    return f"{name} {' '.join(shows)} kernels"


def _of_kernels(kernels: Sequence[KernelGrade]) -> str:
    """How many of the faults in the generator were rejected, and what could not be graded."""
    graded = [g for g in kernels if g.graded]
    named = f" ({', '.join(sorted({g.backend for g in graded}))})" if graded else ""
    text = (
        f"{sum(g.right for g in graded)}/{len(graded)} faults in generated kernels rejected{named}"
    )
    left = len(kernels) - len(graded)
    needs = f"; {left} not graded: none of the backends that they need ({', '.join(ON)}) works here"
    return text + (needs if left else "")
