"""What commands that take texts share: how texts are given, loading, and what is told of a run."""

from __future__ import annotations

import re
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from ptir.cli import show
from ptir.errors import UsageError, short

if TYPE_CHECKING:
    from ptir.runtime import Model

OPTIONS: Final = (
    click.option(
        "-f",
        "--file",
        "files",
        multiple=True,
        metavar="FILE",
        type=click.Path(path_type=Path, dir_okay=False),
        help="Take each line of FILE as a text. Repeatable.",
    ),
    click.option(
        "--truncate",
        is_flag=True,
        help="Cut texts that are longer than the model takes; they are an error otherwise.",
    ),
)


def text_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command ``files`` and ``truncate``."""
    return reduce(lambda wrapped, option: option(wrapped), reversed(OPTIONS), command)


def given_texts(arguments: tuple[str, ...], files: tuple[Path, ...]) -> list[str]:
    """The texts of arguments (``-``: the lines of stdin) and then of files' lines.

    Lines without a letter are left out. Raises ``UsageError`` where there is no text.
    """
    if arguments.count("-") > 1:
        raise click.UsageError("-: stdin can be read once; give it once")
    found: list[str] = []
    for one in arguments:
        found += _lines(sys.stdin.buffer.read(), "stdin") if one == "-" else [one]
    for path in files:
        try:
            found += _lines(path.read_bytes(), str(path))
        except OSError as error:
            raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from error
    if not found and (arguments or files):
        where = ", ".join(["stdin"] * len(arguments) + [str(path) for path in files])
        raise UsageError(f"{where}: every line is empty; give at least one text")
    if not found:
        raise click.UsageError("give a text, - for the lines of stdin, or --file")
    return found


def _lines(data: bytes, where: str) -> list[str]:
    """Those that are not blank; what Unicode alone takes for the end of a line is in a text."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{where} is not UTF-8 text: {error}") from error
    return [line for line in re.split(r"\r\n?|\n", text) if line.strip()]


@dataclass
class Run:
    """What a command did: seconds, and where, once it is over."""

    stats: dict[str, Any] = field(default_factory=dict)


@contextmanager
def measured(loaded: Model) -> Iterator[Run]:
    """Measure what is done inside, and tell texts that were cut."""
    from ptir.runtime.specs import RANDOM

    if loaded.name.startswith(RANDOM):
        show.note(f"{loaded.name} has random weights: what it finds is noise")
    backend, device = loaded.target.backend, loaded.target.device
    before = backend.stats(device).host_fallback_ops
    began, run = time.perf_counter(), Run()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        yield run
    for one in told:
        show.note(str(one.message))
    run.stats = {
        "seconds": time.perf_counter() - began,
        "load_seconds": loaded.load_seconds,
        "backend": backend.name,
        "device": device.name,
        "host_fallback_ops": backend.stats(device).host_fallback_ops - before,
    }


def summary(count: int, what: str, stats: dict[str, Any]) -> None:
    """One line on stderr, behind the result."""
    show.note(
        f"{count} {what}{'s' * (count > 1)} in {stats['seconds']:.2f} s on {stats['backend']}"
        f" ({stats['device']}); {stats['host_fallback_ops']} ops ran elsewhere"
    )


def shown(text: str) -> str:
    """A text as a cell of a table: its first words."""
    return short(text)
