"""The talk on the documentation's front page, recorded: `python scripts/record_chat.py --write`.

A real run on a pseudo-terminal, of the model and the template that docs/guides/chat.md makes.
Without ``--write`` the recording is printed.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Final

REPOSITORY: Final = Path(__file__).resolve().parent.parent
sys.path.append(str(REPOSITORY / "scripts"))

import run_page  # noqa: E402
from pseudo_terminal import Pseudo, screen  # noqa: E402

GUIDE: Final = REPOSITORY / "docs" / "guides" / "chat.md"
PAGE: Final = REPOSITORY / "docs" / "index.md"
BEGIN: Final = "<!-- A talk, written by scripts/record_chat.py -->"
END: Final = "<!-- end of the talk -->"
COMMAND: Final = ("chat", "talks", "--temp", "0.7", "--top-k", "40", "--seed", "5", "-n", "48")
TYPED: Final = ("Who art thou?", "What news from Verona?", "/save talk.json")
PROMPT: Final = ">>> "
LONGEST: Final = 600.0
"""Seconds until a prompt must come."""


def recorded(*options: str) -> str:
    """What the terminal shows in the end, the command in front; ``options`` are further ones."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            _make_model()
            shown = _talk(*options)
        finally:
            os.chdir(before)
    return f"$ ptir {' '.join(COMMAND)}\n{shown}"


def _make_model() -> None:
    """Run the blocks of the guide up to its first of Python, which write ``talks``."""
    namespace: dict[str, object] = {"__name__": "__main__"}
    for info, line, source in run_page.fences(GUIDE.read_text(encoding="utf-8")):
        if info in run_page.CONSOLE:
            run_page.run_console(source, f"{GUIDE.name}:{line}")
        elif info == run_page.PYTHON:
            run_page.run_python(source, GUIDE.name, line, namespace)
            return


def _talk(*options: str) -> str:
    talk = Pseudo(*COMMAND, *options)
    try:
        talk.until(PROMPT, LONGEST)
        for line in TYPED:
            talk.write(f"{line}\n")
            talk.until(PROMPT, LONGEST)
        return screen(talk.text).removesuffix(PROMPT.rstrip()).rstrip()
    finally:
        talk.close()


def tokens_of(recording: str) -> str:
    """A recording without what another run measures otherwise."""
    return re.sub(r"running on .*\n|[\d.]+ tok/s|in\s+[\d.]+ s", "", recording)


def on_page(page: str) -> str:
    """The recording that a page has between its marks; raises ``ValueError`` without them."""
    found = page[page.index(BEGIN) : page.index(END)]
    return found.partition("```text\n")[2].rpartition("```")[0].rstrip("\n")


def with_recording(page: str, recording: str) -> str:
    """A page with another recording between its marks."""
    begin, end = page.index(BEGIN) + len(BEGIN), page.index(END)
    return f"{page[:begin]}\n\n```text\n{recording}\n```\n\n{page[end:]}"


def main() -> None:
    """Record, and print or write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="into docs/index.md")
    given, found = parser.parse_args(), recorded()
    if not given.write:
        print(found)
        return
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(with_recording(page, found), encoding="utf-8")


if __name__ == "__main__":
    main()
