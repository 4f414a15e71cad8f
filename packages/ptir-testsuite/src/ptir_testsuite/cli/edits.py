"""``fuzz-text``: programs whose text was changed, read and run on several backends."""

from __future__ import annotations

import click
from rich.console import Console
from rich.progress import Progress

from ptir_testsuite.cli.common import COUNT, SECONDS, built_anew, console, terminable
from ptir_testsuite.reports.report import CONFORMANT, INCOMPLETE, NOT_CONFORMANT
from ptir_testsuite.running.editing import (
    Edited,
    edited_programs,
    faults,
    headline,
    run_texts,
    told,
)
from ptir_testsuite.running.outcomes import Row


@click.command("fuzz-text")
@click.option(
    "--backend", "names", multiple=True, default=("ref", "c"), help="NAME; several, compared."
)
@click.option("--count", type=COUNT, default=20_000, help="How many texts.")
@click.option("--seed", type=COUNT, default=0, help="Where the edits start.")
@click.option("--first", type=COUNT, default=0, help="The number of the first one.")
@click.option("--most", type=COUNT, default=10, help="Faults that are printed whole.")
@click.option("--jobs", type=click.IntRange(1), default=1, help="Processes.")
@click.option("--timeout", type=SECONDS, default=60.0, help="Seconds that one text may take.")
def fuzz_text_command(
    names: tuple[str, ...],
    count: int,
    seed: int,
    first: int,
    most: int,
    jobs: int,
    timeout: float,
) -> int:
    """Change a few tokens of programs and run what is left: 0 no fault, 1 faults, 3 interrupted.

    Each text must be refused with an error of ptir, or end alike on all backends.
    """
    items, found = edited_programs(count, seed, first), Edited()
    with built_anew(), terminable(), Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("running", total=count * len(names))

        def progress(_row: Row) -> None:
            bar.advance(task)

        run_texts(found, names, items, progress, jobs, timeout)
    page = console()
    wrong = list(faults(found.rows))
    for name, row in wrong[:most]:
        for line in told(name, row, names):
            page.print(line, soft_wrap=True)
    page.print(f"seed {seed}, from {first}")
    page.print(headline(found, len(wrong)))
    if wrong:
        return NOT_CONFORMANT
    return CONFORMANT if any(found.rows.values()) and not found.interrupted else INCOMPLETE
