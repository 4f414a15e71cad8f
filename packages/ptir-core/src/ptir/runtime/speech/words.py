"""Words among the tokens of a text: what stands between spaces, with its marks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

UNSPACED: Final = ("zh", "ja", "th", "lo", "my", "yue")
"""Languages that put no spaces between words: each character is one."""
OPENING: Final = "\"'“¿([{-"
CLOSING: Final = "\"'.。,，!！?？:：”)]}、"
"""Marks that belong to the word behind them, and to the one before."""
MARKS: Final = frozenset("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~") | frozenset(OPENING + CLOSING)
BROKEN: Final = "\ufffd"
"""What a part of a character is decoded to."""


@dataclass(frozen=True)
class Word:
    """A word's text, and how many tokens it has."""

    text: str
    count: int


def words(
    tokens: Sequence[int], decode: Callable[[Sequence[int]], str], language: str | None
) -> list[Word]:
    """The words of a text's tokens, in their order; ``language`` is a code."""
    found = list[Word]()
    for one in _characters(tokens, decode):
        begins = one.text.startswith(" ") or _is_mark(one) or language in UNSPACED
        if begins or not found:
            found.append(one)
        else:
            found[-1] = _joined(found[-1], one)
    return _with_marks(found)


def _characters(tokens: Sequence[int], decode: Callable[[Sequence[int]], str]) -> list[Word]:
    """The fewest tokens, one after another, that hold whole characters."""
    found, first = list[Word](), 0
    for last in range(1, len(tokens) + 1):
        text = decode(tokens[first:last])
        if not text.endswith(BROKEN) or last == len(tokens):
            found.append(Word(text, last - first))
            first = last
    return found


def _with_marks(given: Sequence[Word]) -> list[Word]:
    """The same, marks joined to the words that they belong to."""
    found = list[Word]()
    for one in given:
        closes = bool(one.text) and one.text.strip() in CLOSING and not one.text.startswith(" ")
        opened = bool(found) and _opens(found[-1])
        if found and (closes or opened):
            found[-1] = _joined(found[-1], one)
        else:
            found.append(one)
    return found


def _opens(word: Word) -> bool:
    mark = word.text.strip()
    return word.text.startswith(" ") and len(mark) == 1 and mark in OPENING


def _is_mark(word: Word) -> bool:
    mark = word.text.strip()
    return bool(mark) and all(one in MARKS for one in mark)


def _joined(first: Word, second: Word) -> Word:
    return Word(first.text + second.text, first.count + second.count)
