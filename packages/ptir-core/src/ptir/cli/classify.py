"""``ptir classify``: the likeliest classes of texts, of their tokens, or of images."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import click

from ptir.cli import show
from ptir.cli.common import CommonOptions, common_options, session
from ptir.cli.images import SHOWN, Images, show_loaded
from ptir.cli.model import Formats, format_options, model_argument, open_model
from ptir.cli.texts import given_texts, measured, shown, summary, text_options
from ptir.errors import UsageError

if TYPE_CHECKING:
    from ptir.runtime import TextModel
    from ptir.runtime.image_model import ImageModel

TOKENS: Final = "classify_tokens"


@click.command()
@model_argument
@click.argument("inputs", nargs=-1)
@text_options
@click.option("--top-k", type=click.IntRange(1), default=SHOWN, show_default=True)
@click.option(
    "--label",
    "candidates",
    multiple=True,
    metavar="TEXT",
    help="What an image may show, for a model of images and texts. Repeatable.",
)
@click.option(
    "--labels",
    "labels_file",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Names of the classes, one a line, instead of the model's.",
)
@format_options
@common_options
def command(
    common: CommonOptions,
    model: str,
    inputs: tuple[str, ...],
    files: tuple[Path, ...],
    truncate: bool,
    top_k: int,
    candidates: tuple[str, ...],
    labels_file: Path | None,
    formats: Formats,
) -> None:
    """Print the likeliest classes of each of INPUTS by MODEL.

    INPUTS are texts, or - for the lines of stdin; of a model of images they are image files. A
    model that classifies tokens prints one class for each.
    """
    with session(common):
        loaded = open_model(common, model, formats, needs="trace")
        of_tokens = TOKENS in loaded.capabilities
        loaded.require(TOKENS if of_tokens else "classify")
        if not loaded.reads_texts:
            if files or truncate:
                raise UsageError(f"model {model!r} takes images; give image files alone")
            if not inputs:
                raise click.UsageError("give image files; - reads one from stdin")
            given = Images(inputs, candidates, labels_file)
            finish = show_loaded(common, cast("ImageModel", loaded), formats, given, top_k)
        else:
            if candidates:
                raise UsageError(f"model {model!r} has classes of its own; leave --label out")
            texts = given_texts(inputs, files)
            reads = cast("TextModel", loaded)
            if labels_file is not None:
                reads.name_classes(labels_file)
            with measured(loaded) as run:
                rows = _classified(reads, texts, top_k, truncate, of_tokens)
    if not loaded.reads_texts:
        finish()
        return
    if common.json:
        kind = "tokens" if of_tokens else "labels"
        found = [
            {"text": text, kind: [asdict(one) for one in row]}
            for text, row in zip(texts, rows, strict=True)
        ]
        show.value({"texts": found, "stats": run.stats, "formats": formats.chosen(loaded)})
        return
    _print(texts, rows, of_tokens)
    summary(len(texts), "text", run.stats)


def _classified(
    model: TextModel, texts: list[str], top_k: int, truncate: bool, of_tokens: bool
) -> list[tuple[Any, ...]]:
    if of_tokens:
        return [*model.classify_tokens(texts, truncate=truncate)]
    return [*model.classify(texts, top_k=top_k, truncate=truncate)]


def _print(texts: list[str], rows: list[tuple[Any, ...]], of_tokens: bool) -> None:
    several = len(texts) > 1
    lines = [
        (
            *([shown(text)] if several else []),
            *([one.text] if of_tokens else []),
            f"{one.probability:.2%}",
            one.name,
        )
        for text, found in zip(texts, rows, strict=True)
        for one in found
    ]
    heads = (*(["text"] if several else []), *(["token"] if of_tokens else []))
    show.table((*heads, "probability", "class"), lines)
