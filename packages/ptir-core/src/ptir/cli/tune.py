"""``ptir tune``: time the implementations that a model calls, and use the fastest from now on."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from ptir.cli import show
from ptir.cli.common import CommonOptions, common_options, session
from ptir.cli.model import Formats, format_options, model_argument, open_model
from ptir.cli.overrides import TIMED, timed_row
from ptir.units import size

if TYPE_CHECKING:
    from ptir.runtime.tune import Chosen


@click.command()
@model_argument
@click.option(
    "-n",
    "--tokens",
    type=click.IntRange(1),
    help="Tokens to tune for, of a text or a generation; default: 512, of speech no text before.",
)
@click.option(
    "--batch",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Prompts, texts, images or windows at once.",
)
@format_options
@common_options
def command(
    common: CommonOptions, model: str, tokens: int | None, batch: int, formats: Formats
) -> None:
    """Time every implementation of the functionals that MODEL calls, on this device.

    Each call is run whole, with weights as the backend packs them, against the default; what is
    faster beyond the spread is taken from now on when MODEL is loaded, in any process, until
    kernels change or `ptir overrides --reset all`. Implementations that round to narrower types are
    left out, and what an override asks for is not timed.
    """
    from ptir.runtime.tune import tune

    def heard(chosen: Chosen) -> None:
        show.note(f"{chosen.functional}: {chosen.implementation}")

    with session(common):
        loaded = open_model(common, model, formats, needs="trace")
        show.note(f"timing implementations on {loaded.target}")
        report = tune(loaded, tokens, batch, heard)
    decided = [one for one in report.records if one.decided]
    if common.json:
        where = {"backend": loaded.target.backend.name, "device": loaded.target.device.name}
        show.value({"model": model, **where, **asdict(report)})
        return
    if decided:
        show.table(TIMED, [timed_row(one) for one in decided])
    for name, nbytes in report.left.items():
        show.text(f"{name} stays with the default: {size(nbytes)} of weights would be held twice")
    rest = len(report.records) - len(decided)
    show.text(
        f"{report.programs} programs in {report.seconds:.1f} s: {len(decided)} kinds of calls are"
        f" faster with another implementation, {rest} stay with the default;"
        f" `ptir explain {model}` says which are used"
    )
