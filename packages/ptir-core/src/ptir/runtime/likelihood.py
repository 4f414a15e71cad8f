"""Perplexity of a text: how likely a model finds each of its tokens behind those before.

A text is longer than a context, so it is cut into windows, and which of their tokens count is the
definition. Two are in use, and here both: ``halves`` is llama.cpp's, ``sliding`` that of the
documentation of Transformers (perplexity of fixed-length models).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import numpy as np

from ptir import functional as F
from ptir.capture.creation import tensor
from ptir.capture.jit import jit
from ptir.errors import DeviceError, UsageError
from ptir.runtime.session import Progress, capacity_for
from ptir.runtime.steps import chunk_sizes

if TYPE_CHECKING:
    from ptir.capture.tensor import Tensor
    from ptir.nn.state import State
    from ptir.runtime.handle import Model

Array = np.ndarray[Any, Any]
Likelihoods: TypeAlias = Callable[[Sequence[int]], Array]
"""The log likelihoods f64[T - 1] of the second of T tokens and those behind."""
WINDOW: Final = 512
"""The tokens of a window where nobody says another number and the context has room for them."""


class TextWindow(NamedTuple):
    """Tokens ``start`` to ``end`` of a text, of which those from ``first`` on count."""

    start: int
    first: int
    end: int


def halves(count: int, size: int) -> Iterator[TextWindow]:
    """Windows side by side; of each the tokens behind the one in the middle count.

    What is left at the end of ``count`` tokens and fills no window is not looked at.
    """
    for start in range(0, count - size + 1, size):
        yield TextWindow(start, start + size // 2 + 1, start + size)


def sliding(count: int, size: int, stride: int) -> Iterator[TextWindow]:
    """Windows that begin ``stride`` tokens apart; tokens that no window before had count.

    So every token but the first counts once; where windows do not overlap, their first ones have
    nothing before them and do not count. The last window ends where the text does.
    """
    known = 1
    for start in range(0, count, stride):
        end = min(start + size, count)
        yield TextWindow(start, max(known, start + 1), end)
        if end == count:
            return
        known = end


@dataclass(frozen=True)
class Perplexity:
    """What was measured: ``nll`` is the mean negative log likelihood of a token, in nats.

    ``standard_error`` is that of this mean, None for a single token. ``counted`` of the text's
    ``text_tokens`` tokens are in the mean; ``evaluated`` were computed in ``seconds``, which
    contain the building of kernels. ``stride`` is None where halves of windows count.
    """

    window: int
    stride: int | None
    windows: int
    text_tokens: int
    counted: int
    evaluated: int
    nll: float
    standard_error: float | None
    seconds: float

    @property
    def perplexity(self) -> float:
        """The exponential of ``nll``: as many equally likely tokens are as hard to choose from."""
        try:
            return math.exp(self.nll)
        except OverflowError:
            return math.inf

    @property
    def perplexity_error(self) -> float | None:
        """How far off the perplexity is when its logarithm is off by its standard error."""
        return None if self.standard_error is None else self.perplexity * self.standard_error

    @property
    def tokens_per_second(self) -> float:
        """Evaluated tokens in a second."""
        return self.evaluated / self.seconds


def perplexity(
    model: Model,
    text: str | Sequence[int],
    *,
    window: int | None = None,
    stride: int | None = None,
    progress: Progress | None = None,
) -> Perplexity:
    """The perplexity of a text, or of token ids, under a model.

    Without ``stride`` windows lie side by side, tokens of second halves count, and where the
    tokenizer begins texts with a token of its own, so does every window: llama.cpp's definition.
    With ``stride`` windows begin so many tokens apart and what no window before had counts: that
    of Transformers. ``window`` is 512, or the context where that is smaller. Raises
    ``UsageError`` for a text that is too short and for numbers that do not fit the context,
    ``DeviceError`` where a likelihood is not a number.
    """

    def ours(size: int) -> Likelihoods:
        return Scores(model, size).of

    return perplexity_by(ours, model, text, window, stride, progress)


def perplexity_by(
    scorer: Callable[[int], Likelihoods],
    model: Model,
    text: str | Sequence[int],
    window: int | None = None,
    stride: int | None = None,
    progress: Progress | None = None,
) -> Perplexity:
    """The same by what ``scorer`` makes for windows of so many tokens, which ``model`` cuts."""
    size = _checked_window(model, window, stride)
    if isinstance(text, str):
        _require_tokenizer(model)
    ids = model.encode(text)
    if len(ids) < 2:
        raise UsageError(f"the text has {len(ids)} token(s); a perplexity needs two at least")
    if stride is None:
        if len(ids) < size:
            raise UsageError(
                f"the text has {len(ids)} tokens, which fill no window of {size}: give a longer"
                " text, --window N with fewer, or --stride N, which counts shorter texts too"
            )
        chosen = list(halves(len(ids), size))
        first = _first_token(model) if isinstance(text, str) else None
    else:
        chosen, first = list(sliding(len(ids), size, stride)), None
    began = time.perf_counter()
    found = np.concatenate(list(_likelihoods(scorer(size), ids, chosen, first, progress)))
    lost = np.flatnonzero(~np.isfinite(found))
    if lost.size:
        raise DeviceError(
            f"{model.name}: the log likelihood of counted token {lost[0]} is {found[lost[0]]}:"
            " numbers left the range of their type; try --dtype f32 or another backend"
        )
    error = None if found.size < 2 else float(found.std(ddof=1)) / math.sqrt(found.size)
    return Perplexity(
        window=size,
        stride=stride,
        windows=len(chosen),
        text_tokens=len(ids),
        counted=found.size,
        evaluated=sum(one.end - one.start for one in chosen),
        nll=-float(found.mean()),
        standard_error=error,
        seconds=time.perf_counter() - began,
    )


def _checked_window(model: Model, window: int | None, stride: int | None) -> int:
    size = min(WINDOW, model.context) if window is None else window
    least = 3 if stride is None else 2
    if not least <= size <= model.context:
        raise UsageError(
            f"window {size}: must be from {least} to the context of {model.context} tokens"
        )
    if stride is not None and not 0 < stride <= size:
        raise UsageError(f"stride {stride}: must be from 1 to the window of {size} tokens")
    return size


def _require_tokenizer(model: Model) -> None:
    if model.tokenizer is None:
        lack = model.text.loaded.lack
        why = f" ({lack})" if lack else ""
        raise UsageError(
            f"model {model.name!r} has no tokenizer{why}; a text needs one: put the model's"
            " tokenizer.json beside it, or give token ids in Python"
        )


def _first_token(model: Model) -> int | None:
    """What the tokenizer begins every text with, if anything."""
    assert model.tokenizer is not None  # a text was encoded
    one, other = model.tokenizer.encode("a"), model.tokenizer.encode("b")
    bare = model.tokenizer.encode("a", add_special_tokens=False)
    return one[0] if one[:1] == other[:1] and one[0] != bare[0] else None


def _likelihoods(
    scores: Likelihoods,
    ids: Sequence[int],
    windows: Sequence[TextWindow],
    first: int | None,
    progress: Progress | None,
) -> Iterator[Array]:
    """The log likelihoods f64 of the tokens of every window that count."""
    for number, window in enumerate(windows, 1):
        tokens = list(ids[window.start : window.end])
        if first is not None:
            tokens[0] = first
        yield scores(tokens)[window.first - window.start - 1 :]
        if progress:
            progress(number, len(windows))


class Scores:
    """Log likelihoods of tokens behind those before, for texts of at most ``size`` tokens.

    A text goes through the model in chunks, so that logits of a whole one need never be held.
    """

    def __init__(self, model: Model, size: int) -> None:
        self._model = model
        capacity = capacity_for(size, model.context)
        self._types = model.state_types(1, capacity, swa_full=True)
        self._score: Callable[..., Any] = jit(self._scored, donate=("state",))

    def of(self, tokens: Sequence[int]) -> Array:
        """Log likelihoods f64[count - 1] of the second token and those behind."""
        following, done = [*tokens[1:], 0], 0
        state = tuple(
            tuple(self._tensor(np.zeros(one.shape, one.dtype.numpy)) for one in types)
            for types in self._types
        )
        found: list[Array] = []
        with self._model.policies():
            for size, real in chunk_sizes(len(tokens)):
                part = slice(done, done + real)
                given = (_padded(one[part], size) for one in (tokens, following))
                tensors = [self._tensor(one) for one in given]
                start, count = (self._tensor(np.full(1, n, np.int32)) for n in (done, real))
                scored, state = self._score(*tensors, state, start, count)
                found.append(scored.numpy()[0, :real].astype(np.float64))
                done += real
        return np.concatenate(found)[:-1]

    def _scored(
        self, tokens: Tensor, following: Tensor, state: State, start: Tensor, count: Tensor
    ) -> tuple[Tensor, State]:
        logits, state = self._model.module(tokens, state, start, count, every=True)
        shifted = logits - logits.max(-1, keepdims=True)
        chosen = F.take_along_axis(shifted, following.reshape(1, -1, 1), axis=-1)
        return chosen.reshape(1, -1) - F.log(F.exp(shifted).sum(-1)), state

    def _tensor(self, array: Array) -> Tensor:
        return tensor(array, backend=self._model.target)


def _padded(ids: Sequence[int], size: int) -> Array:
    found = np.zeros((1, size), np.int32)
    found[0, : len(ids)] = ids
    return found
