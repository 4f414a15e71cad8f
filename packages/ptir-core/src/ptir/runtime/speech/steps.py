"""The captured steps of a model of speech: hearing a window, its prompt, a token after another."""

from __future__ import annotations

import math
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


class SpeechSteps:
    """A bound model's steps for one window at a time.

    ``state`` are the decoder's own keys and values, which steps consume; ``source`` are those of
    what was heard, which stay. What may follow is said by ``never`` bool[V], the tokens that are
    not chosen, and ``bounds`` i32[3] (``ptir.runtime.speech.stamps``).
    """

    def __init__(self, model: SpeechNetwork, tokens: SpeechTokens, cache_dtype: DType) -> None:
        self._model, self._tokens, self._cache_dtype = model, tokens, cache_dtype
        self.hear = jit(self._hear)
        self.begin = jit(self._begin, donate=("state",))
        self.advance = jit(self._advance, donate=("state",))

    @property
    def plans(self) -> tuple[Plan, ...]:
        """What was compiled so far."""
        return tuple(p for step in (self.hear, self.begin, self.advance) for p in step.plans)

    def _hear(self, features: Tensor) -> State:
        """Features f32[1,F,M] to ``source``, in the type of caches."""
        found = self._model(features)
        return tuple(tuple(one.astype(self._cache_dtype) for one in layer) for layer in found)

    def _begin(
        self,
        tokens: Tensor,
        state: State,
        source: State,
        count: Tensor,
        never: Tensor,
        bounds: Tensor,
        timestamps: bool,
    ) -> tuple[Any, ...]:
        """``count`` i32[1] tokens i32[1,P] of a prompt: see ``_advance``, and a last one.

        That is the logits f32[V] behind the first of them.
        """
        start = F.full((1,), 0, "i32")
        hidden, after = self._model.decoder.hidden(tokens, _joined(state, source), start, count)
        rows = F.concat([hidden[:, 0], last_rows(hidden, count)], 0)
        logits = self._model.decoder.logits(rows)
        chosen = self._chosen(logits[1:], never, bounds, timestamps)
        return (*chosen, _own(after), count, logits[0])

    def _advance(
        self,
        token: Tensor,
        state: State,
        source: State,
        start: Tensor,
        never: Tensor,
        bounds: Tensor,
        timestamps: bool,
    ) -> tuple[Any, ...]:
        """The next token i32[1], the logarithm of its probability f32[1], the states, ``start``."""
        count = F.full((1,), 1, "i32")
        given = _joined(state, source)
        logits, after = self._model.decoder(token.reshape(1, 1), given, start, count)
        return (*self._chosen(logits, never, bounds, timestamps), _own(after), start + 1)

    def _chosen(
        self, logits: Tensor, never: Tensor, bounds: Tensor, timestamps: bool
    ) -> tuple[Tensor, Tensor]:
        """The likeliest of the tokens that may follow, of logits f32[1,V].

        With ``timestamps`` it is one of these where together they are likelier than every other.
        """
        number = F.arange(self._tokens.size)
        is_time = number >= self._tokens.first_stamp
        text, low, high = (bounds[n] for n in range(3))
        may = F.where(is_time, (number >= low) & (number < high), number >= text)
        logits = F.where(may & ~never, logits, -math.inf)
        if timestamps:
            times = _log_sum(F.where(is_time, logits, -math.inf))
            most = F.where(is_time, -math.inf, logits).max(axis=-1, keepdims=True)
            logits = F.where((times > most) & ~is_time, -math.inf, logits)
        best = logits.max(axis=-1, keepdims=True)
        return logits.argmax(1), (best - _log_sum(logits)).reshape(1)


def _log_sum(logits: Tensor) -> Tensor:
    """The logarithm of the sum of exponentials, f32[1,V] to f32[1,1]; of nothing -inf."""
    most = logits.max(axis=-1, keepdims=True)
    most = F.where(most > -math.inf, most, 0.0)
    return F.log(F.exp(logits - most).sum(axis=-1, keepdims=True)) + most


def _joined(state: State, source: State) -> State:
    return tuple((*own, *heard) for own, heard in zip(state, source, strict=True))


def _own(state: State) -> State:
    return tuple(layer[:2] for layer in state)
