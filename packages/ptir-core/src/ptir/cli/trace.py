"""``ptir trace``: the results of every layer of a model, written to a file."""

from __future__ import annotations

from pathlib import Path

import click

from ptir.cli import show
from ptir.cli.common import CommonOptions, common_options, session
from ptir.cli.forward import described
from ptir.cli.model import (
    Formats,
    format_options,
    given_input,
    input_options,
    model_argument,
    open_model,
)


@click.command()
@model_argument
@input_options
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="Write a trace.")
@format_options
@common_options
def command(
    common: CommonOptions,
    model: str,
    prompt: str | None,
    prompt_option: str | None,
    tokens: str | None,
    out: Path | None,
    formats: Formats,
) -> None:
    """Compute every layer's output of MODEL for all positions of a text, or of an image file.

    `ptir diff` compares two such files.
    """
    from ptir.debug import trace_image, trace_model, write_trace
    from ptir.runtime.image_model import ImageModel

    given = given_input(prompt, prompt_option, tokens)
    with session(common):
        loaded = open_model(common, model, formats, needs="trace")
        if isinstance(loaded, ImageModel):
            trace = trace_image(loaded, loaded.pixels(_file(given)))
        else:
            trace = trace_model(loaded, loaded.encode(given))
    if out is not None:
        write_trace(out, trace)
    rows = {name: described(array) for name, array in trace.arrays.items()}
    if common.json:
        sees = trace.tokens.startswith("image")
        ids = {} if sees else {"token_ids": [int(token) for token in trace.tokens.split(",")]}
        show.value({"model": model, "backend": trace.target, **ids, "layers": rows})
        return
    table = [(name, r["dtype"], r["shape"], r["digest"]) for name, r in rows.items()]
    show.table(("layer", "dtype", "shape", "digest"), table)


def _file(given: str | list[int]) -> str:
    if isinstance(given, str):
        return given
    raise click.UsageError("this model takes images, not --tokens; give an image file")
