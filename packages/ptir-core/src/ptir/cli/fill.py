"""``ptir fill``: the likeliest words in the places of masked ones."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from ptir.cli import show
from ptir.cli.common import CommonOptions, common_options, session
from ptir.cli.model import Formats, format_options, model_argument, open_model
from ptir.cli.texts import given_texts, measured, shown, summary, text_options

if TYPE_CHECKING:
    from ptir.runtime import TextModel


@click.command()
@model_argument
@click.argument("texts", nargs=-1)
@text_options
@click.option("--top", type=click.IntRange(1), default=5, show_default=True)
@format_options
@common_options
def command(
    common: CommonOptions,
    model: str,
    texts: tuple[str, ...],
    files: tuple[Path, ...],
    truncate: bool,
    top: int,
    formats: Formats,
) -> None:
    """Print the likeliest words for each masked one of TEXTS by MODEL; - is the lines of stdin.

    A masked word is written as the model's tokenizer has it: [MASK], or <mask>.
    """
    given = given_texts(texts, files)
    with session(common):
        loaded = cast("TextModel", open_model(common, model, formats, needs="fill"))
        with measured(loaded) as run:
            found = loaded.fill(given, top=top, truncate=truncate)
    if common.json:
        rows = [
            {"text": text, "masks": [[asdict(one) for one in words] for words in masks]}
            for text, masks in zip(given, found, strict=True)
        ]
        show.value({"texts": rows, "stats": run.stats, "formats": formats.chosen(loaded)})
        return
    lines = [
        (shown(text), place, f"{one.probability:.2%}", one.text.strip() or repr(one.text))
        for text, masks in zip(given, found, strict=True)
        for place, words in enumerate(masks, 1)
        for one in words
    ]
    several = len(given) > 1, any(len(masks) > 1 for masks in found)
    kept = [n for n, wanted in enumerate((*several, True, True)) if wanted]
    heads = ("text", "mask", "probability", "word")
    show.table(tuple(heads[n] for n in kept), [tuple(line[n] for n in kept) for line in lines])
    summary(len(given), "text", run.stats)
