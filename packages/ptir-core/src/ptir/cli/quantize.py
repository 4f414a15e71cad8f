"""``ptir quantize``: write a model's weights in fewer bits."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from ptir.cli import show, units
from ptir.cli.common import CommonOptions, common_options
from ptir.cli.model import model_argument
from ptir.cli.progress import progress
from ptir.errors import UsageError, unknown_name

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ptir.checkpoint.gguf import GgufTensor

METHODS: Final = ("rtn",)
"""How weights may be rounded: to nearest, group by group."""


@click.command()
@model_argument
@click.argument("out", type=click.Path(path_type=Path))
@click.option(
    "--format",
    "format_name",
    metavar="NAME",
    required=True,
    help="q8_0, q4_k_m and so on; another name lists them all.",
)
@click.option(
    "--method",
    type=click.Choice(METHODS),
    default=METHODS[0],
    show_default=True,
    help="How weights are rounded: to nearest.",
)
@click.option("--overwrite", is_flag=True, help="Replace what is there.")
@common_options
def command(
    common: CommonOptions, model: str, out: Path, format_name: str, method: str, overwrite: bool
) -> None:
    """Write MODEL to OUT with its matrices in few bits.

    OUT is a .gguf file, or with int8 and int4 a folder of compressed-tensors.
    """
    from ptir.checkpoint.gguf import GgufFile
    from ptir.checkpoint.gguf.mixtures import MIXTURES
    from ptir.runtime.gguf_file import save_gguf
    from ptir.runtime.quantized_folder import save_quantized_folder
    from ptir.runtime.specs import resolve
    from ptir.weights import FORMATS, QUANTIZERS

    if format_name not in (*MIXTURES, *QUANTIZERS):
        raise UsageError(unknown_name("format", format_name, (*MIXTURES, *QUANTIZERS)))
    as_file = format_name in MIXTURES
    if as_file != (out.suffix == ".gguf"):
        what = "one of GGUF files: call it NAME.gguf" if as_file else "one of folders: name one"
        raise UsageError(f"{out}: format {format_name!r} is {what}")
    checkpoint = resolve(model, seed=common.seed or 0)
    if as_file:
        with progress("weights") as report:
            mixture = MIXTURES[format_name]
            save_gguf(checkpoint, out, mixture=mixture, overwrite=overwrite, progress=report)
        written = _summary(GgufFile(out).tensors.values())
    else:
        save_quantized_folder(checkpoint, out, FORMATS[format_name], overwrite=overwrite)
        written = _folder_summary(out)
    if common.json:
        show.value({"path": str(out), "format": format_name, "method": method, **written})
        return
    counts = ", ".join(f"{count} {name}" for name, count in written["types"].items())
    size, bits = units.size(written["bytes"]), written["bits_per_weight"]
    show.note(f"wrote {out}: {counts}; {size} of tensors, {bits:.2f} bits a weight")


def _summary(tensors: Iterable[GgufTensor]) -> dict[str, Any]:
    """How many tensors have which type, their bytes, and what a weight takes."""
    import math

    rows = [(one.type.name, one.nbytes, math.prod(one.shape)) for one in tensors]
    return _counted(rows)


def _folder_summary(folder: Path) -> dict[str, Any]:
    """The same of a folder of quantized weights."""
    from ptir.checkpoint import open_checkpoint
    from ptir.params import SizedSource, stored_formats

    source = open_checkpoint(folder).source
    assert isinstance(source, SizedSource)
    formats = stored_formats(source)
    types = {name: source.type(name) for name in source.names()}
    names = {n: formats[n].name if n in formats else one.dtype.name for n, one in types.items()}
    return _counted([(names[n], source.stored_bytes(n), one.size) for n, one in types.items()])


def _counted(rows: list[tuple[str, int, int]]) -> dict[str, Any]:
    """Of types, bytes and weights of tensors."""
    names = [name for name, _, _ in rows]
    nbytes = sum(size for _, size, _ in rows)
    return {
        "types": {name: names.count(name) for name in dict.fromkeys(names)},
        "tensors": len(rows),
        "bytes": nbytes,
        "bits_per_weight": 8 * nbytes / sum(weights for _, _, weights in rows),
    }
