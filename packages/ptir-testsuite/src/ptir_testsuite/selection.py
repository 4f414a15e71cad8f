"""Selecting cases by an expression of words: ``-k "add and not f16"``."""

from __future__ import annotations

import re
from collections.abc import Callable

from ptir.errors import UsageError

Matches = Callable[[str], bool]

_TOKEN = re.compile(r"\s*(\(|\)|[^\s()]+)")


def selection(expression: str) -> Matches:
    """A predicate on text: words must occur in it; and, or, not and parentheses combine them.

    Raises ``UsageError`` where the expression is not one.
    """
    tokens = _TOKEN.findall(expression)
    parser = _Parser(expression, tokens)
    found = parser.either()
    if parser.rest:
        parser.fail(f"unexpected {parser.rest[0]!r}")
    return found


class _Parser:
    """A recursive descent over the words."""

    def __init__(self, expression: str, tokens: list[str]) -> None:
        self.expression, self.rest = expression, tokens

    def fail(self, why: str) -> None:
        """Refuse the expression."""
        raise UsageError(f"-k {self.expression!r}: {why}; write words with and, or, not and ()")

    def take(self, word: str) -> bool:
        """Whether ``word`` comes next; it is consumed."""
        if self.rest and self.rest[0] == word:
            self.rest = self.rest[1:]
            return True
        return False

    def either(self) -> Matches:
        """Alternatives joined by ``or``."""
        left = self.both()
        while self.take("or"):
            left = _or(left, self.both())
        return left

    def both(self) -> Matches:
        """Conditions joined by ``and``."""
        left = self.single()
        while self.take("and"):
            left = _and(left, self.single())
        return left

    def single(self) -> Matches:
        """A word, a negation or a group."""
        if self.take("not"):
            inner = self.single()
            return lambda text: not inner(text)
        if self.take("("):
            group = self.either()
            if not self.take(")"):
                self.fail("a parenthesis is not closed")
            return group
        if not self.rest or self.rest[0] in ("and", "or", ")"):
            self.fail("a word is missing")
        word, self.rest = self.rest[0], self.rest[1:]
        return lambda text: word in text


def _or(left: Matches, right: Matches) -> Matches:
    return lambda text: left(text) or right(text)


def _and(left: Matches, right: Matches) -> Matches:
    return lambda text: left(text) and right(text)
