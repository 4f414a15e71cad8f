"""Beam search: which of a window's likeliest texts go on, which are whole, and when it ends."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Beam:
    """A text's tokens and the sum of the logarithms of their probabilities.

    ``score`` counts them among all tokens, ``logprob`` among those that might follow. ``origin`` is
    the place of the text that it goes on from, among those of the step before.
    """

    tokens: tuple[int, ...] = ()
    score: float = 0.0
    logprob: float = 0.0
    origin: int = 0


@dataclass
class Beams:
    """The ``size`` best texts of a window, of ``longest`` tokens at most.

    The best is that of the greatest mean score. None is looked for any more when ``size`` texts
    are whole and the best of those that go on is no better, as it stands, than the worst of them.
    """

    size: int
    end: int
    longest: int
    running: list[Beam] = field(default_factory=lambda: [Beam()])
    whole: list[tuple[float, Beam]] = field(default_factory=list[tuple[float, Beam]])
    done: bool = False

    def step(self, tokens: Array, scores: Array, more: Array) -> None:
        """Go on with the likeliest tokens behind each running text, i32[N,K] and f32[N,K].

        ``scores`` are logarithms of probabilities, to which ``more`` f32[N,1] is added for those
        among what might follow.
        """
        found = [
            Beam((*one.tokens, token), one.score + score, one.logprob + score + extra, place)
            for place, one in enumerate(self.running)
            for extra in more[place].tolist()
            for token, score in zip(tokens[place].tolist(), scores[place].tolist(), strict=True)
            if score > -math.inf
        ]
        best = sorted(found, key=lambda one: -one.score)[: 2 * self.size]
        ended = [one.tokens[-1] == self.end or len(one.tokens) >= self.longest for one in best]
        for one, over in zip(best[: self.size], ended, strict=False):
            if over:
                self.whole.append((one.score / len(one.tokens), one))
        self.whole = sorted(self.whole, key=lambda row: -row[0])[: self.size]
        self.running = [one for one, over in zip(best, ended, strict=True) if not over][: self.size]
        self.done = not self.running or self._decided()

    def _decided(self) -> bool:
        if len(self.whole) < self.size:
            return False
        first = self.running[0]
        return first.score / len(first.tokens) <= self.whole[-1][0]

    @property
    def rows(self) -> Sequence[Beam]:
        """The running texts, ``size`` of them: where there are fewer the first stands again."""
        given = self.running or [Beam((self.end,))]
        return [*given, *[given[0]] * (self.size - len(given))]

    @property
    def best(self) -> Beam:
        """The best text."""
        return self.whole[0][1]
