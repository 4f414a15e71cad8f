"""``ptir eval``: how well a model predicts a text."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from ptir.cli import show
from ptir.cli.common import CommonOptions, common_options, session
from ptir.cli.model import (
    Formats,
    format_options,
    model_argument,
    open_model,
    streaming,
    window_option,
)
from ptir.cli.progress import progress
from ptir.errors import UsageError

if TYPE_CHECKING:
    from ptir.runtime.likelihood import Perplexity

WORKLOADS: Final = ("perplexity",)
"""What may be measured."""


@click.command()
@model_argument
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option(
    "--workload",
    type=click.Choice(WORKLOADS),
    default=WORKLOADS[0],
    show_default=True,
    help="What to measure.",
)
@window_option
@click.option(
    "--stride",
    type=click.IntRange(1),
    metavar="N",
    help="Begin windows N tokens apart and count every token once; default: windows side by side,"
    " of which second halves count.",
)
@format_options
@common_options
def command(
    common: CommonOptions,
    model: str,
    file: Path,
    workload: str,
    window: int | None,
    stride: int | None,
    formats: Formats,
) -> None:
    """Measure the perplexity of the text in FILE under MODEL."""
    from ptir.runtime.likelihood import perplexity

    text = _text(file)
    with session(common):
        loaded = open_model(common, model, formats)
        with progress("windows", streaming(loaded)) as report:
            found = perplexity(loaded, text, window=window, stride=stride, progress=report)
    if common.json:
        show.value(
            {
                "workload": workload,
                "model": model,
                "file": str(file),
                "backend": loaded.target.backend.name,
                "device": loaded.target.device.name,
                **formats.given(),
                **_numbers(found),
            }
        )
        return
    rows = [(model, formats.weights(loaded), *_cells(found))]
    show.table(("model", "weights", "tokens", "nll", "perplexity", "tok/s"), rows)


def _text(file: Path) -> str:
    """The text of a file; raises ``UsageError`` for an empty one and for what is not UTF-8."""
    try:
        text = file.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{file}: is not UTF-8 text: {error}; convert it to UTF-8") from error
    if not text:
        raise UsageError(f"{file}: is empty; a text of two tokens at least is needed")
    return text


def _numbers(found: Perplexity) -> dict[str, Any]:
    """The fields of a measurement for ``--json``, where what is too large for a float is null."""
    derived = ("perplexity", "perplexity_error", "tokens_per_second")
    every = {**asdict(found), **{name: getattr(found, name) for name in derived}}
    return {k: None if isinstance(v, float) and math.isinf(v) else v for k, v in every.items()}


def _cells(found: Perplexity) -> tuple[str, ...]:
    nll, value = f"{found.nll:.4f}", f"{found.perplexity:.4f}"
    if found.standard_error is not None:
        nll, value = (
            f"{nll} ± {found.standard_error:.4f}",
            f"{value} ± {found.perplexity_error:.4f}",
        )
    counted = f"{found.counted} of {found.text_tokens}"
    return counted, nll, value, f"{found.tokens_per_second:.1f}"
