"""``SpeechModel``: the handle of a model that writes down what is said in a recording."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NoReturn

import numpy as np

from ptir import functional as F
from ptir.audio import FeatureSettings, GivenAudio, LogMel, feature_settings, open_audio
from ptir.capture.jit import jit
from ptir.capture.tensor import Tensor
from ptir.errors import CheckpointError, UnsupportedError, UsageError
from ptir.models.table import HEARS
from ptir.models.whisper import Config
from ptir.nn.module import recording
from ptir.nn.state import State
from ptir.runtime.finite import check_numbers
from ptir.runtime.handle import Array, Model
from ptir.runtime.speech.stamps import bounds, parts, unbound, untimed
from ptir.runtime.speech.steps import SpeechSteps
from ptir.runtime.speech.tokens import SpeechTokens
from ptir.runtime.speech.transcript import SpeechSegment, Transcript, TranscriptRun

if TYPE_CHECKING:
    from ptir.capture.plan import Plan

PROMPT: Final = 4
"""Tokens of a prompt: the start, a language, a task, no timestamps; shorter ones are filled up."""
SILENT: Final = 0.6
"""A window is left out where the probability that nobody speaks is above this ..."""
UNSURE: Final = -1.0
"""... and the mean logarithm of its tokens' probabilities is below this."""


@dataclass(frozen=True)
class Heard:
    """A window's tokens, their mean log probability, and that of no speech."""

    tokens: tuple[int, ...]
    logprob: float
    no_speech: float


