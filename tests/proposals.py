"""Proposals that a test makes itself: how often they are right is known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from ptir.runtime.session import Session


class Told:
    """Proposes what ``wrong`` makes of the tokens that are going to come."""

    heads: ClassVar[bool] = False

    def __init__(self, whole: Sequence[int], wrong: Callable[[int, int], int]) -> None:
        self._whole, self._wrong = list(whole), wrong

    def begin(self, session: Session) -> None:
        pass

    def propose(self, tokens: Sequence[int], count: int) -> list[int]:
        coming = enumerate(self._whole[len(tokens) : len(tokens) + count], len(tokens))
        return [self._wrong(at, token) for at, token in coming]


PROPOSALS: dict[str, Callable[[int, int], int]] = {
    "right": lambda at, token: token,
    "wrong": lambda at, token: (token + 1) % 97,
    "right but for every third": lambda at, token: token if at % 3 else 0,
}
