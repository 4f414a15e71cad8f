"""From what was heard to tokens: several windows at once, one token after another or by beams."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from ptir.capture import Tensor, tensor
from ptir.nn.state import State
from ptir.runtime.draws import Draws
from ptir.runtime.finite import check_numbers
from ptir.runtime.speech.beams import Beams
from ptir.runtime.speech.options import Heard
from ptir.runtime.speech.stamps import bounds, unbound
from ptir.runtime.speech.steps import Draw, SpeechSteps

if TYPE_CHECKING:
    from ptir.runtime.speech.speech_model import SpeechModel

ANOTHER: Final = 48
"""The bit of a seed by which the texts that are drawn of one window differ."""
PROMPT: Final = 4
"""Tokens of a short prompt: the start, a language, a task, no timestamps; others are filled up."""

Array = np.ndarray[Any, Any]


class Alignment(NamedTuple):
    """How much tokens, and the end behind them, attend to positions: f32[heads, T + 1, S].

    And how probable each token is among those of text, f32[T].
    """

    weights: Array
    probabilities: Array


@dataclass(frozen=True)
class Manner:
    """How the tokens of windows are chosen: see ``SpeechOptions``.

    A text has at most ``longest`` tokens, or as many as there is room for.
    """

    timestamps: bool
    temperature: float = 0.0
    beams: int = 1
    longest: int | None = None
    best_of: int = 1


class Decoder:
    """The decoding of a model's windows."""

    def __init__(self, model: SpeechModel) -> None:
        self._model = model
        self.steps = SpeechSteps(model.module, model.tokens, model.context, model.cache_dtype)
        self._kept: State | None = None

    def hear(self, features: Sequence[Array], rows: int) -> State:
        """What the decoder attends to of the first window of each recording's features.

        They are filled up with zeros, and with empty windows up to ``rows``.
        """
        settings = self._model.settings
        windows = np.zeros((rows, settings.frames, settings.mels), np.float32)
        for window, given in zip(windows, features, strict=False):
            part = given[: settings.frames]
            window[: len(part)] = part
        with self._model.policies():
            found: State = self.steps.hear(self._tensor(windows))
        return found

    def pick(self, source: State, windows: Sequence[int]) -> State:
        """What was heard of some windows of ``source``, filled up to a power of two of them."""
        rows = source[0][0].shape[0]
        count = min(rows, 1 << (len(windows) - 1).bit_length())
        places = [*windows, *[windows[0]] * (count - len(windows))]
        if places == [*range(rows)]:
            return source
        with self._model.policies():
            found: State = self.steps.pick(source, self._tensor(np.array(places, np.int32)))
        return found

    def languages(self, source: State) -> list[dict[str, float]]:
        """The probability of each language in each window, the likeliest first."""
        tokens, rows = self._model.tokens, source[0][0].shape[0]
        logits = self._begin(source, [(tokens.start,)] * rows, Manner(timestamps=True), None)[-1]
        found = logits[:, [*tokens.languages.values()]]
        weights = np.exp(found - found.max(axis=1, keepdims=True))
        shares = (weights / weights.sum(axis=1, keepdims=True)).tolist()
        named = [zip(tokens.languages, row, strict=True) for row in shares]
        return [dict(sorted(row, key=lambda one: -one[1])) for row in named]

    def alignment(
        self, source: State, window: int, prompt: Sequence[int], said: Sequence[int]
    ) -> Alignment:
        """What T tokens of text have to do with a window of ``source``.

        Heads are the model's ``alignment_heads``. Each token's row is that of the one before, which
        the model answers with it.
        """
        model = self._model
        tokens = [*prompt, *said]
        ids = np.zeros((1, prompt_width(len(tokens), model.context)), np.int32)
        ids[0, : len(tokens)] = tokens
        with model.policies():
            found = self.steps.align(
                self._tensor(ids),
                self.pick(source, [window]),
                self._tensor(np.array([len(tokens)], np.int32)),
                model.alignment_heads,
            )
        first, last = len(prompt) - 1, len(tokens)
        made = Alignment(found[0].numpy()[0, :, first:last], found[1].numpy()[0, first : last - 1])
        for array in made:
            check_numbers(array, f"{model.name}: attention", model.checkpoint.source)
        return made

    def decode(
        self,
        source: State,
        prompts: Sequence[Sequence[int]],
        manner: Manner,
        seeds: Sequence[int] = (),
    ) -> list[Heard]:
        """What is said in the first windows of ``source``, for each prompt.

        ``seeds``, one for each, are those of the tokens that a temperature draws.
        """
        rows = source[0][0].shape[0]
        filled = [*prompts, *[prompts[0]] * (rows - len(prompts))]
        if manner.temperature:
            every = [*seeds, *[0] * (rows - len(seeds))]
            return self._drawn(source, filled, manner, every)[: len(prompts)]
        by = self._by_beams if manner.beams > 1 else self._one_by_one
        return by(source, filled, manner, None)[: len(prompts)]

    def rehearse(self, source: State, count: int, manner: Manner) -> float:
        """Run a prompt and ``count`` further tokens of every window, whatever they are.

        Gives the seconds of these tokens.
        """
        rows, prompt = source[0][0].shape[0], self._model.tokens.usual(timestamps=manner.timestamps)
        draws = Draws([0] * rows) if manner.temperature else None
        chosen, start, _ = self._begin(source, [prompt] * rows, manner, draws)
        chosen[0].numpy()
        began = time.perf_counter()
        for _ in range(count):
            chosen, start = self._advance(chosen[0], source, start, [()] * rows, manner, draws)
            chosen[0].numpy()
        return time.perf_counter() - began

    def prompting(self, source: State, prompt: Sequence[int]) -> Callable[[], object]:
        """What runs a prompt in every window of ``source``, as often as it is called."""
        manner, prompts = Manner(timestamps=True), [prompt] * source[0][0].shape[0]
        return lambda: self._begin(source, prompts, manner, None)

    def stepping(self, source: State, prompt: Sequence[int]) -> Callable[[], object]:
        """What runs a token behind a prompt in every window, again and again the same one."""
        manner, rows = Manner(timestamps=True), source[0][0].shape[0]
        chosen, start, _ = self._begin(source, [prompt] * rows, manner, None)
        return lambda: self._advance(chosen[0], source, start, [()] * rows, manner, None)

    def _drawn(
        self, source: State, prompts: Sequence[Sequence[int]], manner: Manner, seeds: Sequence[int]
    ) -> list[Heard]:
        """Of several texts that are drawn of each window the likeliest, token by token."""
        each = range(manner.best_of)
        draws = Draws([(one + (n << ANOTHER)) % 2**64 for one in seeds for n in each])
        every = [prompt for prompt in prompts for _ in each]
        found = iter(self._one_by_one(source, every, manner, draws))
        return [max((next(found) for _ in each), key=lambda one: one.avg_logprob) for _ in prompts]

    def _one_by_one(
        self, source: State, prompts: Sequence[Sequence[int]], manner: Manner, draws: Draws | None
    ) -> list[Heard]:
        (tokens, logprobs), start, behind = self._begin(source, prompts, manner, draws)
        texts = [_Text(self._room(prompt, manner)) for prompt in prompts]
        end = self._model.tokens.end
        while True:
            given = zip(texts, tokens.numpy().tolist(), logprobs.numpy().tolist(), strict=True)
            for text, token, logprob in given:
                text.take(token, logprob, end)
            if all(text.done for text in texts):
                break
            said = [text.said for text in texts]
            (tokens, logprobs), start = self._advance(tokens, source, start, said, manner, draws)
        silences = self._no_speech(behind)
        return [
            Heard(tuple(text.said), text.mean, silence, manner.temperature)
            for text, silence in zip(texts, silences, strict=True)
        ]

    def _by_beams(
        self, source: State, prompts: Sequence[Sequence[int]], manner: Manner, draws: Draws | None
    ) -> list[Heard]:
        size, end = manner.beams, self._model.tokens.end
        chosen, _, behind = self._begin(source, prompts, manner, draws)
        windows = [Beams(size, end, self._room(prompt, manner)) for prompt in prompts]
        start = self._tensor(np.repeat(np.array([len(p) for p in prompts], np.int32), size))
        count = 1
        while True:
            arrays = [one.numpy() for one in chosen]
            for number, beams in enumerate(windows):
                if not beams.done:
                    beams.step(*(one[number * count : (number + 1) * count] for one in arrays))
            if all(beams.done for beams in windows):
                break
            rows = [one for beams in windows for one in beams.rows]
            self._reorder([n // size * count + one.origin for n, one in enumerate(rows)])
            tokens = self._tensor(np.array([one.tokens[-1] for one in rows], np.int32))
            said = [one.tokens for one in rows]
            chosen, start = self._advance(tokens, source, start, said, manner, draws)
            count = size
        found = [beams.best for beams in windows]
        return [
            Heard(
                best.tokens[:-1] if best.tokens[-1] == end else best.tokens,
                best.logprob / len(best.tokens),
                silence,
            )
            for best, silence in zip(found, self._no_speech(behind), strict=True)
        ]

    def _room(self, prompt: Sequence[int], manner: Manner) -> int:
        """How many tokens may follow a prompt."""
        room = self._model.context - len(prompt)
        return room if manner.longest is None else min(room, manner.longest)

    def _begin(
        self,
        source: State,
        prompts: Sequence[Sequence[int]],
        manner: Manner,
        draws: Draws | None,
    ) -> tuple[Any, Tensor, Array]:
        """What is chosen behind prompts, their lengths, and logits behind their start tokens."""
        model = self._model
        longest = max(map(len, prompts))
        ids = np.zeros((len(prompts), prompt_width(longest, model.context)), np.int32)
        for row, prompt in zip(ids, prompts, strict=True):
            row[: len(prompt)] = prompt
        count = self._tensor(np.array([len(prompt) for prompt in prompts], np.int32))
        marks = [[*prompt].index(model.tokens.start) for prompt in prompts]
        allowed = self._bounds([()] * len(prompts), manner)
        with model.policies():
            chosen, self._kept, start, behind = self.steps.begin(
                self._tensor(ids),
                self._take_state(len(prompts)),
                source,
                self._tensor(np.array(marks, np.int32)),
                count,
                self._never[0],
                allowed,
                self._draw(draws, manner),
                manner.timestamps,
                manner.beams,
            )
        logits = behind.numpy().astype(np.float64)
        check_numbers(logits, f"{model.name}: the logits", model.checkpoint.source)
        return chosen, start, logits

    def _advance(
        self,
        tokens: Tensor,
        source: State,
        start: Tensor,
        said: Sequence[Sequence[int]],
        manner: Manner,
        draws: Draws | None,
    ) -> tuple[Any, Tensor]:
        state, self._kept = self._kept, None
        assert state is not None
        with self._model.policies():
            chosen, self._kept, start = self.steps.advance(
                tokens,
                state,
                source,
                start,
                self._never[1],
                self._bounds(said, manner),
                self._draw(draws, manner),
                manner.timestamps,
                manner.beams,
            )
        return chosen, start

    def _reorder(self, rows: Sequence[int]) -> None:
        """Give each text the keys and values of the one that it goes on from."""
        assert self._kept is not None
        if [*rows] != [*range(self._kept[0][0].shape[0])]:
            with self._model.policies():
                self._kept = self.steps.pick(self._kept, self._tensor(np.array(rows, np.int32)))

    def _take_state(self, rows: int) -> State:
        """The decoder's own keys and values: those of before, of which nothing is read again."""
        state, self._kept = self._kept, None
        if state is not None and state[0][0].shape[0] == rows:
            return state
        model = self._model
        types = (
            layer.own.types(rows, model.context, model.cache_dtype)
            for layer in model.decoder_states
        )
        return tuple(
            tuple(self._tensor(np.zeros(one.shape, one.dtype.numpy)) for one in layer)
            for layer in types
        )

    def _bounds(self, said: Sequence[Sequence[int]], manner: Manner) -> Tensor:
        tokens = self._model.tokens
        found = [bounds(one, tokens) if manner.timestamps else unbound(tokens) for one in said]
        return self._tensor(np.array(found, np.int32))

    def _draw(self, draws: Draws | None, manner: Manner) -> Draw:
        if draws is None:
            return None
        uniform = draws.take(1)[0]
        heat = np.full(uniform.shape, manner.temperature, np.float32)
        return self._tensor(heat), self._tensor(uniform)

    @cached_property
    def _never(self) -> tuple[Tensor, Tensor]:
        """Which tokens are not chosen as a window's first one, and later."""
        tokens = self._model.tokens
        never = np.zeros((2, tokens.size), np.bool_)
        never[:, [*tokens.suppressed]] = True
        never[0, [*tokens.suppressed_first]] = True
        return self._tensor(never[0]), self._tensor(never[1])

    def _no_speech(self, logits: Array) -> list[float]:
        weights = np.exp(logits - logits.max(axis=1, keepdims=True))
        found: list[float] = (
            weights[:, self._model.tokens.no_speech] / weights.sum(axis=1)
        ).tolist()
        return found

    def _tensor(self, array: Array) -> Tensor:
        return tensor(array, backend=self._model.target)


class _Text:
    """A row's tokens so far, at most ``longest`` of them."""

    def __init__(self, longest: int) -> None:
        self.said = list[int]()
        self.done = False
        self._longest, self._total, self._count = longest, 0.0, 0

    def take(self, token: int, logprob: float, end: int) -> None:
        """The next one, unless the text is over: then it is nobody's."""
        if self.done:
            return
        self._total, self._count = self._total + logprob, self._count + 1
        if token != end:
            self.said.append(token)
        self.done = token == end or self._count >= self._longest

    @property
    def mean(self) -> float:
        return self._total / max(1, self._count)


def prompt_width(longest: int, context: int) -> int:
    """How many tokens a prompt is filled up to."""
    return [*prompt_widths(longest, context)][-1]


def prompt_widths(longest: int, context: int) -> Iterator[int]:
    """What prompts of up to so many tokens are filled up to: few widths, each is a program."""
    width = PROMPT
    yield min(width, context)
    while width < min(longest, context):
        width *= 2
        yield min(width, context)
