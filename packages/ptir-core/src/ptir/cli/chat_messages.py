"""What somebody writes in a chat: messages of one line or several."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import redirect_stdout, suppress
from typing import Final, TextIO

from ptir.cli import show

QUOTES: Final = '"""'
"""What stands before and behind a message of several lines."""
PROMPT: Final = ">>> "
GOES_ON: Final = "... "


class Messages:
    """The messages of ``stream``, at whose end the talk ends.

    On a terminal they are asked for on stderr, after a ``greeting``, and can be edited, and Ctrl-C
    drops what is written.
    """

    def __init__(self, stream: TextIO, greeting: str = "") -> None:
        self._stream = stream
        self._asks = stream.isatty() and sys.stderr.isatty()
        if self._asks:
            with suppress(ImportError):
                import readline  # noqa: F401  lines can be edited and called back with it
            if greeting:
                show.note(greeting)

    def __iter__(self) -> Iterator[str]:
        while True:
            try:
                message = self._message()
            except KeyboardInterrupt:
                if not self._asks:
                    raise
                show.note("\nCtrl-D or /exit ends the talk")
                continue
            if message is None:
                if self._asks:
                    show.note("")
                return
            if message.strip():
                yield message

    def _message(self) -> str | None:
        """One message; None at the end of the stream."""
        line = self._line(PROMPT)
        if line is None or not line.lstrip().startswith(QUOTES):
            return self._continued(line)
        lines = [line.lstrip().removeprefix(QUOTES)]
        while not lines[-1].rstrip().endswith(QUOTES):
            following = self._line(GOES_ON)
            if following is None:
                break
            lines.append(following)
        lines[-1] = lines[-1].rstrip().removesuffix(QUOTES)
        return "\n".join(lines).strip("\n")

    def _continued(self, line: str | None) -> str | None:
        """A line with those behind it, as long as one ends with a backslash."""
        parts: list[str] = []
        while line is not None and line.endswith("\\"):
            parts.append(line.removesuffix("\\"))
            line = self._line(GOES_ON)
        if line is None and not parts:
            return None
        return "\n".join([*parts, *([] if line is None else [line])])

    def _line(self, prompt: str) -> str | None:
        if self._asks:
            return _edited(prompt)
        line = self._stream.readline()
        return line.rstrip("\r\n") if line else None


def _edited(prompt: str) -> str | None:
    """A line of the terminal; None for Ctrl-D.

    Python edits lines where its stdout is descriptor 1, which is stderr's while a command runs.
    """
    with open(1, "w", closefd=False) as terminal, redirect_stdout(terminal):
        try:
            return input(prompt)
        except EOFError:
            return None
