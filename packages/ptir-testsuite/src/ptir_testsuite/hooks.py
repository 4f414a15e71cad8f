"""The suite as a plugin of ptir: ``ptir conformance`` is ``ptir-conformance``."""

from __future__ import annotations

from collections.abc import Iterable

import click

from ptir.plugins import hookimpl

AS_THEY_STAND = {"ignore_unknown_options": True, "help_option_names": []}


@click.command(
    "conformance",
    short_help="Say with evidence whether a backend is right.",
    context_settings=AS_THEY_STAND,
    add_help_option=False,
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(arguments: tuple[str, ...]) -> int:
    """Everything after the name goes to ``ptir-conformance``, whose exit codes these are."""
    from ptir_testsuite.cli import main

    return main(arguments, "ptir conformance")


@hookimpl
def ptir_commands() -> Iterable[click.Command]:
    """The command."""
    return [command]
