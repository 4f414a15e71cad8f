"""What the commands that take a model share: its argument, its dtype option, and loading it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from ptir.cli.shared import Shared
    from ptir.runtime import Model

model_argument: Callable[[Any], Any] = click.argument("model")
dtype_option: Callable[[Any], Any] = click.option(
    "--dtype",
    type=click.Choice(["f32", "bf16", "f16"]),
    default="f32",
    show_default=True,
    help="Storage type of the weights on the device.",
)


quant_option: Callable[[Any], Any] = click.option(
    "--quant",
    type=click.Choice(["int8", "int4"]),
    help="Quantize the weights while they load, groups of 32 rounded to nearest.",
)


fast_option: Callable[[Any], Any] = click.option(
    "--fast",
    is_flag=True,
    help="Round activations (to bf16, or to int8 with --quant) for dot instructions.",
)


def open_model(
    shared: Shared, model: str, dtype: str, quant: str | None = None, fast: bool = False
) -> Model:
    """Load ``model`` on the target of ``--backend``; ``--seed`` also seeds random weights."""
    from ptir.cli.shared import open_target
    from ptir.runtime import load_model

    return load_model(
        model,
        backend=open_target(shared),
        dtype=dtype,
        quant=quant,
        fast=fast,
        seed=shared.seed or 0,
    )


def prompt_text(argument: str | None, option: str | None) -> str:
    """The prompt from the argument or ``-p``; ``-p -`` reads stdin. Raises a usage error."""
    if (argument is None) == (option is None):
        raise click.UsageError(
            'give the prompt once: as an argument or with -p TEXT ("-p -": stdin)'
        )
    text = argument if argument is not None else option
    return _stdin() if option == "-" else str(text)


def _stdin() -> str:
    try:
        return sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise click.UsageError(f"stdin is not UTF-8 text: {error}") from error
