"""Tokens of the text form: a table of patterns, and a reader whose errors name line and column.

The text may come from anywhere and is not trusted.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar, Final, TypeVar

from ptir.errors import PtirError, VerifyError
from ptir.ir.location import Location
from ptir.ir.text import NAME

STRING: Final = r'"(?:[^"\\\x00-\x1f]|\\.)*"'
TYPE: Final = r"[a-z][a-z0-9]*\[(?:[0-9]+(?:,[0-9]+)*)?\]"
NAN: Final = r"nan\([0-9a-f]{16}\)"
FLOAT: Final = r"-?[0-9]+(?:\.[0-9]+(?:e[+-]?[0-9]+)?|e[+-]?[0-9]+)|-inf\b"

_TOKENS: Final = re.compile(
    "|".join(
        f"(?P<{kind}>{pattern})"
        for kind, pattern in (
            ("space", r"(?:\s|#[^\n]*)+"),
            ("value", r"%[0-9]+"),
            ("function", rf"@(?:{NAME.pattern}|{STRING})"),
            ("string", STRING),
            ("dtype", r"![a-z0-9]+"),
            ("hex", r"0x[0-9a-f]*"),
            ("type", TYPE),
            ("nan", NAN),
            ("float", FLOAT),
            ("int", r"-?[0-9]+"),
            ("name", NAME.pattern),
            ("mark", r"->|[(){}\[\]=:,]"),
        )
    )
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Token:
    """A piece of the text: its kind in the table, its characters and where they start."""

    kind: str
    text: str
    offset: int


class Reader:
    """Reads tokens one after the other; ``token`` is the next one.

    ``table`` has a named group for each kind of token; of kind ``space`` nothing comes of.
    """

    table: ClassVar[re.Pattern[str]] = _TOKENS

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = self.tokenize()
        self.lines = [0, *(match.end() for match in re.finditer("\n", text))]
        self.token = next(self.tokens)

    def tokenize(self) -> Iterator[Token]:
        """All tokens, then one of kind ``end``; raises ``VerifyError`` where none starts."""
        offset = 0
        while offset < len(self.text):
            match = self.table.match(self.text, offset)
            if match is None:
                found = self.text[offset : offset + 1]
                raise self.error(offset, f"no token starts with {found!r}")
            if match.lastgroup != "space":
                yield Token(str(match.lastgroup), match[0], offset)
            offset = match.end()
        yield Token("end", "", offset)

    # Errors name line and column.

    def error(self, offset: int, message: str) -> VerifyError:
        """The error about what stands at ``offset``."""
        return VerifyError(f"{self.place(offset)}: {message}")

    def place(self, offset: int) -> str:
        """Where ``offset`` is, for a reader."""
        return str(self.location(offset))

    def location(self, offset: int) -> Location:
        """The line and column of ``offset``, counted from 1."""
        line = bisect_right(self.lines, offset)
        return Location(line=line, column=offset - self.lines[line - 1] + 1)

    def expected(self, what: str) -> VerifyError:
        """The error that says what the grammar wants instead of the next token."""
        shown = self.token.text if len(self.token.text) <= 40 else f"{self.token.text[:40]}..."
        found = repr(shown) if shown else "the end of the text"
        return self.error(self.token.offset, f"expected {what}, found {found}")

    @contextmanager
    def at(self, token: Token) -> Iterator[None]:
        """Errors raised inside are about ``token``."""
        try:
            yield
        except (PtirError, ValueError) as error:
            raise self.error(token.offset, str(error)) from None

    # Tokens.

    def advance(self) -> Token:
        """Take the next token, whatever it is."""
        token = self.token
        self.token = next(self.tokens, token)
        return token

    def take(self, kind: str, what: str) -> Token:
        """Take the next token, which must be of this kind; ``what`` describes it in the error."""
        if self.token.kind != kind:
            raise self.expected(what)
        return self.advance()

    def accept(self, text: str) -> bool:
        """Whether the next token is this mark or word, which is then taken."""
        found = self.token.kind in ("mark", "name") and self.token.text == text
        if found:
            self.advance()
        return found

    def expect(self, text: str) -> None:
        """Take this mark or word, which must come next."""
        if not self.accept(text):
            raise self.expected(repr(text))

    def listed(self, item: Callable[[], T], end: str) -> list[T]:
        """Items separated by commas up to ``end``, which is taken."""
        items: list[T] = []
        while not self.accept(end):
            if items:
                self.expect(",")
            items.append(item())
        return items


def unquoted(text: str) -> str:
    """The characters that a string token stands for; raises ``ValueError``."""
    try:
        return str(json.loads(text))
    except json.JSONDecodeError as error:
        raise ValueError(f"{error.msg} in the string {text[:40]}") from None
