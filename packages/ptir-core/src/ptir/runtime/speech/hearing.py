"""Recordings under way: which windows come next, what was said before them, their segments."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ptir.errors import PtirError
from ptir.models.whisper import SHRINKS
from ptir.nn.state import State
from ptir.runtime.speech.alignment import median_width, token_positions
from ptir.runtime.speech.decoding import Alignment, Manner
from ptir.runtime.speech.options import FORGETS_ABOVE, Heard, SpeechOptions, compression_ratio
from ptir.runtime.speech.stamps import Part, parts, untimed
from ptir.runtime.speech.transcript import SpeechSegment, SpeechWord, TranscriptRun
from ptir.runtime.speech.words import words as words_of

if TYPE_CHECKING:
    from ptir.runtime.speech.speech_model import SpeechModel

Array = np.ndarray[Any, Any]
Aligned = Callable[[Sequence[int]], Alignment]


@dataclass
class Hearing:
    """One recording: the windows of its ``features`` f32[frames, mels] that are still to be heard.

    ``said`` are its frames, without those that fill up; the next window begins at ``place``.
    """

    model: SpeechModel
    options: SpeechOptions
    run: TranscriptRun
    features: Array
    said: int
    words: tuple[int, ...] = ()
    """Tokens of the prompt that stands before every window."""
    place: int = 0
    before: list[int] = field(default_factory=list[int])
    """Tokens of the text that the next window goes on from."""
    queue: deque[SpeechSegment] = field(default_factory=deque[SpeechSegment])

    @property
    def done(self) -> bool:
        """Whether no window is left."""
        return self.place >= self.said

    def windows(self, room: int) -> list[Window]:
        """The next windows, ``room`` at most; one where the next depends on what is said in it."""
        frames = self.model.settings.frames
        count = 1 if self.options.follows else room
        places = range(self.place, self.said, frames)[: min(count, room)]
        return [Window(self, place) for place in places]

    def prompt(self) -> list[int]:
        """What the decoder is given before a window's tokens."""
        tokens, options = self.model.tokens, self.options
        room = tokens.room(self.model.context) - len(self.words)
        past = self.before[-room:] if room > 0 and options.condition_on_previous_text else []
        before = [*self.words, *past]
        marks = self.marks(timestamps=options.timestamps)
        return [*([tokens.previous] if before else []), *before, *marks]

    def marks(self, *, timestamps: bool) -> list[int]:
        """The start of a window's text."""
        task = self.options.task
        return self.model.tokens.prompt(self.run.language, task, timestamps=timestamps)

    def take(self, place: int, heard: Heard, aligned: Aligned) -> None:
        """Queue the segments of the window at ``place``, and say where the next one begins.

        ``aligned`` tells where tokens of text were said, see ``Decoder.alignment``.
        """
        settings, options = self.model.settings, self.options
        self.place = place + settings.frames
        if options.silent(heard):
            return
        found, done = (parts if options.timestamps else untimed)(heard.tokens, self.model.tokens)
        self.place = place + (done or settings.frames)
        left = min(settings.frames, self.said - place)
        spoken = self._words(found, place, left, aligned)
        for part, words in zip(found, spoken, strict=True):
            segment = self._segment(part, place, left, heard, words)
            if segment.text.strip():
                self.queue.append(segment)
        said = [token for part in found for token in part.tokens]
        self.before = [*self.before, *said] if heard.temperature <= FORGETS_ABOVE else []

    def _words(
        self, found: Sequence[Part], place: int, left: int, aligned: Aligned
    ) -> list[tuple[SpeechWord, ...]]:
        """When the words of each part were said, if that is asked for."""
        texts = [[one for one in part.tokens if one < self.model.tokens.end] for part in found]
        said = [token for text in texts for token in text]
        if not (self.options.word_timestamps and said):
            return [()] * len(found)
        alignment = aligned(said)
        weights, shares = alignment.weights[..., : -(-left // SHRINKS)], alignment.probabilities
        width = median_width(self.model.checkpoint.config)
        settings = self.model.settings
        frames = place + SHRINKS * token_positions(weights, width)
        times = [round(frame * settings.hop / settings.rate, 3) for frame in frames.tolist()]
        spoken, first = list[tuple[SpeechWord, ...]](), 0
        for text in texts:
            row = list[SpeechWord]()
            for word in words_of(text, self.model.text_of, self.run.language):
                last = first + word.count
                mean = float(shares[first:last].mean())
                row.append(SpeechWord(times[first], times[last], word.text, mean))
                first = last
            spoken.append(tuple(row))
        return spoken

    def _segment(
        self, part: Part, place: int, left: int, heard: Heard, words: tuple[SpeechWord, ...]
    ) -> SpeechSegment:
        settings = self.model.settings
        step = settings.hop / settings.rate
        ratio = settings.frames // self.model.module.config.source
        start = place + part.start * ratio
        end = place + (left if part.end is None else part.end * ratio)
        return SpeechSegment(
            start=round(start * step, 3),
            end=round(max(end, start) * step, 3),
            text=self.model.text_of(part.tokens),
            tokens=part.tokens,
            temperature=heard.temperature,
            avg_logprob=heard.avg_logprob,
            compression_ratio=heard.compression_ratio,
            no_speech_prob=heard.no_speech_prob,
            words=words,
        )


@dataclass(frozen=True)
class Window:
    """The window of a recording that begins at a frame."""

    hearing: Hearing
    place: int

    @property
    def features(self) -> Array:
        """Its features, and those behind it."""
        return self.hearing.features[self.place :]


class Hearings:
    """Recordings that are heard together, ``batch`` windows at once.

    The first is opened, by ``waiting``, at once, another when there is room for a window of it. One
    that cannot be opened then is told to who asks for its own segments, not to the others.
    """

    def __init__(
        self, model: SpeechModel, waiting: Sequence[Callable[[], Hearing]], batch: int
    ) -> None:
        self._model, self._batch = model, batch
        self._waiting = deque(enumerate(waiting))
        self._open = dict[int, Hearing]()
        self._refused = dict[int, PtirError]()
        if self._waiting:
            self._admit()

    def segments(self, number: int) -> Iterator[SpeechSegment]:
        """The segments of a recording, as soon as they are certain."""
        while True:
            if number in self._refused:
                raise self._refused[number]
            hearing = self._open.get(number)
            while hearing is not None and hearing.queue:
                yield hearing.queue.popleft()
            if hearing is not None and hearing.done:
                return
            self._step()

    def _step(self) -> None:
        """Hear the next windows."""
        windows = list[Window]()
        for hearing in self._open.values():
            windows += hearing.windows(self._batch - len(windows))
        while self._waiting and len(windows) < self._batch:
            number = self._waiting[0][0]
            try:
                windows += self._admit().windows(self._batch - len(windows))
            except PtirError as error:
                self._refused[number] = error
        if windows:
            self._hear(windows)

    def _hear(self, windows: Sequence[Window]) -> None:
        """Hear windows together, and give each recording what is said in its own."""
        rows = min(self._batch, 1 << (len(windows) - 1).bit_length())
        source = self._model.decoder.hear([window.features for window in windows], rows)
        self._tell_languages(windows, source)
        for number, heard in enumerate(self._heard(windows, source)):
            window = windows[number]
            prompt = window.hearing.marks(timestamps=False)
            aligned = partial(self._model.decoder.alignment, source, number, prompt)
            window.hearing.take(window.place, heard, aligned)
            if window.hearing.done:
                window.hearing.features = np.zeros((0, 0), np.float32)  # hours of sound are large

    def _admit(self) -> Hearing:
        """Open the next recording."""
        number, opened = self._waiting.popleft()
        self._open[number] = found = opened()
        return found

    def _tell_languages(self, windows: Sequence[Window], source: State) -> None:
        unknown = [n for n, w in enumerate(windows) if w.hearing.run.language is None]
        if not unknown or not self._model.tokens.languages:
            return
        found = self._model.decoder.languages(source)
        for number in reversed(unknown):  # the first window of a recording tells its language
            windows[number].hearing.run.language = next(iter(found[number]))

    def _heard(self, windows: Sequence[Window], source: State) -> list[Heard]:
        """What is said in each window, at the first temperature whose answer is believed."""
        options = windows[0].hearing.options
        prompts = [window.hearing.prompt() for window in windows]
        found = dict[int, Heard]()
        asked = [*range(len(windows))]
        for attempt, temperature in enumerate(options.temperatures):
            beams = options.beams if temperature == 0 else 1
            heard = self._model.decoder.decode(
                source if attempt == 0 else self._model.decoder.pick(source, asked),
                [prompts[n] for n in asked],
                Manner(options.timestamps, float(temperature), beams, best_of=options.best_of),
                [_seed(options.seed, windows[n].place, attempt) for n in asked],
            )
            found.update(zip(asked, map(self._rated, heard), strict=True))
            asked = [n for n in asked if options.doubts(found[n])]
            if not asked:
                break
        return [found[n] for n in range(len(windows))]

    def _rated(self, heard: Heard) -> Heard:
        return replace(
            heard, compression_ratio=compression_ratio(self._model.text_of(heard.tokens))
        )


def _seed(seed: int, place: int, attempt: int) -> int:
    """That of a window's draws: neither its place in a batch nor its recording matters."""
    return (seed + (place << 8) + attempt) % 2**64