class SpeechModel(Model):
    """A loaded model of speech; what it cannot do raises ``UnsupportedError``.

    A recording is a path, a file's bytes, a file, or samples f32[N] at ``settings.rate``.
    """

    def __post_init__(self) -> None:
        """Say what is captured when it first runs."""
        self._forward = jit(self._logits)

    @property
    def capabilities(self) -> tuple[str, ...]:
        """What this model can do."""
        return HEARS

    @cached_property
    def settings(self) -> FeatureSettings:
        """How features are made; raises ``CheckpointError``."""
        read: Config = self.module.config
        given = self.checkpoint.preprocessor_config
        try:
            return feature_settings(given, mels=read.mels, frames=read.frames)
        except CheckpointError as error:
            raise CheckpointError(f"{self.checkpoint.path}: {error}") from error

    @cached_property
    def tokens(self) -> SpeechTokens:
        """Its special tokens; raises ``CheckpointError``."""
        checkpoint = self.checkpoint
        try:
            return SpeechTokens.of(checkpoint.config, checkpoint.generation_config)
        except CheckpointError as error:
            raise CheckpointError(f"{checkpoint.path}: {error}") from error

    @cached_property
    def speech_steps(self) -> SpeechSteps:
        """The steps of transcribing."""
        return SpeechSteps(self.module, self.tokens, self.cache_dtype)

    @property
    def plans(self) -> tuple[Plan, ...]:
        """What was compiled so far, the last one last."""
        return (*self.speech_steps.plans, *self._forward.plans)

    @cached_property
    def _log_mel(self) -> LogMel:
        return LogMel(self.settings, self.target)

    def features(self, audio: GivenAudio) -> Array:
        """Log-mel features f32[frames, mels] of a recording, at least a window's.

        Raises ``AudioError``, ``UsageError`` and ``UnsupportedError``.
        """
        return self._features(open_audio(audio, self.settings.rate))

    def _features(self, samples: Array) -> Array:
        with self.policies():
            return self._log_mel(samples)

    def transcribe(
        self,
        audio: GivenAudio,
        *,
        language: str | None = None,
        task: str = "transcribe",
        timestamps: bool = True,
        no_speech_threshold: float | None = SILENT,
    ) -> Transcript:
        """What is said in a recording of any length, window after window.

        ``language`` is a code or an English name; without one the first window tells it. ``task``
        is ``transcribe`` or ``translate`` (to English). With ``timestamps`` segments have the times
        that the model gives, and the next window begins where the last segment ended; without,
        windows follow each other and are segments. Each token is the likeliest. A window in which
        the probability that nobody speaks is above ``no_speech_threshold`` and tokens are unsure is
        left out; None keeps all. Raises ``AudioError``, ``UsageError`` and ``UnsupportedError``.
        """
        run = self.transcribing(
            audio,
            language=language,
            task=task,
            timestamps=timestamps,
            no_speech_threshold=no_speech_threshold,
        )
        for _ in run:
            pass
        return run.result

    def transcribing(
        self,
        audio: GivenAudio,
        *,
        language: str | None = None,
        task: str = "transcribe",
        timestamps: bool = True,
        no_speech_threshold: float | None = SILENT,
    ) -> TranscriptRun:
        """The same, to be iterated: segments come as soon as they are certain."""
        code = self.tokens.language(language, self.name)
        self.tokens.check_task(task, self.name)
        if self.tokenizer is None:
            why = f" ({self.text.loaded.lack})" if self.text.loaded.lack else ""
            raise UsageError(
                f"model {self.name!r} has no tokenizer{why}, by which tokens are text; put its"
                " tokenizer.json beside the weights"
            )
        samples = open_audio(audio, self.settings.rate)
        run = TranscriptRun(iter(()), len(samples) / self.settings.rate, code)
        run.found = self._segments(samples, run, task, timestamps, no_speech_threshold)
        return run

    def detect_language(self, audio: GivenAudio) -> dict[str, float]:
        """The probability of each language in a recording's first window, the likeliest first.

        Raises ``UnsupportedError`` for a model that knows English alone.
        """
        if not self.tokens.languages:
            raise UnsupportedError(
                f"model {self.name!r} knows English alone; a multilingual one tells languages apart"
            )
        return self._languages(self.hear(self.features(audio)))

    def _segments(
        self,
        samples: Array,
        run: TranscriptRun,
        task: str,
        timestamps: bool,
        threshold: float | None,
    ) -> Iterator[SpeechSegment]:
        settings = self.settings
        features = self._features(samples)
        said, place = -(-len(samples) // settings.hop), 0
        while place < said:
            source = self.hear(features[place:])
            if run.language is None and self.tokens.languages:
                run.language = next(iter(self._languages(source)))
            prompt = self.tokens.prompt(run.language, task, timestamps=timestamps)
            heard = self.window(source, prompt, timestamps=timestamps)
            silent = threshold is not None and heard.no_speech > threshold
            if silent and heard.logprob < UNSURE:
                place += settings.frames
                continue
            found, done = (parts if timestamps else untimed)(heard.tokens, self.tokens)
            left = min(settings.frames, said - place)
            for part in found:
                segment = self._segment(part.tokens, place, part.start, part.end, left, heard)
                if segment.text.strip():
                    yield segment
            place += done or settings.frames

    def _segment(
        self,
        tokens: tuple[int, ...],
        place: int,
        start: int,
        end: int | None,
        left: int,
        heard: Heard,
    ) -> SpeechSegment:
        settings = self.settings
        step = settings.hop / settings.rate
        ratio = settings.frames // self.module.config.source
        last = place + (left if end is None else end * ratio)
        words = [one for one in tokens if one < self.tokens.end]
        assert self.tokenizer is not None
        return SpeechSegment(
            start=round((place + start * ratio) * step, 3),
            end=round(max(last, place + start * ratio) * step, 3),
            text=self.tokenizer.decode(words),
            tokens=tokens,
            logprob=heard.logprob,
            no_speech=heard.no_speech,
        )

    def hear(self, features: Array) -> State:
        """What the decoder attends to of the first window of features, filled up with zeros."""
        settings = self.settings
        window = np.zeros((1, settings.frames, settings.mels), np.float32)
        part = features[: settings.frames]
        window[0, : len(part)] = part
        with self.policies():
            found: State = self.speech_steps.hear(self._tensor(window))
        return found

    def _languages(self, source: State) -> dict[str, float]:
        behind = self._begin(source, [self.tokens.start], True)[-1]
        logits = behind.numpy().astype(np.float64)
        self._check(logits)
        found = logits[[*self.tokens.languages.values()]]
        weights = np.exp(found - found.max())
        named = zip(self.tokens.languages, (weights / weights.sum()).tolist(), strict=True)
        return dict(sorted(named, key=lambda row: -row[1]))

    def _begin(self, source: State, prompt: Sequence[int], timestamps: bool) -> tuple[Any, ...]:
        """What ``SpeechSteps.begin`` gives for a prompt."""
        ids = np.zeros((1, PROMPT), np.int32)
        ids[0, : len(prompt)] = prompt
        count = self._tensor(np.array([len(prompt)], np.int32))
        never = self._never[0]
        given = self._bounds((), timestamps)
        state = self._take_state()
        with self.policies():
            found: tuple[Any, ...] = self.speech_steps.begin(
                self._tensor(ids), state, source, count, never, given, timestamps
            )
        self._kept = found[2]
        return found

    def window(self, source: State, prompt: Sequence[int], *, timestamps: bool) -> Heard:
        """The tokens of a window, the likeliest one after another."""
        token, logprob, _, start, behind = self._begin(source, prompt, timestamps)
        first = behind.numpy().astype(np.float64)
        self._check(first)
        weights = np.exp(first - first.max())
        no_speech = float(weights[self.tokens.no_speech] / weights.sum())
        said, total = list[int](), 0.0
        for number in range(self.context - len(prompt)):
            index = int(token.numpy()[0])
            total += float(logprob.numpy()[0])
            if index == self.tokens.end:
                return Heard(tuple(said), total / (len(said) + 1), no_speech)
            said.append(index)
            if number + len(prompt) + 1 >= self.context:
                break
            given = self._bounds(said, timestamps)
            state = self._take_state()
            with self.policies():
                token, logprob, self._kept, start = self.speech_steps.advance(
                    token, state, source, start, self._never[1], given, timestamps
                )
        return Heard(tuple(said), total / max(1, len(said)), no_speech)

    def _take_state(self) -> State:
        """The decoder's own keys and values: those of before, of which nothing is read again."""
        state, self._kept = self._kept, None
        return self._fresh_state() if state is None else state

    _kept: State | None = None

    def _fresh_state(self) -> State:
        types = (s.own.types(1, self.context, self.cache_dtype) for s in self.decoder_states)
        return tuple(
            tuple(self._tensor(np.zeros(one.shape, one.dtype.numpy)) for one in layer)
            for layer in types
        )

    @property
    def decoder_states(self) -> tuple[Any, ...]:
        """What each layer of the decoder carries between steps."""
        found: tuple[Any, ...] = self.module.decoder.states()
        return found

    def _bounds(self, said: Sequence[int], timestamps: bool) -> Tensor:
        found = bounds(said, self.tokens) if timestamps else unbound(self.tokens)
        given: Tensor = self._tensor(np.array(found, np.int32))
        return given

    @cached_property
    def _never(self) -> tuple[Tensor, Tensor]:
        """Which tokens are not chosen as a window's first one, and later."""
        never = np.zeros((2, self.tokens.size), np.bool_)
        never[:, [*self.tokens.suppressed]] = True
        never[0, [*self.tokens.suppressed_first]] = True
        return self._tensor(never[0]), self._tensor(never[1])

    def _check(self, logits: Array) -> None:
        check_numbers(logits, f"{self.name}: the logits", self.checkpoint.source)

    def forward(self, tokens: Any, features: Any = None) -> Array:
        """Logits f32[B,T,V] (or f32[T,V] for one row) behind each of ``tokens``.

        ``features`` are those of a window, f32[B,F,M] or f32[F,M].
        """
        several, ids, heard = self._checked(tokens, features)
        with self.policies():
            logits: Array = self._forward(self._tensor(ids), self._tensor(heard)).numpy()
        return logits if several else logits[0]

    def trace(self, tokens: Any, features: Any = None) -> dict[str, Array]:
        """The output of every layer by name, and ``logits``."""
        _, ids, heard = self._checked(tokens, features)

        def traced(tokens: Tensor, features: Tensor) -> dict[str, Tensor]:
            with recording() as outputs:
                logits = self._logits(tokens, features)
            return {**outputs, "logits": logits}

        with self.policies():
            found = jit(traced)(self._tensor(ids), self._tensor(heard))
            return {name: one.numpy() for name, one in found.items()}

    def _logits(self, tokens: Tensor, features: Tensor) -> Tensor:
        batch, length = tokens.shape
        source = self.module(features)
        types = (s.own.types(batch, length) for s in self.decoder_states)
        state = tuple(
            (*(F.full(one.shape, 0.0) for one in own), *heard)
            for own, heard in zip(types, source, strict=True)
        )
        start, count = F.full((batch,), 0, "i32"), F.full((batch,), length, "i32")
        logits: Tensor = self.module.decoder(tokens, state, start, count, every=True)[0]
        return logits

    def _checked(self, tokens: Any, features: Any) -> tuple[bool, Array, Array]:
        settings = self.settings
        wanted = f"f32[B,{settings.frames},{settings.mels}]"
        if features is None:
            raise UsageError(
                f"model {self.name!r} hears: give features {wanted} beside the tokens, as"
                " features() makes them of a recording (from Python; `ptir transcribe` takes the"
                " recording itself)"
            )
        several, ids = self._token_rows(tokens)
        given = np.asarray(features)
        heard = given if given.ndim == 3 else given[None]
        shape = (len(ids), settings.frames, settings.mels)
        if heard.shape != shape or given.dtype != np.float32:
            found = ",".join(map(str, given.shape))
            raise UsageError(f"forward: features are {given.dtype}[{found}]; give {wanted}, B rows")
        return several, ids, heard

    def encode(self, prompt: Any) -> list[int]:
        """Token ids, checked and passed through; a text is no input of a model of speech."""
        if isinstance(prompt, str):
            self._takes_no_text()
        return super().encode(prompt)

    def _takes_no_text(self) -> NoReturn:
        raise UnsupportedError(
            f"model {self.name!r} takes recordings, not texts; give sound files"
            " (`ptir transcribe`, or `Model.transcribe`)"
        )
