"""What the commands share: options, the console, and what holds while something runs."""

from __future__ import annotations

import math
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console

from ptir.backend.folders import ENVIRONMENT
from ptir.errors import UsageError
from ptir_testsuite.oracles.accuracy import RELAXATIONS

REBUILD: Final = "PTIR_REBUILD_KERNELS"

Command = Callable[..., int]


class _Seconds(click.FloatRange):
    """A time above zero; ``nan`` is none."""

    name = "seconds"

    def __init__(self) -> None:
        super().__init__(min=0, min_open=True)

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """The number, or a mistake in the call."""
        found: float = super().convert(value, param, ctx)
        if math.isnan(found):
            self.fail(f"{value} is not in the range x>0.", param, ctx)
        return found


SECONDS: Final = _Seconds()
COUNT: Final = click.IntRange(0)
"""How many, or which of what is counted from 0 on."""


def with_options(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """A decorator that adds these click options, in this order."""

    def add(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add


on_backend = with_options(
    click.option("--backend", required=True, help="NAME or NAME:DEVICE, installed."),
    click.option("--claims", help="Only these profiles: core,f16 or all; default: its claims."),
    click.option(
        "--relax",
        multiple=True,
        type=click.Choice(sorted(RELAXATIONS)),
        help="; ".join(f"{name}: {r.doc}" for name, r in sorted(RELAXATIONS.items())) + ".",
    ),
    click.option("--import", "imports", multiple=True, help="A module that defines ops."),
)
"""The options of every command that holds a backend to something."""

in_processes = with_options(
    click.option("--jobs", type=COUNT, default=1, help="Processes; 0: this one."),
    click.option("--timeout", type=SECONDS, default=60.0, help="Seconds that one case may take."),
)
"""The options of commands that run many items."""

with_waivers = click.option(
    "--waivers",
    "waivers",
    type=click.Path(path_type=Path),
    help="Known failures, in TOML or JSON.",
)
"""The option of commands whose failures may be waived."""

into_file = with_options(
    click.option("--json", "path", type=click.Path(path_type=Path), help="Where rows go."),
    click.option("--resume", is_flag=True, help="Go on with the unfinished run of --json."),
)
"""The options of commands that write a report."""


def require_place(option: str, path: Path) -> None:
    """Refuse a path that nothing can be written to."""
    if path.exists() and not path.is_file():
        raise UsageError(f"{option} {path}: not a regular file")
    if not path.parent.is_dir():
        raise UsageError(f"{option} {path}: there is no folder {path.parent}")


@contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM does what Ctrl-C does: what there is gets written."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def built_anew() -> Iterator[None]:
    """Unless told where to keep them, built kernels are neither kept on disk nor taken from it.

    The verdict is about what the driver makes of the sources now, and thousands of small kernels
    must not drive those of somebody's models out of the cache.
    """
    if ENVIRONMENT in os.environ or REBUILD in os.environ:
        yield
        return
    os.environ[REBUILD] = "1"
    try:
        yield
    finally:
        del os.environ[REBUILD]


def console() -> Console:
    """Where results are printed: as wide as the terminal, unbounded where there is none."""
    usual = Console(markup=False, highlight=False, emoji=False)
    wide = Console(markup=False, highlight=False, emoji=False, width=10_000)
    return usual if usual.is_terminal else wide
