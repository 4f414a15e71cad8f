"""``fuzz``: random programs on all installed backends, with failures shrunk and kept."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console
from rich.progress import Progress

from ptir_testsuite.cli.shared import built_anew, console, in_processes, terminable
from ptir_testsuite.fuzz import Found, fuzz, headline, shared, told
from ptir_testsuite.items import random_programs
from ptir_testsuite.outcomes import Row
from ptir_testsuite.programs.stored import promote
from ptir_testsuite.report import CONFORMANT, INCOMPLETE, NOT_CONFORMANT


@click.command("fuzz")
@click.option("--backend", "names", multiple=True, help="NAME; several; default: all installed.")
@click.option("--count", default=2000, help="How many programs.")
@click.option("--seed", default=0, help="Where the draws start.")
@click.option("--first", default=0, help="The number of the first one.")
@click.option("--most", default=10, help="Failures of a backend that are shrunk.")
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
    programs = list(random_programs(count, seed, first))
    common, found = shared(names), Found()
    with built_anew(), terminable(), Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("running", total=count * len(common.names))

        def progress(_name: str, _row: Row) -> None:
            bar.advance(task)

        fuzz(found, common, programs, progress, imports, max(jobs, 1), timeout, most)
    page = console()
    page.print(f"drawn within {', '.join(sorted(common.claims))}; seed {seed}, from {first}")
    for name, row, small in found.smallest:
        for line in told(name, row, small):
            page.print(line)
        if path is not None:
            kept = promote(path, small)
            page.print(f"  {'kept in' if kept else 'already in'} {path}")
    page.print(headline(found, count))
    if found.failures:
        return NOT_CONFORMANT
    return INCOMPLETE if found.interrupted else CONFORMANT
