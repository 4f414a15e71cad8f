"""``ptir convert``: write a model as a folder, one safetensors file, GGUF, or a file of gpt.rs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from ptir import units
from ptir.cli import show
from ptir.cli.common import CommonOptions, common_options, showing_only
from ptir.cli.model import FLOATS, model_argument
from ptir.cli.progress import progress
from ptir.errors import UsageError

if TYPE_CHECKING:
    from ptir.checkpoint import Checkpoint

FOLDER: Final = "folder"
FORMATS: Final = {FOLDER: "", "safetensors": ".safetensors", "gguf": ".gguf", "gptrs": ".gptrs"}
"""What is written, and the end of names that says so."""


@showing_only("json", "seed")
@click.command()
@model_argument
@click.argument("out", type=click.Path(path_type=Path))
@click.option(
    "--to", "format", type=click.Choice(list(FORMATS)), help="Default: by the end of OUT's name."
)
@click.option("--dtype", type=FLOATS, help="Convert floats to this.")
@click.option("--overwrite", is_flag=True, help="Replace what is there.")
@common_options
def command(
    common: CommonOptions,
    model: str,
    out: Path,
    format: str | None,
    dtype: str | None,
    overwrite: bool,
) -> None:
    """Write MODEL to OUT: a folder, or one file, named .safetensors, .gguf or .gptrs."""
    from ptir.checkpoint import foreign
    from ptir.runtime.specs import resolve
    from ptir.types import dtype as dtype_named

    suffixes = {suffix: name for name, suffix in FORMATS.items() if suffix}
    if format is None and out.suffix.lower() not in suffixes and foreign.told(out.name):
        raise UsageError(
            f"{out}: files that end in {out.suffix} are not written; end it in"
            f" {', '.join(suffixes)}, or say --to folder for a folder of that name"
        )
    save = _saves(format or suffixes.get(out.suffix.lower(), FOLDER))
    checkpoint = resolve(model, seed=common.seed or 0)
    save(checkpoint, out, dtype=dtype_named(dtype) if dtype else None, overwrite=overwrite)
    if dtype and out.is_file() and (stays := _staying(checkpoint, out)):
        show.note(
            f"{', '.join(stays)} stay as they are stored, --dtype is for floats; for a file of"
            " floats convert to a folder first, and that to a file"
        )
    nbytes = sum(file.stat().st_size for file in _written(out))
    if common.json:
        tensors = len(checkpoint.source.names())
        show.value({"path": str(out), "tensors": tensors, "bytes": nbytes})
    else:
        show.note(f"wrote {out}: {units.size(nbytes)}")


def _staying(checkpoint: Checkpoint, out: Path) -> list[str]:
    """The formats of few bits that a file which was written of a checkpoint has too."""
    from ptir.checkpoint.gguf import begins_as_gguf
    from ptir.params.source import stored_formats

    if not begins_as_gguf(out):
        return []
    return sorted({format.name for format in stored_formats(checkpoint.source).values()})


def _written(out: Path) -> list[Path]:
    """The files of a model that was written."""
    return [file for file in out.rglob("*") if file.is_file()] if out.is_dir() else [out]


def _saves(format: str) -> Callable[..., Any]:
    """What writes a model in a format."""
    from ptir.checkpoint import save_folder, save_single_file
    from ptir.checkpoint.gptrs.saving import save_gptrs
    from ptir.runtime.gguf_file import save_gguf
    from ptir.runtime.published import with_files

    if format == "gguf":

        def with_bar(*given: Any, **how: Any) -> Path:
            with progress("weights") as report:
                return save_gguf(*given, progress=report, **how)

        return with_bar
    save = {FOLDER: save_folder, "safetensors": save_single_file, "gptrs": save_gptrs}[format]

    def saved(checkpoint: Checkpoint, out: Path, **how: Any) -> Path:
        return save(with_files(checkpoint), out, **how)

    return saved
