"""``run`` and ``programs``: the whole corpus, or random programs alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from ptir.errors import UsageError
from ptir_testsuite.cli.common import (
    COUNT,
    built_anew,
    console,
    in_processes,
    into_file,
    on_backend,
    require_place,
    terminable,
    with_waivers,
)
from ptir_testsuite.corpus.profiles import parse_claims
from ptir_testsuite.corpus.selection import nothing_found
from ptir_testsuite.reports.files import Journal
from ptir_testsuite.reports.report import show
from ptir_testsuite.reports.runner import Programs, Wish, run
from ptir_testsuite.reports.waivers import read_waivers
from ptir_testsuite.running.outcomes import Row
from ptir_testsuite.running.vocabulary import names


@click.command("run")
@on_backend
@in_processes
@into_file
@with_waivers
@click.option(
    "-k",
    "words",
    default="",
    show_default=False,
    help="Only cases that match: words, and, or, not, ().",
)
@click.option(
    "--programs", type=COUNT, default=200, help="Random programs to run after the corpus."
)
@click.option("--seed", type=COUNT, default=0, help="The seed of the random programs.")
@click.option(
    "--slice",
    "number",
    type=COUNT,
    help="Only this slice: each need of each op once, and a share of the rest.",
)
@click.option(
    "--at-once",
    is_flag=True,
    help="Compile many cases as one source file: quicker where a compiler's start is what costs.",
)
def run_command(
    words: str, programs: int, seed: int, number: int | None, at_once: bool, **options: Any
) -> int:
    """Run the corpus on a backend: 0 conformant, 1 not, 2 usage or defect, 3 incomplete."""
    asked = wish_of(options, Programs(programs, seed))
    wish = replace(asked, words=words, slice=number, at_once=at_once)
    return _finished(wish, options)


@click.command("programs")
@on_backend
@in_processes
@into_file
@click.option("--count", type=COUNT, default=2000, help="How many.")
@click.option("--seed", type=COUNT, default=0, help="Where the draws start.")
@click.option(
    "--first", type=COUNT, default=0, help="The number of the first one, to run one again."
)
def programs_command(count: int, seed: int, first: int, **options: Any) -> int:
    """Run random programs alone; a failure prints the program, its inputs and how to repeat it."""
    return _finished(wish_of(options, Programs(count, seed, first, alone=True)), options)


def wish_of(options: dict[str, Any], programs: Programs) -> Wish:
    """What the options of a command ask of a run."""
    claims = None if options["claims"] is None else parse_claims(options["claims"])
    return Wish(
        options["backend"],
        claims,
        jobs=options.get("jobs", 1),
        timeout=options.get("timeout", 60.0),
        relaxations=options["relax"],
        imports=options["imports"],
        programs=programs,
        waivers=read_waivers(options["waivers"]) if options.get("waivers") else (),
    )


def _finished(wish: Wish, options: dict[str, Any]) -> int:
    source = click.get_current_context().get_parameter_source("timeout")
    if wish.jobs == 0 and source is ParameterSource.COMMANDLINE:
        raise UsageError(
            "--timeout needs a process to give up; --jobs 0 runs everything in this one"
        )
    journal = _journal(options["path"], options["resume"])
    with built_anew(), terminable(), progress() as bar:
        report = run(wish, _Bar(bar), journal)
    if not report.header["selected"]:
        click.echo(nothing_found(wish.words, wish.claims, names()), err=True)
    show(report, console(), None if journal is None else journal.path)
    if report.interrupted and journal is not None:
        click.echo(f"{journal.path} has the rows so far; the same with --resume goes on", err=True)
    return report.exit_code


def progress() -> Progress:
    """Which op is at hand, how many rows are done, and how long the rest takes."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    return Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True)


def _journal(path: Path | None, resume: bool) -> Journal | None:
    if path is None:
        if resume:
            raise UsageError("--resume goes on with a file; name it with --json FILE")
        return None
    require_place("--json", path)
    return Journal(path, resume)


class _Bar:
    """A progress bar that grows with the rows, and says how many failed."""

    def __init__(self, bar: Progress) -> None:
        self.bar = bar
        self.task: TaskID | None = None
        self.failed = 0

    def __call__(self, row: Row, total: int) -> None:
        if self.task is None:
            self.task = self.bar.add_task("running", total=total)
        self.failed += row.failed
        said = f"{row.op}, {self.failed} failed" if self.failed else row.op
        self.bar.update(self.task, advance=1, description=said)
