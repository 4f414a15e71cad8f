"""``ptir embed``: a vector for each text, or image, of a model that gives them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import click

from ptir.cli import show
from ptir.cli.common import CommonOptions, common_options, session
from ptir.cli.model import Formats, format_options, model_argument, open_model
from ptir.cli.texts import given_texts, measured, summary, text_options
from ptir.errors import UsageError

if TYPE_CHECKING:
    from ptir.runtime import TextModel

SUFFIXES: Final = (".npy", ".safetensors")
"""What ``--out`` writes."""


@click.command()
@model_argument
@click.argument("inputs", nargs=-1)
@text_options
@click.option("--prompt", metavar="NAME", help="The model's prompt of this name before each text.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the vectors to a .npy or .safetensors file instead of printing them.",
)
@format_options
@common_options
def command(
    common: CommonOptions,
    model: str,
    inputs: tuple[str, ...],
    files: tuple[Path, ...],
    truncate: bool,
    prompt: str | None,
    out: Path | None,
    formats: Formats,
) -> None:
    """Print the embedding of each of INPUTS by MODEL, a line of numbers each.

    INPUTS are texts, or - for the lines of stdin; of a model of images they are image files.
    """
    if out is not None and out.suffix not in SUFFIXES:
        raise click.UsageError(f"--out {out}: the name must end in {' or '.join(SUFFIXES)}")
    with session(common):
        loaded = open_model(common, model, formats, needs="embed")
        if loaded.reads_texts:
            names = given_texts(inputs, files)
            reads = cast("TextModel", loaded)
            if not reads.says_pooling and not model.startswith("random:"):
                show.note(
                    "the model does not say how a text becomes one vector (modules.json); it is the"
                    " mean of its tokens' vectors"
                )
            with measured(loaded) as run:
                found = reads.embed(names, prompt=prompt, truncate=truncate)
        else:
            if files or truncate or prompt is not None:
                raise UsageError(f"model {model!r} takes images; give image files alone")
            if not inputs or inputs.count("-") > 1:
                raise click.UsageError("give image files; - reads one from stdin")
            names = [*inputs]
            images = [sys.stdin.buffer.read() if one == "-" else one for one in inputs]
            with measured(loaded) as run:
                found = loaded.embed(images)
        if out is not None:
            _write(out, found)
    kind = "text" if loaded.reads_texts else "image"
    if common.json:
        rows = [{kind: name} for name in names]
        if out is None:
            rows = [
                {**row, "embedding": one} for row, one in zip(rows, found.tolist(), strict=True)
            ]
        value = {f"{kind}s": rows, "shape": [*found.shape], "stats": run.stats}
        show.value({**value, "formats": formats.chosen(loaded)})
        return
    if out is None:
        for row in found.tolist():
            click.echo(" ".join(f"{number:.6g}" for number in row))
    summary(len(names), kind, run.stats)


def _write(path: Path, found: Any) -> None:
    """Write the file whole, or raise ``UsageError`` and leave what is there."""
    import numpy as np

    from ptir.checkpoint import save_archive

    if path.suffix == ".safetensors":
        save_archive(path, {"embeddings": found})
        return
    part = path.with_name(f".{path.name}.part")
    try:
        with part.open("wb") as file:
            np.save(file, found)
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise UsageError(f"{path}: cannot be written: {error.strerror or error}") from error
