"""What encoders find: the class of a token, a masked word, how well a document fits a query."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TokenLabel:
    """The likeliest class of a token: the text from ``start`` to ``end`` (characters)."""

    text: str
    start: int
    end: int
    id: int
    name: str
    probability: float


@dataclass(frozen=True)
class Ranked:
    """A document: its number in the list that was given, and how well it fits, the more the better.

    ``score`` is what a cross-encoder gives, or the cosine of two embeddings.
    """

    index: int
    score: float
    document: str


@dataclass(frozen=True)
class Filled:
    """A token in the place of a masked word: its text, and how probable it is, 0 to 1."""

    id: int
    text: str
    probability: float
