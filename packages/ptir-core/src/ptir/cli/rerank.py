"""``ptir rerank``: documents by how well they answer a query."""

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
@click.argument("query")
@click.argument("documents", nargs=-1)
@text_options
@click.option("--top-k", type=click.IntRange(1), help="How many are shown; default: all.")
@format_options
@common_options
def command(
    common: CommonOptions,
    model: str,
    query: str,
    documents: tuple[str, ...],
    files: tuple[Path, ...],
    truncate: bool,
    top_k: int | None,
    formats: Formats,
) -> None:
    """Print DOCUMENTS by how well they answer QUERY, the best first; - is the lines of stdin.

    A cross-encoder (a classifier with one score) reads each together with the query. Another
    encoder embeds them, and the score is a cosine.
    """
    texts = given_texts(documents, files)
    with session(common):
        loaded = cast("TextModel", open_model(common, model, formats, needs="rerank"))
        with measured(loaded) as run:
            found = loaded.rerank(query, texts, top_k=top_k, truncate=truncate)
    by = "cross-encoder" if loaded.module.classes else "cosine"
    if common.json:
        rows = [asdict(one) for one in found]
        value = {"query": query, "by": by, "documents": rows, "stats": run.stats}
        show.value({**value, "formats": formats.chosen(loaded)})
        return
    lines = [(f"{one.score:.4f}", one.index, shown(one.document)) for one in found]
    show.table(("score", "number", "document"), lines)
    summary(len(texts), "document", run.stats)
