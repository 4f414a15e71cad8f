"""``ptir dump``: a model's step as a PTIR program, as captured or as optimized for a backend."""

from __future__ import annotations

from pathlib import Path

import click

from ptir.cli import show
from ptir.cli.common import CommonOptions, common_options, session
from ptir.cli.model import Formats, format_options, model_argument, open_model


@click.command()
@model_argument
@click.option(
    "--length", type=click.IntRange(1), default=1, help="Tokens in the step, or of texts."
)
@click.option("--batch", type=click.IntRange(1), default=1, help="Rows, images or texts.")
@click.option("--context", type=click.IntRange(1), default=64, help="Capacity of the cache.")
@click.option("--optimized", is_flag=True, help="After the passes, as the backend gets it.")
@click.option("--passes", is_flag=True, help="After each pass, with what fired where.")
@click.option("--locations", is_flag=True, help="Say of each instruction where it comes from.")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="Write to a file.")
@format_options
@common_options
def command(
    common: CommonOptions,
    model: str,
    length: int,
    batch: int,
    context: int,
    optimized: bool,
    passes: bool,
    locations: bool,
    out: Path | None,
    formats: Formats,
) -> None:
    """Print MODEL's step (tokens, cache, start, count to logits, cache) as a program.

    Of a model that takes images or texts, a run over some; of one that hears, a prompt's step.
    """
    from ptir.cli.passes import lines, record, runs_of
    from ptir.ir.jsonform import to_json
    from ptir.ir.printer import print_program
    from ptir.runtime.kinds import Sizes, kind_of
    from ptir.runtime.recorded import recorded_step

    if passes and optimized:
        raise click.UsageError("--passes ends with what --optimized prints; give one of them")
    with session(common):
        loaded = open_model(common, model, formats, needs="trace")
        if "generate" in loaded.capabilities:
            program = recorded_step(loaded, batch, length, context).program
        else:
            step = kind_of(loaded).step(loaded, Sizes(length=length, batch=batch))
            program = step.captured().program
        if passes:
            with loaded.policies():
                runs = runs_of(program, loaded.target)
        if optimized:
            from ptir.capture.plan import plan_for

            with loaded.policies():
                program = plan_for(program, loaded.target).optimized
    if common.json:
        told = [record(run) for run in runs] if passes else to_json(program, locations=locations)
        show.value(told)
        return
    if passes:
        text = "\n".join(lines(runs, locations=locations)).rstrip()
    else:
        text = print_program(program, locations=locations)
    if out is None:
        show.text(text)
    else:
        _write(out, text + "\n")


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise click.UsageError(f"--out {path}: {error.strerror}; choose another") from error
