"""Selecting cases by an expression of words: ``-k "add and not f16"``."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from ptir.errors import UsageError

Matches = Callable[[str], bool]

DEEPEST: Final = 100
"""Negations and parentheses around one another at most."""

_TOKEN: Final = re.compile(r"\s*(\(|\)|[^\s()]+)")
_HASH: Final = re.compile(r"^(\S+-)([0-9a-f]{12})(?!\S)")
"""The hash at the end of an id, which is the first word of a text."""


@dataclass(frozen=True)
class _Text:
    """What is searched. Of an id, the hash says nothing: it must be given whole."""

    whole: str

    @cached_property
    def id(self) -> re.Match[str] | None:
        return _HASH.match(self.whole)

    @cached_property
    def spoken(self) -> str:
        return _HASH.sub(r"\1", self.whole)

    def has(self, word: str) -> bool:
        return word in self.spoken or (self.id is not None and word in (self.id[0], self.id[2]))


_Finds = Callable[[_Text], bool]


def selection(expression: str) -> Matches:
    """A predicate on text: words must occur in it; and, or, not and parentheses combine them.

    The hash of an id counts only whole, with or without what stands before it. Raises
    ``UsageError`` where the expression is not one.
    """
    parser = _Parser(expression, _TOKEN.findall(expression))
    found = parser.either()
    if parser.rest:
        parser.fail(f"unexpected {parser.rest[-1]!r}")
    return lambda text: found(_Text(text))


def nothing_found(expression: str, claims: Collection[str] | None, known: Collection[str]) -> str:
    """What to say where no case matches: the nearest of the ``known`` for words that are none."""
    words = [t for t in _TOKEN.findall(expression) if t not in ("and", "or", "not", "(", ")")]
    odd = [word for word in words if not any(word in name for name in known)]
    near = [name for word in odd for name in difflib.get_close_matches(word, known, 3, 0.75)]
    hint = f" (nearest: {', '.join(dict.fromkeys(near))})" if near else ""
    what = f"matches {expression!r}" if expression else "is there"
    within = f" within the profiles {', '.join(sorted(claims))}" if claims is not None else ""
    return f"no case {what}{within}{hint}"


class _Parser:
    """A recursive descent over the words; what is left of them is in reverse."""

    def __init__(self, expression: str, tokens: Sequence[str]) -> None:
        self.expression, self.rest, self.depth = expression, list(reversed(tokens)), 0

    def fail(self, why: str) -> None:
        """Refuse the expression."""
        raise UsageError(f"-k {self.expression!r}: {why}; write words with and, or, not and ()")

    def take(self, word: str) -> bool:
        """Whether ``word`` comes next; it is consumed."""
        if self.rest and self.rest[-1] == word:
            self.rest.pop()
            return True
        return False

    def either(self) -> _Finds:
        """Alternatives joined by ``or``."""
        found = [self.both()]
        while self.take("or"):
            found.append(self.both())
        return found[0] if len(found) == 1 else lambda text: any(one(text) for one in found)

    def both(self) -> _Finds:
        """Conditions joined by ``and``."""
        found = [self.single()]
        while self.take("and"):
            found.append(self.single())
        return found[0] if len(found) == 1 else lambda text: all(one(text) for one in found)

    def single(self) -> _Finds:
        """A word, a negation or a group."""
        self.depth += 1
        if self.depth > DEEPEST:
            raise UsageError(
                f"-k: an expression of {len(self.expression)} characters nests deeper than"
                f" {DEEPEST} parentheses and negations; leave out those that change nothing"
            )
        found = self._single()
        self.depth -= 1
        return found

    def _single(self) -> _Finds:
        if self.take("not"):
            inner = self.single()
            return lambda text: not inner(text)
        if self.take("("):
            group = self.either()
            if not self.take(")"):
                self.fail("a parenthesis is not closed")
            return group
        if not self.rest or self.rest[-1] in ("and", "or", ")"):
            self.fail("a word is missing")
        word = self.rest.pop()
        return lambda text: text.has(word)
