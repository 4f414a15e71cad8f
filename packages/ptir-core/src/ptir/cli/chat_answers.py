"""How an answer is shown: rendered Markdown on a terminal, plain text elsewhere, or JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Final, Protocol, TextIO

import click

from ptir.cli import show

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live
    from rich.markdown import Markdown
    from rich.text import Text

    from ptir.runtime.chat import Answer, AnswerPiece

FENCE: Final = re.compile(r"^ {0,3}(```|~~~)", re.MULTILINE)
REFRESHES: Final = 8
"""How often a second what is being written is drawn anew."""


class Shown(Protocol):
    """Shows answers."""

    def pieces(self, run: Iterable[AnswerPiece]) -> None:
        """Show an answer as it comes, to the end or to what interrupts it."""

    def answer(self, answer: Answer) -> None:
        """The same answer, which has ended."""


def shown_on(out: TextIO, *, as_json: bool) -> Shown:
    """How answers are shown on ``out``."""
    if as_json:
        return JsonLines(out)
    return Rendered(out) if out.isatty() else Plain(out)


class Plain:
    """The text alone, each answer ended by a line break."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def pieces(self, run: Iterable[AnswerPiece]) -> None:
        """Show an answer as it comes."""
        for piece in run:
            click.echo(piece.text, self._out, nl=False)

    def answer(self, answer: Answer) -> None:
        """End its last line."""
        click.echo("", self._out)
        if answer.reasoning:
            show.note(f"reasoned in {len(answer.reasoning)} characters; /reasoning shows them")


class JsonLines:
    """One JSON object a line for each answer, once it is whole."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def pieces(self, run: Iterable[AnswerPiece]) -> None:
        """Wait for the end."""
        for _ in run:
            continue

    def answer(self, answer: Answer) -> None:
        """Show it."""
        found = {
            "text": answer.text,
            "reasoning": answer.reasoning,
            "finish_reason": answer.finish_reason,
            "stats": asdict(answer.stats),
        }
        click.echo(json.dumps(found, ensure_ascii=False), self._out)


class Rendered:
    """Markdown on a terminal: blocks that are whole are printed, the last one is drawn anew.

    Reasoning is folded into one line that counts.
    """

    def __init__(self, out: TextIO) -> None:
        from rich.console import Console

        self._console: Final[Console] = Console(file=out, force_terminal=True)
        self._block, self._printed = "", False

    def pieces(self, run: Iterable[AnswerPiece]) -> None:
        """Show an answer as it comes."""
        from rich.live import Live

        self._block, self._printed, reasoned = "", False, 0
        with Live(
            console=self._console,
            refresh_per_second=REFRESHES,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        ) as live:
            for piece in run:
                if piece.reasoning:
                    reasoned += 1
                    live.update(_folded(f"reasoning ... {reasoned} tokens"))
                if piece.text:
                    self._push(piece.text, live)

    def answer(self, answer: Answer) -> None:
        """Print the last block, and what was folded."""
        self._print(self._block)
        self._block = ""
        if answer.reasoning:
            fold = f"reasoned in {len(answer.reasoning)} characters; /reasoning shows them"
            self._console.print(_folded(fold))

    def _push(self, text: str, live: Live) -> None:
        self._block += text
        done, self._block = cut_blocks(self._block)
        self._print(done)
        live.update(_markdown(self._block))

    def _print(self, block: str) -> None:
        """Print a block, a line apart from the one before it."""
        if block.strip():
            if self._printed:
                self._console.print()
            self._console.print(_markdown(block))
            self._printed = True


def cut_blocks(text: str) -> tuple[str, str]:
    """Markdown cut behind its last blank line that stands in no fence: what is whole, the rest."""
    at = len(text)
    while (at := text.rfind("\n\n", 0, at)) >= 0:
        if len(FENCE.findall(text[:at])) % 2 == 0:
            return text[: at + 2], text[at + 2 :]
    return "", text


def _markdown(text: str) -> Markdown:
    """Markdown whose lines end where the model ends them, as verses do; not where they are cut."""
    from rich.markdown import Markdown

    found = Markdown(text)
    for token in found.parsed:
        for child in token.children or ():
            if child.type == "softbreak":
                child.type = "hardbreak"
    return found


def _folded(text: str) -> Text:
    from rich.text import Text

    return Text(text, style="dim")
