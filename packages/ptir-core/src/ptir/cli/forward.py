"""``ptir forward``: the outputs of a model or of a program, described or written to an archive."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from ptir.cli import show
from ptir.cli.common import CommonOptions, common_options, session
from ptir.cli.model import (
    Formats,
    format_options,
    given_input,
    input_options,
    model_argument,
    open_model,
)

if TYPE_CHECKING:
    from ptir.ir.program import Program
    from ptir.ops.policies import Overrides

PROGRAMS: Final = (".ptir", ".json")


@click.command()
@model_argument
@input_options
@click.option(
    "--input",
    "inputs",
    metavar="ARCHIVE",
    multiple=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="Arrays for a program's ports, by name. Repeatable; the last one wins.",
)
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="Write an archive.")
@format_options
@common_options
def command(
    common: CommonOptions,
    model: str,
    prompt: str | None,
    prompt_option: str | None,
    tokens: str | None,
    inputs: tuple[Path, ...],
    out: Path | None,
    formats: Formats,
) -> None:
    """Compute the logits of every position of a text with MODEL, or what an encoder gives.

    MODEL may also be a program (FILE.ptir, or a .json dump): its outputs on the arrays of --input
    are output0, output1 and so on. Of a program's folder in --dump-dir the arrays are those that
    --dump-inputs kept, where --input names no others.
    """
    texts = [text for text in (prompt, prompt_option, tokens) if text is not None]
    if model.endswith(PROGRAMS) or (Path(model).is_dir() and _is_dump(Path(model))):
        if texts:
            raise click.UsageError("a program takes no text; give its arrays with --input")
        _report(common, out, _run_program(common, Path(model), inputs), {"program": model}, {})
        return
    if inputs:
        raise click.UsageError("--input is for programs (.ptir); a model takes a text or --tokens")
    given = given_input(prompt, prompt_option, tokens)
    with session(common):
        loaded = open_model(common, model, formats, needs="forward")
        ids = loaded.encode(given)
        name = "logits" if "generate" in loaded.capabilities else "output"
        outputs = {name: loaded.forward(ids)}
    metadata = {"model": model, "token_ids": ",".join(map(str, ids))}
    _report(common, out, outputs, metadata, {"token_ids": ids})


def _run_program(common: CommonOptions, path: Path, inputs: tuple[Path, ...]) -> dict[str, Any]:
    from ptir.capture.run import run_program
    from ptir.checkpoint import load_archive
    from ptir.cli.common import open_target
    from ptir.ops.overriding import in_force

    with session(common):
        program, arrays, asked = _dumped(path) if path.is_dir() else (read_program(path), {}, ())
        for file in inputs:
            arrays |= load_archive(file).arrays
        if path.is_dir() and program.ports and not arrays:
            raise click.UsageError(
                f"{path} keeps no arrays: dump again with --dump-inputs, or give them with --input"
            )
        with in_force(asked):
            found = run_program(program, arrays, open_target(common))
    return {f"output{number}": array for number, array in enumerate(found)}


def _is_dump(path: Path) -> bool:
    from ptir.trace import is_dump

    return is_dump(path)


def _dumped(folder: Path) -> tuple[Program, dict[str, Any], Overrides]:
    """The program of a dump's folder, the arrays that were kept, and what was in force."""
    from ptir.trace import read_dump

    found = read_dump(folder)
    return found.program, dict(found.arrays), found.overrides


def read_program(path: Path) -> Program:
    """The verified program of a dump; raises ``VerifyError`` or ``CheckpointError``."""
    from ptir.checkpoint.json_text import read_json_object, read_text
    from ptir.errors import VerifyError
    from ptir.ops.reading import from_json, parse

    try:
        if path.name.endswith(".json"):
            return from_json(read_json_object(path))
        return parse(read_text(path))
    except VerifyError as error:
        raise VerifyError(f"{path}: {error}") from None


def _report(
    common: CommonOptions,
    out: Path | None,
    outputs: dict[str, Any],
    metadata: dict[str, str],
    more: dict[str, Any],
) -> None:
    from ptir.checkpoint import save_archive

    if out is not None:
        save_archive(out, outputs, metadata)
    rows = {name: described(array) for name, array in outputs.items()}
    if common.json:
        show.value({"outputs": rows, **more})
        return
    table = [(name, r["dtype"], r["shape"], r["digest"]) for name, r in rows.items()]
    show.table(("output", "dtype", "shape", "digest"), table)


def described(array: Any) -> dict[str, Any]:
    """An output as ``--json`` prints it: shape, dtype and a digest of its bytes."""
    digest = hashlib.blake2b(array.tobytes(), digest_size=16).hexdigest()
    return {"shape": list(array.shape), "dtype": str(array.dtype), "digest": digest}
