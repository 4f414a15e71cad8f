"""``SpeechModel``: the handle of a model that writes down what is said in a recording."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final, NoReturn

import numpy as np

from ptir import functional as F
from ptir.audio import FeatureSettings, GivenAudio, LogMel, feature_settings, open_audio
from ptir.capture.jit import jit
from ptir.capture.tensor import Tensor
from ptir.errors import CheckpointError, UnsupportedError, UsageError, short
from ptir.models.table import HEARS
from ptir.models.whisper import Config
from ptir.nn.module import recording
from ptir.nn.state import State
from ptir.runtime.handle import Array, Model
from ptir.runtime.speech.alignment import Heads, alignment_heads
from ptir.runtime.speech.decoding import Decoder, Manner
from ptir.runtime.speech.hearing import Hearing, Hearings
from ptir.runtime.speech.options import MOST, Heard, speech_options
from ptir.runtime.speech.tokens import SpeechTokens
from ptir.runtime.speech.transcript import Transcript, TranscriptRun

if TYPE_CHECKING:
    from ptir.capture.plan import Plan

BATCH: Final = 8
"""Windows that are heard at once where several recordings are given."""


class SpeechModel(Model):
    """A loaded model of speech; what it cannot do raises ``UnsupportedError``.

    A recording is a path, a file's bytes, a file, or samples f32[N] at ``settings.rate``.
    """

    def __post_init__(self) -> None:
        """Say what is captured when it first runs."""
        self._forward = jit(self.logits)

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
    def alignment_heads(self) -> Heads:
        """Pairs of a layer and a head that tell when a token was said; ``CheckpointError``."""
        checkpoint = self.checkpoint
        try:
            return alignment_heads(checkpoint.generation_config, self.module.config)
        except CheckpointError as error:
            raise CheckpointError(f"{checkpoint.path}: {error}") from error

    @cached_property
    def decoder(self) -> Decoder:
        """What makes tokens of windows."""
        return Decoder(self)

    @property
    def plans(self) -> tuple[Plan, ...]:
        """What was compiled so far, the last one last."""
        return (*self.decoder.steps.plans, *self._forward.plans)

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

    def transcribe(self, audio: GivenAudio, **options: Any) -> Transcript:
        """What is said in a recording of any length, window after window.

        ``options`` are the fields of ``SpeechOptions``. Raises ``AudioError``, ``UsageError`` and
        ``UnsupportedError``.
        """
        return self.transcribing(audio, **options).finished()

    def transcribing(self, audio: GivenAudio, **options: Any) -> TranscriptRun:
        """The same, to be iterated: segments come as soon as they are certain."""
        (run,) = self._runs([audio], 1, options)
        return run

    def transcribe_batch(
        self, audios: Sequence[GivenAudio], *, batch: int = BATCH, **options: Any
    ) -> list[Transcript]:
        """What is said in each of several recordings, ``batch`` windows at once.

        Tokens are those of one recording at a time. A recording has one window in a batch, and as
        many as there is room for where ``timestamps`` are off and none depends on the one before.
        """
        return [run.finished() for run in self.transcribing_batch(audios, batch=batch, **options)]

    def transcribing_batch(
        self, audios: Sequence[GivenAudio], *, batch: int = BATCH, **options: Any
    ) -> list[TranscriptRun]:
        """The same, each to be iterated; a recording is opened when its first window is heard."""
        if not isinstance(batch, int) or isinstance(batch, bool) or not 1 <= batch <= MOST:
            raise UsageError(f"batch {short(batch)}: must be an integer in [1, {MOST}]")
        return self._runs(audios, batch, options)

    def _runs(
        self, audios: Sequence[GivenAudio], batch: int, given: Mapping[str, Any]
    ) -> list[TranscriptRun]:
        options = speech_options(given)
        code = self.tokens.language(options.language, self.name)
        self.tokens.check_task(options.task, self.name)
        if self.tokenizer is None:
            why = f" ({self.text.loaded.lack})" if self.text.loaded.lack else ""
            raise UsageError(
                f"model {self.name!r} has no tokenizer{why}, by which tokens are text; put its"
                " tokenizer.json beside the weights"
            )
        words = self._words(options.prompt)
        runs = [TranscriptRun(iter(()), 0.0, code) for _ in audios]

        def opened(audio: GivenAudio, run: TranscriptRun) -> Hearing:
            samples = open_audio(audio, self.settings.rate)
            run.duration = len(samples) / self.settings.rate
            said = -(-len(samples) // self.settings.hop)
            return Hearing(self, options, run, self._features(samples), said, words)

        waiting = [partial(opened, *both) for both in zip(audios, runs, strict=True)]
        hearings = Hearings(self, waiting, batch)
        for number, run in enumerate(runs):
            run.found = hearings.segments(number)
        return runs

    def _words(self, prompt: str | None) -> tuple[int, ...]:
        """The tokens of a prompt's text; raises ``UsageError``."""
        if prompt is None or not prompt.strip():
            return ()
        assert self.tokenizer is not None
        ids, room = (
            self.tokenizer.encode(f" {prompt.strip()}", add_special_tokens=False),
            self.tokens.room(self.context),
        )
        special = [one for one in ids if one >= self.tokens.end]
        if special:
            raise UsageError(
                f"prompt {short(prompt)}: token {special[0]} is none of a text (those are below"
                f" {self.tokens.end}); give a text without special tokens"
            )
        if len(ids) > room:
            raise UsageError(
                f"prompt {short(prompt)}: {len(ids)} tokens, and {max(0, room)} fit before a"
                " window's; give a shorter one"
            )
        return tuple(ids)

    def text_of(self, tokens: Sequence[int]) -> str:
        """The text of tokens of a window, without times."""
        assert self.tokenizer is not None
        return self.tokenizer.decode([one for one in tokens if one < self.tokens.end])

    def detect_language(self, audio: GivenAudio) -> dict[str, float]:
        """The probability of each language in a recording's first window, the likeliest first.

        Raises ``UnsupportedError`` for a model that knows English alone.
        """
        if not self.tokens.languages:
            raise UnsupportedError(
                f"model {self.name!r} knows English alone; a multilingual one tells languages apart"
            )
        return self.decoder.languages(self.hear(self.features(audio)))[0]

    def hear(self, features: Array) -> State:
        """What the decoder attends to of the first window of features, filled up with zeros."""
        return self.decoder.hear([features], 1)

    def window(
        self,
        source: State,
        prompt: Sequence[int],
        *,
        timestamps: bool,
        temperature: float = 0.0,
        beams: int = 1,
        seed: int = 0,
        max_tokens: int | None = None,
        best_of: int = 1,
    ) -> Heard:
        """The tokens of a window, once; see ``SpeechOptions``."""
        manner = Manner(timestamps, temperature, beams, max_tokens, best_of)
        (found,) = self.decoder.decode(source, [prompt], manner, [seed])
        return found

    @property
    def decoder_states(self) -> tuple[Any, ...]:
        """What each layer of the decoder carries between steps."""
        found: tuple[Any, ...] = self.module.decoder.states()
        return found

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
                logits = self.logits(tokens, features)
            return {**outputs, "logits": logits}

        with self.policies():
            found = jit(traced)(self._tensor(ids), self._tensor(heard))
            return {name: one.numpy() for name, one in found.items()}

    def logits(self, tokens: Tensor, features: Tensor) -> Tensor:
        """Logits f32[B,T,V] of all positions of tokens i32[B,T] in windows f32[B,F,M]."""
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
