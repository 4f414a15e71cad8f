"""``ptir quantize``: write a model's weights in fewer bits."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from ptir.cli import show, units
from ptir.cli.common import CommonOptions, common_options
from ptir.cli.model import model_argument
from ptir.cli.progress import progress
from ptir.errors import UsageError

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
    """Write MODEL to OUT, a .gguf file, with its matrices in few bits."""
    from ptir.checkpoint.gguf import GgufFile
    from ptir.checkpoint.gguf.mixtures import mixture
    from ptir.runtime.gguf_file import save_gguf
    from ptir.runtime.specs import resolve

    wanted = mixture(format_name)
    if out.suffix != ".gguf":
        raise UsageError(f"{out}: format {format_name!r} is one of GGUF files: call it NAME.gguf")
    checkpoint = resolve(model, seed=common.seed or 0)
    with progress("weights") as report:
        save_gguf(checkpoint, out, mixture=wanted, overwrite=overwrite, progress=report)
    written = _summary(GgufFile(out).tensors.values())
    if common.json:
        show.value({"path": str(out), "format": format_name, "method": method, **written})
        return
    counts = ", ".join(f"{count} {name}" for name, count in written["types"].items())
    size, bits = units.size(written["bytes"]), written["bits_per_weight"]
    show.note(f"wrote {out}: {counts}; {size} of tensors, {bits:.2f} bits a weight")


def _summary(tensors: Iterable[GgufTensor]) -> dict[str, Any]:
    """How many tensors have which type, their bytes, and what a weight takes."""
    import math

    held = list(tensors)
    nbytes, weights = sum(one.nbytes for one in held), sum(math.prod(one.shape) for one in held)
    names = [one.type.name for one in held]
    return {
        "types": {name: names.count(name) for name in dict.fromkeys(names)},
        "tensors": len(held),
        "bytes": nbytes,
        "bits_per_weight": 8 * nbytes / weights,
    }
