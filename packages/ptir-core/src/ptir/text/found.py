"""What encoders find: the class of a token, and how well a document fits a query."""

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
