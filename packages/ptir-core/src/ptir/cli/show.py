"""Printing: tables for people, JSON for programs, notes on stderr.

stdout carries only a command's result. rich is imported when the first table is printed.
"""

from __future__ import annotations

import json
import math
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

UNWRAPPED = 10_000


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, err: bool = False) -> None:
    """Print a table; without a terminal each row is one line, however long."""
    from rich.table import Table

    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        grid.add_column(column, header_style="bold", overflow="fold")
    for row in rows:
        grid.add_row(*(str(cell) for cell in row))
    rich(grid, err=err)


def rich(shown: RenderableType, *, err: bool = False) -> None:
    """Print a renderable of rich; without a terminal, as plain lines however long."""
    console = _console(err)
    if console.is_terminal:
        console.print(shown)
        return
    with console.capture() as printed:
        console.print(shown)
    lines = (line.rstrip() for line in printed.get().splitlines())
    click.echo("\n".join(lines), err=err)


def width() -> int:
    """The columns of the terminal; very many where stdout is none."""
    return _console(False).width


def _console(err: bool) -> Console:
    from rich.console import Console

    options = {"stderr": err, "markup": False, "highlight": False, "emoji": False}
    console = Console(**options)  # type: ignore[arg-type]  # all of these are booleans
    return console if console.is_terminal else Console(width=UNWRAPPED, **options)  # type: ignore[arg-type]


def value(result: Any) -> None:
    """Print ``result`` as one JSON value; numbers that JSON has not are texts, such as "NaN"."""
    told = _as_json(result)
    click.echo(json.dumps(told, indent=2, ensure_ascii=False, allow_nan=False))


def _as_json(result: Any) -> Any:
    """The same with texts for infinities and NaN, as configurations of some models hold them."""
    if isinstance(result, dict):
        return {key: _as_json(one) for key, one in result.items()}
    if isinstance(result, list | tuple):
        return [_as_json(one) for one in result]
    if isinstance(result, float) and not math.isfinite(result):
        return json.dumps(result)
    return result


def text(result: str) -> None:
    """Print text that is a command's result."""
    click.echo(result)


def sentence(message: str, *, err: bool = False) -> None:
    """Print a message: on a terminal broken between words, else each line as it is."""
    if (sys.stderr if err else sys.stdout).isatty():
        columns = shutil.get_terminal_size().columns
        folded = partial(textwrap.fill, width=columns, break_long_words=False)
        message = "\n".join(folded(line, break_on_hyphens=False) for line in message.splitlines())
    click.echo(message, err=err)


def note(message: str) -> None:
    """Tell the user something that is not the result, on stderr."""
    sentence(message, err=True)
