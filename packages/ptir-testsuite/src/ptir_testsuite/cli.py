"""``ptir-conformance``: the suite's command line."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console
from rich.progress import Progress, TaskID

from ptir.backend.folders import ENVIRONMENT
from ptir.errors import BackendUnavailable, PtirError, UsageError
from ptir_testsuite.accuracy import RELAXATIONS
from ptir_testsuite.outcomes import Row
from ptir_testsuite.profiles import parse_claims
from ptir_testsuite.report import DEFECT, INCOMPLETE, show
from ptir_testsuite.runner import Programs, Wish, run
from ptir_testsuite.workers import SuiteDefect

REBUILD: Final = "PTIR_REBUILD_KERNELS"


@click.group("ptir-conformance", context_settings={"help_option_names": ["-h", "--help"]})
def group() -> None:
    """Say with evidence whether a backend of ptir is right."""


def common(command: Callable[..., int]) -> Callable[..., int]:
    """The options of every command that runs something on a backend."""
    options = (
        click.option("--backend", required=True, help="NAME or NAME:DEVICE, installed."),
        click.option("--claims", help="Only these profiles: core,f16 or all; default: its claims."),
        click.option("--jobs", type=click.IntRange(0), default=1, help="Processes; 0: this one."),
        click.option("--timeout", default=60.0, help="Seconds that one case may take."),
        click.option("--relax", multiple=True, type=click.Choice(sorted(RELAXATIONS))),
        click.option("--import", "imports", multiple=True, help="A module that defines ops."),
        click.option("--json", "path", type=click.Path(path_type=Path), help="Where rows go."),
    )
    for option in reversed(options):
        command = option(command)
    return command


@group.command("run")
@common
@click.option("-k", "words", default="", help="Only cases that match: words, and, or, not, ().")
@click.option("--programs", default=200, help="Random programs to run after the corpus.")
@click.option("--seed", default=0, help="The seed of the random programs.")
def run_command(path: Path | None, words: str, programs: int, seed: int, **options: Any) -> int:
    """Run the corpus on a backend: 0 conformant, 1 not, 2 usage or defect, 3 incomplete."""
    return _finished(replace(_wish(options, Programs(programs, seed)), words=words), path)


@group.command("programs")
@common
@click.option("--count", default=2000, help="How many.")
@click.option("--seed", default=0, help="Where the draws start.")
@click.option("--first", default=0, help="The number of the first one, to run one again.")
def programs_command(path: Path | None, count: int, seed: int, first: int, **options: Any) -> int:
    """Run random programs alone; a failure prints the program, its inputs and how to repeat it."""
    return _finished(_wish(options, Programs(count, seed, first, alone=True)), path)


def _wish(options: dict[str, Any], programs: Programs) -> Wish:
    claims = parse_claims(options["claims"]) if options["claims"] else None
    return Wish(
        options["backend"],
        claims,
        jobs=options["jobs"],
        timeout=options["timeout"],
        relaxations=options["relax"],
        imports=options["imports"],
        programs=programs,
    )


def _finished(wish: Wish, path: Path | None) -> int:
    with _built_anew(), Progress(console=Console(stderr=True), transient=True) as bar:
        report = run(wish, _Bar(bar))
    show(report, _console())
    if path is not None:
        report.write(path)
    return report.exit_code


@contextmanager
def _built_anew() -> Iterator[None]:
    """Unless told where to keep them, built kernels are neither kept on disk nor taken from it.

    The verdict is about what the driver makes of the sources now, and thousands of small kernels
    must not drive those of somebody's models out of the cache.
    """
    if ENVIRONMENT in os.environ or REBUILD in os.environ:
        yield
        return
    os.environ[REBUILD] = "1"
    try:
        yield
    finally:
        del os.environ[REBUILD]


class _Bar:
    """A progress bar that grows with the rows."""

    def __init__(self, bar: Progress) -> None:
        self.bar = bar
        self.task: TaskID | None = None

    def __call__(self, row: Row, total: int) -> None:
        if self.task is None:
            self.task = self.bar.add_task("running", total=total)
        self.bar.advance(self.task)


def _console() -> Console:
    console = Console(markup=False, highlight=False, emoji=False)
    wide = Console(markup=False, highlight=False, emoji=False, width=10_000)
    return console if console.is_terminal else wide


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``ptir-conformance`` with ``argv`` (default: the process's) and return the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        code = group.main(arguments, prog_name="ptir-conformance", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return DEFECT
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return INCOMPLETE
    except SuiteDefect as error:
        click.echo(f"the suite failed on {error}", err=True)
        return DEFECT
    except PtirError as error:
        click.echo(f"error [{error.code}]: {error}", err=True)
        return _code_of(error)
    return code if isinstance(code, int) else 0


def _code_of(error: PtirError) -> int:
    if isinstance(error, UsageError):
        return DEFECT
    return INCOMPLETE if isinstance(error, BackendUnavailable) else DEFECT
