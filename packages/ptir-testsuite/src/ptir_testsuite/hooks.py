"""The suite as a plugin of ptir: ``ptir conformance`` is ``ptir-conformance``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ptir.plugins import hookimpl

if TYPE_CHECKING:
    import click

AS_THEY_STAND = {"ignore_unknown_options": True, "help_option_names": []}


@hookimpl
def ptir_commands() -> Iterable[click.Command]:
    """The command."""
    import click  # processes that load a model load this plugin, and no command line

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

    return [command]
