"""A command on a pseudo-terminal of its own: what is typed there, and what is on the screen."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import Final

ROWS: Final = 24
CODES: Final = re.compile(r"\x1b\[([?\d;]*)([A-Za-z])|[\r\n\b]|[^\x1b\r\n\b]+")
"""What moves the cursor or the colour, and what is written between."""


class Pseudo:
    """``ptir`` with ``arguments`` on a terminal, and what came out of it."""

    def __init__(self, *arguments: str, columns: int = 80, **environment: str) -> None:
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, columns, 0, 0))
        named = {**os.environ, "TERM": "xterm-256color", **environment}

        def own() -> None:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # a shell's background job ignores it
            os.setsid()
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        self.process = subprocess.Popen(
            [sys.executable, "-c", "import sys; from ptir.cli.main import main; sys.exit(main())",
             *arguments],
            stdin=slave, stdout=slave, stderr=slave, env=named, preexec_fn=own, close_fds=True,
        )  # fmt: skip
        os.close(slave)
        self.text, self.read = "", 0

    def until(self, wanted: str, seconds: float = 60) -> str:
        """What came since, up to ``wanted``."""
        end, before = time.monotonic() + seconds, self.read
        while wanted not in self.text[before:]:
            assert time.monotonic() < end, self.text
            ready, _, _ = select.select([self.master], [], [], 1.0)
            if ready:
                try:
                    self.text += os.read(self.master, 65536).decode("utf-8", "replace")
                except OSError as error:  # nobody holds the other side
                    raise AssertionError(self.text) from error
        self.read = self.text.index(wanted, before) + len(wanted)
        return self.text[before : self.read]

    def write(self, text: str) -> None:
        """Type a text."""
        os.write(self.master, text.encode())

    def until_edited(self) -> None:
        """Wait until the line behind the prompt is edited and the command waits for a key.

        A Ctrl-C is lost before that: the terminal drops with it what nobody has read, and Python
        looks for signals only where they interrupt its waiting. Who writes one presses it again.
        """
        end, main = time.monotonic() + 60, Path(f"/proc/{self.process.pid}/stat")
        while termios.tcgetattr(self.master)[3] & termios.ECHO or not _sleeps(main):
            assert time.monotonic() < end, self.text
            select.select([], [], [], 0.01)

    def close(self) -> None:
        """End the command, and the terminal."""
        self.process.kill()
        self.process.wait()
        os.close(self.master)


def _sleeps(main: Path) -> bool:
    """Whether a process's first thread waits for something."""
    return main.read_text(encoding="ascii", errors="replace").rpartition(") ")[2].startswith("S")


def screen(text: str) -> str:
    """What a terminal shows in the end, with all that has left it at the top; without colours."""
    lines, row, column = [""], 0, 0
    for match in CODES.finditer(text):
        said, (numbers, code) = match[0], match.groups()
        count = int(numbers) if numbers and numbers.isdigit() else 1
        if said == "\n":
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif said == "\r":
            column = 0
        elif said == "\b":
            column -= 1
        elif code == "A":
            row -= count
        elif code == "K":
            lines[row] = "" if numbers == "2" else lines[row][:column]
        elif code is None:
            line = lines[row].ljust(column)
            lines[row] = line[:column] + said + line[column + len(said) :]
            column += len(said)
    return "\n".join(line.rstrip() for line in lines)
