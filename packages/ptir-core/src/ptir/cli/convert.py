"""``ptir convert``: write a model as a folder, one safetensors file, GGUF, or a file of gpt.rs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from ptir.cli import show
from ptir.cli.common import CommonOptions, common_options
from ptir.cli.model import FLOATS, model_argument

if TYPE_CHECKING:
    from ptir.checkpoint import Checkpoint

FOLDER: Final = "folder"
FORMATS: Final = {FOLDER: "", "safetensors": ".safetensors", "gguf": ".gguf", "gptrs": ".gptrs"}
"""What is written, and the end of names that says so."""


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
    from ptir.runtime.specs import resolve
    from ptir.types import dtype as dtype_named

    suffixes = {suffix: name for name, suffix in FORMATS.items() if suffix}
    save = _saves(format or suffixes.get(out.suffix.lower(), FOLDER))
    checkpoint = resolve(model, seed=common.seed or 0)
    save(checkpoint, out, dtype=dtype_named(dtype) if dtype else None, overwrite=overwrite)
    if common.json:
        show.value({"path": str(out), "tensors": len(checkpoint.source.names())})
    else:
        show.note(f"wrote {out}")


def _saves(format: str) -> Callable[..., Any]:
    """What writes a model in a format."""
    from ptir.checkpoint import save_folder, save_single_file
    from ptir.checkpoint.gptrs.saving import save_gptrs
    from ptir.runtime.gguf_file import save_gguf, with_files

    if format == "gguf":
        return save_gguf
    save = {FOLDER: save_folder, "safetensors": save_single_file, "gptrs": save_gptrs}[format]

    def saved(checkpoint: Checkpoint, out: Path, **how: Any) -> Path:
        return save(with_files(checkpoint), out, **how)

    return saved
