"""``ptir-conformance``: the table of commands, and what the shell sees when one fails."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence

import click

from ptir.errors import BackendUnavailable, PtirError, UsageError
from ptir_testsuite.cli import edits, faults, reports, runs, tables
from ptir_testsuite.reports.report import DEFECT, INCOMPLETE
from ptir_testsuite.running.workers import SuiteDefect

HELP = {"help_option_names": ["-h", "--help"], "show_default": True}


@click.group("ptir-conformance", context_settings=HELP)
def group() -> None:
    """Say with evidence whether a backend of ptir is right."""


for _command in (
    runs.run_command,
    runs.programs_command,
    reports.replay_command,
    reports.verify_command,
    reports.failures_command,
    tables.matrix_command,
    tables.badge_command,
    tables.support_command,
    tables.coverage_command,
    faults.fuzz_command,
    edits.fuzz_text_command,
    faults.mutants_command,
):
    group.add_command(_command)


def main(argv: Sequence[str] | None = None, name: str = "ptir-conformance") -> int:
    """Run ``ptir-conformance`` with ``argv`` (default: the process's) and return the exit code.

    ``name`` is what its help and its mistakes call it.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        code = group.main(arguments, prog_name=name, standalone_mode=False)
    except click.ClickException as error:
        error.show()
        if isinstance(error, click.NoSuchOption) and (owners := _takers(error)):
            click.echo(f"It is an option of {', '.join(owners)}: {name} {owners[0]} ...", err=True)
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
    except Exception:  # noqa: BLE001  exit code 1 is a verdict, which this is not
        traceback.print_exc()
        click.echo("the suite failed: a defect of ptir-testsuite; nothing was judged", err=True)
        return DEFECT
    return code if isinstance(code, int) else 0


def _takers(error: click.NoSuchOption) -> list[str]:
    """The commands that take an option which was written before any command."""
    before = error.ctx is not None and error.ctx.command is group
    return [
        name
        for name, command in group.commands.items()
        if before and any(error.option_name in given.opts for given in command.params)
    ]


def _code_of(error: PtirError) -> int:
    if isinstance(error, UsageError):
        return DEFECT
    return INCOMPLETE if isinstance(error, BackendUnavailable) else DEFECT
