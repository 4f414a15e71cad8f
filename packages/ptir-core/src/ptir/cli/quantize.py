"""``ptir quantize``: write a model's weights in fewer bits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from ptir import units
from ptir.checkpoint.gguf.mixtures import MIXTURES, Replaced
from ptir.cli import show
from ptir.cli.common import CommonOptions, common_options, open_target, session
from ptir.cli.model import FLOATS, model_argument, window_option
from ptir.cli.progress import progress
from ptir.errors import UsageError, unknown_name
from ptir.weights import FORMATS, QUANTIZERS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ptir.checkpoint.gguf import GgufTensor
    from ptir.runtime.calibration import Calibrated
    from ptir.runtime.gguf_file import Calibrate

ROUNDING: Final = "rtn"
METHODS: Final = (ROUNDING, "gptq", "awq")
"""How weights may be quantized: to nearest, or for what they meet in a text."""


@click.command()
@model_argument
@click.argument("out", type=click.Path(path_type=Path))
@click.option(
    "--format",
    "format_name",
    metavar="NAME",
    required=True,
    help=f"For a .gguf file one of {', '.join(MIXTURES)}; for a folder {' or '.join(QUANTIZERS)}.",
)
@click.option(
    "--method",
    type=click.Choice(METHODS),
    default=METHODS[0],
    show_default=True,
    help="How weights are quantized: rounded to nearest, or by GPTQ or AWQ for a text.",
)
@click.option(
    "--calibration",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE",
    help="The text for gptq and awq: UTF-8, or .jsonl with a text or token ids in each line.",
)
@click.option(
    "--samples",
    type=click.IntRange(1),
    metavar="N",
    help="Windows of the text that are read, drawn with --seed; default: 128.",
)
@window_option
@click.option(
    "--act-order/--no-act-order",
    default=None,
    help="gptq: begin with the inputs that matter most, with scales of the first weights;"
    " default: it does.",
)
@click.option("--overwrite", is_flag=True, help="Replace what is there.")
@common_options
def command(
    common: CommonOptions,
    model: str,
    out: Path,
    format_name: str,
    method: str,
    overwrite: bool,
    **calibrating: Any,
) -> None:
    """Write MODEL to OUT with its matrices in few bits.

    OUT is a .gguf file, or with int8 and int4 a folder of compressed-tensors.
    """
    from ptir.checkpoint.gguf import GgufFile
    from ptir.runtime.gguf_file import save_gguf
    from ptir.runtime.quantized_folder import save_quantized_folder
    from ptir.runtime.specs import resolve

    format_name = format_name.lower()
    if format_name in FLOATS.choices:
        raise UsageError(
            f"format {format_name!r} is no quantization; write floats with `ptir convert {model}"
            f" {out} --dtype {format_name}`"
        )
    if format_name not in (*MIXTURES, *QUANTIZERS):
        raise UsageError(unknown_name("format", format_name, (*MIXTURES, *QUANTIZERS)))
    as_file = format_name in MIXTURES
    if as_file != (out.suffix.lower() == ".gguf"):
        what = "one of GGUF files: call it NAME.gguf" if as_file else "one of folders: name one"
        raise UsageError(f"{out}: format {format_name!r} is {what}")
    found: list[Calibrated] = []
    replaced: list[Replaced] = []
    with _calibrating(common, method, found, calibrating) as calibrate:
        checkpoint = resolve(model, seed=common.seed or 0)
        if as_file:
            with progress("weights") as report:
                save_gguf(
                    checkpoint,
                    out,
                    mixture=MIXTURES[format_name],
                    calibrate=calibrate,
                    overwrite=overwrite,
                    progress=report,
                    told=replaced.extend,
                )
            written = _summary(GgufFile(out).tensors.values())
            written["replaced"] = _grouped(replaced)
        else:
            format = FORMATS[format_name]
            save_quantized_folder(checkpoint, out, format, calibrate=calibrate, overwrite=overwrite)
            written = _folder_summary(out)
    if common.json:
        more = {"calibration": found[0].summary()} if found else {}
        show.value({"path": str(out), "format": format_name, "method": method, **written, **more})
        return
    for line in found[0].said() if found else ():
        show.note(line)
    for group in written.get("replaced", ()):
        show.note(_replacing(group))
    counts = ", ".join(f"{count} {name}" for name, count in written["types"].items())
    size, bits = units.size(written["bytes"]), written["bits_per_weight"]
    show.note(f"wrote {out}: {counts}; {size} of tensors, {bits:.2f} bits a weight")


@contextmanager
def _calibrating(
    common: CommonOptions, method: str, found: list[Calibrated], given: Mapping[str, Any]
) -> Iterator[Calibrate | None]:
    """What calibrates as the options say, and puts what comes of it into ``found``.

    It is nothing where weights are rounded to nearest. Raises ``UsageError``.
    """
    said = {name: value for name, value in given.items() if value is not None}
    if method == ROUNDING:
        for name in said:
            option = f"--{name.replace('_', '-')}"
            raise UsageError(f"{option} is for --method gptq and awq; {ROUNDING} reads no text")
        yield None
        return
    if "calibration" not in said:
        raise UsageError(f"--method {method} needs a text: give --calibration FILE")
    if method != "gptq" and "act_order" in said:
        raise UsageError(f"--act-order is for --method gptq; {method} has no order of inputs")
    from ptir.runtime.calibration import Calibration, calibrate

    file = said.pop("calibration")
    asked = Calibration(method, file, seed=common.seed or 0, **said)
    with session(common):
        target = open_target(common)

        def calibrated(*arguments: Any) -> Calibrated:
            with progress("calibration") as report:
                found.append(calibrate(*arguments, asked=asked, target=target, progress=report))
            return found[0]

        yield calibrated


def _summary(tensors: Iterable[GgufTensor]) -> dict[str, Any]:
    """How many tensors have which type, their bytes, and what a weight takes."""
    import math

    rows = [(one.type.name, one.nbytes, math.prod(one.shape)) for one in tensors]
    return _counted(rows)


def _grouped(replaced: Iterable[Replaced]) -> list[dict[str, Any]]:
    """What got another type than its format's: the same types and widths together."""
    groups: dict[tuple[str, str, int], list[str]] = {}
    for one in replaced:
        groups.setdefault((one.wanted, one.type, one.inputs), []).append(one.tensor)
    return [
        {"wanted": wanted, "type": type, "inputs": inputs, "tensors": tensors}
        for (wanted, type, inputs), tensors in groups.items()
    ]


def _replacing(group: Mapping[str, Any]) -> str:
    """A line for matrices that got another type, and why."""
    wanted, inputs, (first, *others) = group["wanted"], group["inputs"], group["tensors"]
    which = f"{1 + len(others)} matrices ({first}, ...) are" if others else f"{first} is"
    return (
        f"{which} {group['type']} and not {wanted}: rows of {inputs} weights are no whole blocks of"
        f" {FORMATS[wanted].block}"
    )


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
