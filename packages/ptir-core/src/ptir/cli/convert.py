"""``ptir convert``: write a model as a Hugging Face folder, one safetensors file or a GGUF file."""

from __future__ import annotations

from pathlib import Path

import click

from ptir.cli import show
from ptir.cli.common import CommonOptions, common_options
from ptir.cli.model import FLOATS, model_argument


@click.command()
@model_argument
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--dtype", type=FLOATS, help="Convert floats to this.")
@click.option("--overwrite", is_flag=True, help="Replace what is there.")
@common_options
def command(
    common: CommonOptions, model: str, out: Path, dtype: str | None, overwrite: bool
) -> None:
    """Write MODEL to OUT: one file when OUT ends in .safetensors or .gguf, else a folder."""
    from ptir.checkpoint import save_folder, save_single_file
    from ptir.runtime.gguf_file import save_gguf, with_files
    from ptir.runtime.specs import resolve
    from ptir.types import dtype as dtype_named

    checkpoint = resolve(model, seed=common.seed or 0)
    wanted = dtype_named(dtype) if dtype else None
    if out.suffix == ".gguf":
        save_gguf(checkpoint, out, dtype=wanted, overwrite=overwrite)
    else:
        save = save_single_file if out.suffix == ".safetensors" else save_folder
        save(with_files(checkpoint), out, dtype=wanted, overwrite=overwrite)
    if common.json:
        show.value({"path": str(out), "tensors": len(checkpoint.source.names())})
    else:
        show.note(f"wrote {out}")
