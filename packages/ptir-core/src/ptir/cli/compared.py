"""What ``verify``, ``bisect`` and ``diff`` share: options, the two sides, a row of a table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from ptir.cli.forward import PROGRAMS, read_program
from ptir.cli.model import Formats, given_input, open_model

if TYPE_CHECKING:
    from ptir.backend.contract import Target
    from ptir.cli.common import CommonOptions
    from ptir.debug import Difference, Subject
    from ptir.runtime import Model

COLUMNS: Final = ("differing", "relative", "ulps", "at", "got", "wanted", "")
"""What ``cells`` gives; the last column says what is wrong."""

TEXT: Final = "First Citizen: Before we proceed any further, hear me speak."
"""The prompt of a model with a tokenizer, where none is given; others get ids from 1."""

tolerance_option = click.option(
    "--tolerance",
    type=click.FloatRange(0),
    metavar="X",
    help="What floats may be off, relative to the largest; default: 1e-4 of f32, 1e-2 of f16, 5e-2"
    " of bf16.",
)
SUBJECT: Final = (
    click.option(
        "--against",
        metavar="NAME[:DEVICE]",
        default="ref",
        show_default=True,
        help="The backend that is believed; of `ptir verify` also torch.",
    ),
    click.option(
        "--step",
        type=click.Choice(["prefill", "decode"]),
        default="prefill",
        show_default=True,
        help="Of a model: the prompt, or the token behind it.",
    ),
    click.option(
        "--input",
        "inputs",
        metavar="ARCHIVE",
        multiple=True,
        type=click.Path(path_type=Path, dir_okay=False),
        help="Arrays for a program's ports, by name. Repeatable; the last one wins.",
    ),
    tolerance_option,
)


def subject_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command what ``opened`` takes, and ``tolerance``."""
    for option in reversed(SUBJECT):
        command = option(command)
    return command


def opened(
    common: CommonOptions,
    formats: Formats,
    model: str,
    texts: tuple[str | None, str | None, str | None],
    inputs: tuple[Path, ...],
    against: str,
    step: Any,
) -> Subject:
    """MODEL, or the program in a file, on the target of ``--backend`` and on ``against``.

    ``texts`` are prompt, ``-p`` and ``--tokens``. Raises usage errors.
    """
    from ptir.backend import registry
    from ptir.cli.common import open_target
    from ptir.debug import subject_of_model, subject_of_program

    reference = registry.get(against)
    if model.endswith(PROGRAMS):
        from ptir.checkpoint import load_archive

        if any(text is not None for text in texts):
            raise click.UsageError("a program takes no text; give its arrays with --input")
        program = read_program(Path(model))
        arrays = {n: array for file in inputs for n, array in load_archive(file).arrays.items()}
        target = open_target(common)
        _check_sides(target, reference)
        return subject_of_program(model, program, arrays, target, reference)
    if inputs:
        raise click.UsageError("--input is for programs (.ptir); a model takes a text or --tokens")
    if formats.device_memory:
        raise click.UsageError(
            "results are compared with all weights there: leave --device-memory out"
        )
    tested = open_model(common, model, formats)
    _check_sides(tested.target, reference)
    believed = open_model(common, model, formats, target=reference)
    tokens = believed.encode(_prompt(believed, texts))
    return subject_of_model(tested, believed, tokens, step)


def _prompt(model: Model, texts: tuple[str | None, str | None, str | None]) -> str | list[int]:
    if any(text is not None for text in texts):
        return given_input(*texts)
    return TEXT if model.tokenizer else [*range(1, 9)]


def _check_sides(tested: Target, reference: Target) -> None:
    if str(tested) == str(reference):
        raise click.UsageError(
            f"{tested} is compared with itself; name another backend with --backend or --against"
        )


def cells(found: Difference, right: bool) -> tuple[str, ...]:
    """A row of a table, behind its name."""
    share = f"{found.differing} of {found.elements}"
    numbers = f"{found.relative:.2g}", f"{found.ulps:.3g}"
    place = ",".join(map(str, found.place))
    values = (f"{found.got:.6g}", f"{found.wanted:.6g}") if found.differing else ("", "")
    return (share, *numbers, place if found.differing else "", *values, "" if right else "wrong")


def as_json(found: Difference) -> dict[str, Any]:
    """The same for programs."""
    return {
        "dtype": found.dtype.name,
        "elements": found.elements,
        "differing": found.differing,
        "relative": found.relative,
        "ulps": found.ulps,
        "place": list(found.place),
        "got": found.got,
        "wanted": found.wanted,
    }
