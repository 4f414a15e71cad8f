"""What the commands share: options, the console, and what holds while something runs."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import click
from rich.console import Console

from ptir.backend.folders import ENVIRONMENT
from ptir_testsuite.accuracy import RELAXATIONS

REBUILD: Final = "PTIR_REBUILD_KERNELS"

Command = Callable[..., int]


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
    click.option("--relax", multiple=True, type=click.Choice(sorted(RELAXATIONS))),
    click.option("--import", "imports", multiple=True, help="A module that defines ops."),
)
"""The options of every command that holds a backend to something."""

in_processes = with_options(
    click.option("--jobs", type=click.IntRange(0), default=1, help="Processes; 0: this one."),
    click.option("--timeout", default=60.0, help="Seconds that one case may take."),
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
