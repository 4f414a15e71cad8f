"""``ptir-conformance``: the suite's command line."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console
from rich.progress import Progress, TaskID

from ptir.errors import BackendUnavailable, PtirError, UsageError
from ptir_testsuite.accuracy import RELAXATIONS
from ptir_testsuite.outcomes import Row
from ptir_testsuite.profiles import parse_claims
from ptir_testsuite.report import DEFECT, INCOMPLETE, show
from ptir_testsuite.runner import Wish, run
from ptir_testsuite.workers import SuiteDefect


@click.group("ptir-conformance", context_settings={"help_option_names": ["-h", "--help"]})
def group() -> None:
    """Say with evidence whether a backend of ptir is right."""


@group.command("run")
@click.option("--backend", required=True, help="NAME or NAME:DEVICE of an installed backend.")
@click.option("-k", "words", default="", help="Only cases that match: words, and, or, not, ().")
@click.option("--claims", help="Only these profiles, as core,f16 or all; default: what it claims.")
@click.option(
    "--jobs", type=click.IntRange(min=0), default=1, help="Processes; 0 runs in this one."
)
@click.option("--timeout", default=60.0, help="Seconds that one case may take.")
@click.option(
    "--relax", multiple=True, type=click.Choice(sorted(RELAXATIONS)), help="Named column."
)
@click.option("--import", "imports", multiple=True, help="A module that defines further ops.")
@click.option("--json", "path", type=click.Path(path_type=Path), help="Write the rows to a file.")
def run_command(
    backend: str,
    words: str,
    claims: str | None,
    jobs: int,
    timeout: float,
    relax: tuple[str, ...],
    imports: tuple[str, ...],
    path: Path | None,
) -> int:
    """Run the corpus on a backend: 0 conformant, 1 not, 2 usage or defect, 3 incomplete."""
    wanted = parse_claims(claims) if claims else None
    wish = Wish(backend, wanted, words, jobs, timeout, relax, imports)
    with Progress(console=Console(stderr=True), transient=True) as bar:
        report = run(wish, _Bar(bar))
    if path is not None:
        report.write(path)
    show(report, _console())
    return report.exit_code


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
