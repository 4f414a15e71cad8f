"""The captured steps of a model of speech: hearing windows, prompts, a token after another."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ptir import functional as F
from ptir.capture.jit import jit
from ptir.capture.plan import Plan
from ptir.capture.tensor import Tensor
from ptir.models.table import SpeechNetwork
from ptir.nn import last_rows
from ptir.nn.state import State
from ptir.runtime.speech.tokens import SpeechTokens
from ptir.types import DType

Draw = tuple[Tensor, Tensor] | None
"""A temperature and a number in [0, 1) for each row, both f32[R]; None takes the likeliest."""


class SpeechSteps:
    """A bound model's steps for R rows, each a text of one of W windows, R / W rows for each.

    ``state`` are the decoder's own keys and values of the rows, which steps consume; ``source`` are
    those of what was heard, which stay. What may follow is said by ``never`` bool[V], the tokens
    that are not chosen, and ``bounds`` i32[R,3] (``ptir.runtime.speech.stamps``).
    """

    def __init__(
        self, model: SpeechNetwork, tokens: SpeechTokens, context: int, cache_dtype: DType
    ) -> None:
        self._model, self._tokens, self._cache_dtype = model, tokens, cache_dtype
        self._last = context - 1
        self._states: tuple[Any, ...] = model.decoder.states()
        self.hear = jit(self._hear)
        self.begin = jit(self._begin, donate=("state",))
        self.advance = jit(self._advance, donate=("state",))
        self.pick = jit(_picked)
        self.align = jit(self._align)

    @property
    def plans(self) -> tuple[Plan, ...]:
        """What was compiled so far."""
        steps = (self.hear, self.align, self.pick, self.begin, self.advance)
        return tuple(plan for step in steps for plan in step.plans)

    def _hear(self, features: Tensor) -> State:
        """Features f32[W,F,M] to ``source``, in the type of caches."""
        found = self._model(features)
        return tuple(tuple(one.astype(self._cache_dtype) for one in layer) for layer in found)

    def _begin(
        self,
        tokens: Tensor,
        state: State,
        source: State,
        marks: Tensor,
        count: Tensor,
        never: Tensor,
        bounds: Tensor,
        draw: Draw,
        timestamps: bool,
        beams: int,
    ) -> tuple[Any, ...]:
        """Prompts, of which ``count`` i32[W] tokens of i32[W,P] are real: see ``_advance``.

        Behind what that returns come the logits f32[W,V] behind the tokens at ``marks`` i32[W].
        """
        rows = tokens.shape[0]
        start = F.full((rows,), 0, "i32")
        hidden, after = self._model.decoder.hidden(tokens, _joined(state, source), start, count)
        both = F.concat([last_rows(hidden, count), last_rows(hidden, marks + 1)], 0)
        logits = self._model.decoder.logits(both)
        chosen = self._chosen(logits[:rows], never, bounds, draw, timestamps, beams)
        return (chosen, _own(after), count, logits[rows:])

    def _advance(
        self,
        token: Tensor,
        state: State,
        source: State,
        start: Tensor,
        never: Tensor,
        bounds: Tensor,
        draw: Draw,
        timestamps: bool,
        beams: int,
    ) -> tuple[Any, ...]:
        """What was chosen behind the tokens i32[R], see ``_chosen``; the states, ``start``."""
        rows = token.shape[0]
        count = F.full((rows,), 1, "i32")
        given = _joined(state, source)
        logits, after = self._model.decoder(token.reshape(rows, 1), given, start, count)
        chosen = self._chosen(logits, never, bounds, draw, timestamps, beams)
        # rows that have ended stay at the last position until the others have
        return (chosen, _own(after), F.minimum(start + 1, self._last))

    def _align(
        self, tokens: Tensor, source: State, count: Tensor, heads: Sequence[tuple[int, int]]
    ) -> tuple[Tensor, Tensor]:
        """How much each of ``count`` i32[1] tokens i32[1,P] attends to each position.

        For N ``heads``, pairs of a layer and a head: f32[1,N,P,S]. And how probable the token
        behind each is, among those of text: f32[1,P].
        """
        types = (layer.own.types(1, tokens.shape[1]) for layer in self._states)
        own = tuple(tuple(F.full(one.shape, 0.0) for one in layer) for layer in types)
        given = _joined(own, source)
        weights, logits = self._model.alignment(tokens, given, count, heads)
        shares = F.softmax(logits[:, :, : self._tokens.end])
        behind = F.concat([tokens[:, 1:], tokens[:, :1]], 1)  # behind the last one is nothing
        found = F.take_along_axis(shares, behind.reshape(*behind.shape, 1))
        return weights, found.reshape(*behind.shape)

    def _chosen(
        self,
        logits: Tensor,
        never: Tensor,
        bounds: Tensor,
        draw: Draw,
        timestamps: bool,
        beams: int,
    ) -> tuple[Tensor, ...]:
        """Of the tokens that may follow, by logits f32[R,V], one: i32[R], its log probability.

        The likeliest, or one that is drawn. For ``beams`` > 1 the 2 ``beams`` likeliest, i32[R,K],
        the logarithms of their probabilities among all tokens, f32[R,K], and what is added to
        these, f32[R,1], for those among the tokens that may follow. With ``timestamps`` one of
        these follows where together they are likelier than every other.
        """
        may = self._allowed(logits, never, bounds, timestamps)
        if beams > 1:
            scores, tokens = F.top_k(may, 2 * beams)
            whole = _log_sum(logits)
            return tokens, scores - whole, whole - _log_sum(may)
        if draw is None:
            best = may.max(axis=-1, keepdims=True)
            return may.argmax(1), (best - _log_sum(may)).reshape(-1)
        heat, uniform = draw
        no_filter = F.full(heat.shape, 0, "i32"), F.full(heat.shape, 1.0), F.full(heat.shape, 0.0)
        token = F.sample(may, heat, *no_filter, uniform)
        taken = F.take_along_axis(may, token.reshape(-1, 1))
        return token, (taken - _log_sum(may)).reshape(-1)

    def _allowed(self, logits: Tensor, never: Tensor, bounds: Tensor, timestamps: bool) -> Tensor:
        """Logits f32[R,V], those of tokens that may not follow -inf."""
        number = F.arange(self._tokens.size)
        is_time = number >= self._tokens.first_stamp
        text, low, high = (bounds[:, n : n + 1] for n in range(3))
        may = F.where(is_time, (number >= low) & (number < high), number >= text)
        logits = F.where(may & ~never, logits, -math.inf)
        if not timestamps:
            return logits
        times = _log_sum(F.where(is_time, logits, -math.inf))
        most = F.where(is_time, -math.inf, logits).max(axis=-1, keepdims=True)
        return F.where((times > most) & ~is_time, -math.inf, logits)


def _picked(state: State, rows: Tensor) -> State:
    """The ``rows`` i32[N] of every tensor of a state."""
    places = rows.reshape(-1, 1)
    return tuple(tuple(F.gather(one, places, axes=(0,)) for one in layer) for layer in state)


def _log_sum(logits: Tensor) -> Tensor:
    """The logarithm of the sum of exponentials, f32[R,V] to f32[R,1]; of nothing -inf."""
    most = logits.max(axis=-1, keepdims=True)
    most = F.where(most > -math.inf, most, 0.0)
    return F.log(F.exp(logits - most).sum(axis=-1, keepdims=True)) + most


def _joined(state: State, source: State) -> State:
    return tuple((*own, *heard) for own, heard in zip(state, source, strict=True))


def _own(state: State) -> State:
    return tuple(layer[:2] for layer in state)
