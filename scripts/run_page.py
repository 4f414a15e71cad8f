"""Runs every fenced block of a Markdown page in the current folder: `python run_page.py PAGE`.

Python blocks share one namespace; in console and sh blocks, lines after `$ ` are commands and the
lines below a command, if any, are the stdout it must print (`...` stands for any text). A fence of
`text output` is what the Python block in front of it must print. Other languages are data.
"""

from __future__ import annotations

import doctest
import io
import linecache
import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt

PYTHON = "python"
CONSOLE = ("console", "sh")
OUTPUT = "text output"
MISSPELT = ("py", "python3", "pycon", "bash", "shell", "zsh")
PROGRAMS = ("ptir", "ptir-conformance", "python", "cat", "echo", "ls", "printf")


class PageError(Exception):
    """A fence that does not do what the page says."""


def main(page: str) -> None:
    """Run the blocks of one page in order, stopping at the first that fails."""
    path = Path(page).resolve()
    namespace: dict[str, Any] = {"__name__": "__main__"}
    printed: str | None = None
    for info, line, source in fences(path.read_text(encoding="utf-8")):
        where = f"{path.name}:{line}"
        if info == PYTHON:
            printed = run_python(source, f"<{path.name} line {line}>", line, namespace)
        elif info == OUTPUT:
            if printed is None:
                raise PageError(f"{where}: no `python` fence comes before this `{OUTPUT}` fence")
            compare("the block before it", source, printed, where)
        elif info in CONSOLE:
            run_console(source, where)
        else:
            require_data(info, where)


def fences(text: str) -> Iterator[tuple[str, int, str]]:
    """Every fence: its info string, the number of its opening line, its text."""
    for token in MarkdownIt().parse(text):
        if token.type == "fence" and token.map is not None:
            yield token.info.strip(), token.map[0] + 1, token.content


def require_data(info: str, where: str) -> None:
    language = info.split()[0].lower() if info else ""
    if language in (PYTHON, *CONSOLE, *MISSPELT):
        raise PageError(
            f"{where}: fence {info!r} would not run; write exactly `python`, `console` or `sh` "
            "for what runs, `text` for what cannot"
        )


def run_python(source: str, name: str, line: int, namespace: dict[str, Any]) -> str:
    """What a block prints, executed so that tracebacks show the page's line numbers and text."""
    padded = "\n" * line + source
    linecache.cache[name] = (len(padded), None, padded.splitlines(keepends=True), name)
    with redirect_stdout(io.StringIO()) as printed:
        exec(compile(padded, name, "exec"), namespace)
    return printed.getvalue()


def run_console(source: str, where: str) -> None:
    for command, expected in commands(source, where):
        program = command.split()[0]
        if program not in PROGRAMS:
            raise PageError(
                f"{where}: {program!r} is not run from a page ({', '.join(PROGRAMS)} are); "
                "put the command in a `text` fence"
            )
        compare(f"`{command}`", expected, output_of(command, where), where)


def commands(source: str, where: str) -> Iterator[tuple[str, str]]:
    """The commands of a block, each with the output written below it."""
    before, *parts = re.split(r"(?m)^\$ ", source.replace("\\\n", " "))
    if before.strip() or not parts:
        raise PageError(f"{where}: a console block starts with a `$ ` line; it has {before!r}")
    for part in parts:
        command, _, expected = part.partition("\n")
        yield command, expected


def output_of(command: str, where: str) -> str:
    path = os.pathsep.join((sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)))
    environment = {**os.environ, "PATH": path, "COLUMNS": "100", "NO_COLOR": "1"}
    done = subprocess.run(command, shell=True, capture_output=True, text=True, env=environment)
    if done.returncode != 0:
        raise PageError(
            f"{where}: `{command}` ended with {done.returncode}\n{done.stdout}{done.stderr}"
        )
    return done.stdout


def compare(what: str, expected: str, printed: str, where: str) -> None:
    checker, flags = doctest.OutputChecker(), doctest.ELLIPSIS
    wanted, got = expected.strip("\n") + "\n", printed.strip("\n") + "\n"
    if expected.strip() and not checker.check_output(wanted, got, flags):
        raise PageError(
            f"{where}: {what} printed\n{got}and the page says\n{wanted}: correct the page"
        )


if __name__ == "__main__":
    try:
        main(sys.argv[1])
    except PageError as error:
        sys.exit(f"PageError: {error}")
