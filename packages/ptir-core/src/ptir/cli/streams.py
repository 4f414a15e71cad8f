"""The three streams of a command: what the shell gave, and a stdout for results alone."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Final, TextIO

from ptir.errors import UsageError

STDOUT: Final = 1
"""The descriptor that everything in the process, and every child of it, writes results to."""


def open_streams() -> None:
    """Give stdin and stderr that the shell closed something empty; stdout is the result's."""
    sys.stdin = sys.stdin or open(os.devnull, encoding="utf-8")  # noqa: SIM115  for the process
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if sys.stdout is None:
        raise UsageError("stdout is closed, so there is nowhere to write the result")


@contextmanager
def results_alone() -> Iterator[None]:
    """Move the results to a descriptor of their own; what else is written to 1 goes to stderr.

    Libraries in C, compilers and other processes that a plugin or a backend starts write to
    descriptor 1, whatever ``sys.stdout`` is. Does nothing where ``sys.stdout`` is not descriptor 1.
    """
    before = sys.stdout
    if _descriptor(before) != STDOUT:
        yield
        return
    before.flush()
    with ExitStack() as stack:
        kept = os.dup(STDOUT)
        stack.callback(os.close, kept)
        sys.stdout = _same(before, os.dup(kept))
        stack.callback(_closed, sys.stdout)
        stack.callback(os.dup2, kept, STDOUT)
        stack.callback(setattr, sys, "stdout", before)
        stack.callback(before.flush)
        _point_at_stderr(STDOUT)
        yield


def _same(stream: TextIO, descriptor: int) -> TextIO:
    """A stream like ``stream`` that writes to ``descriptor``."""
    buffered = getattr(stream, "line_buffering", False)
    return open(
        descriptor,
        "w",
        buffering=1 if buffered else -1,
        encoding=stream.encoding,
        errors=stream.errors,
    )


def _closed(stream: TextIO) -> None:
    """Close a stream whose last failure to write was reported already."""
    with suppress(OSError):
        stream.close()


def _descriptor(stream: TextIO) -> int | None:
    try:
        return stream.fileno()
    except (OSError, ValueError, AttributeError):  # a stream in memory has none
        return None


def _point_at_stderr(descriptor: int) -> None:
    """Have what is written to a descriptor go where stderr goes; nowhere, where that has none."""
    found = _descriptor(sys.stderr)
    if found is None:
        _point_nowhere(descriptor)
    else:
        os.dup2(found, descriptor)


def _point_nowhere(descriptor: int) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)


def reader_gone() -> int:
    """Whoever read stdout has left (``ptir ops | head``): end without a message."""
    _point_nowhere(sys.stdout.fileno())
    return 1
