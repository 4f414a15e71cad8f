"""What ``verify``, ``bisect`` and ``diff`` share: options, a row of a table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from ptir.debug import Difference

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
        help="Of a model that generates: the prompt, or the token behind it.",
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
    """Give a command what ``subjects.opened`` takes, and ``tolerance``."""
    for option in reversed(SUBJECT):
        command = option(command)
    return command


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
