"""``ptir eval``: what a model is good for, alone or beside the same model of PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import click
from click.core import ParameterSource

from ptir.cli.common import CommonOptions, common_options, session
from ptir.cli.compared import tolerance_option
from ptir.cli.eval_options import LIBRARIES, WORKLOADS, Asked
from ptir.cli.model import Formats, format_options, model_argument, open_model, window_option
from ptir.cli.texts import text_options

FILE: Final = click.Path(path_type=Path, dir_okay=False)


@click.command()
@model_argument
@click.argument("inputs", nargs=-1)
@click.option(
    "--workload",
    type=click.Choice(list(WORKLOADS)),
    default="perplexity",
    show_default=True,
    help="What to measure or compare.",
)
@click.option("--against", type=click.Choice(LIBRARIES), help="Run that library's model, too.")
@text_options
@click.option("--tokens", metavar="IDS", help="Token ids, comma-separated, instead of a text.")
@click.option(
    "--truth",
    type=FILE,
    help="The right class of each input, a line each: its name or its number.",
)
@window_option
@click.option(
    "--stride",
    type=click.IntRange(1),
    metavar="N",
    help="Begin windows N tokens apart and count every token once; default: windows side by side,"
    " of which second halves count.",
)
@click.option(
    "-p",
    "--n-prompt",
    type=click.IntRange(1),
    default=128,
    show_default=True,
    help="Tokens of a prompt or text that is timed.",
)
@click.option(
    "-n",
    "--n-gen",
    type=click.IntRange(0),
    default=32,
    show_default=True,
    help="Tokens that are generated.",
)
@click.option("--batch", type=click.IntRange(1), default=1, show_default=True, help="Inputs a run.")
@click.option(
    "-r", "--rounds", type=click.IntRange(1), default=5, show_default=True, help="Of timing."
)
@tolerance_option
@click.option("--csv", type=FILE, help="Write the table as CSV, too.")
@click.option("--html", type=FILE, help="Write a page of it, too.")
@format_options
@common_options
@click.pass_context
def command(
    context: click.Context, /, common: CommonOptions, formats: Formats, **given: Any
) -> None:
    """Measure MODEL by a workload, alone or --against PyTorch on the same inputs.

    perplexity: how well it predicts the text in the file INPUTS.

    accuracy: how many of INPUTS (texts, or image files) get their class in --truth.

    bench: how fast it is.

    validate: whether outputs for INPUTS, and greedy tokens behind them, are the peer's.

    trace: which is the first layer whose result is not the peer's.

    The last two need --against, and exit with 5 where something is off by more than --tolerance.
    """
    from ptir.cli.eval_tables import finish
    from ptir.cli.eval_workloads import compared
    from ptir.peers.process import library

    csv, html = given.pop("csv"), given.pop("html")
    asked = Asked(formats=formats, **given)
    source = context.get_parameter_source
    asked.check({n for n in given if source(n) is ParameterSource.COMMANDLINE})
    with session(common):
        if asked.against is not None:
            library(asked.against)  # before anything is loaded
        loaded = open_model(common, asked.model, formats, needs="trace")
        result = compared(common, loaded, asked)
    finish(result, asked, common, csv, html)
