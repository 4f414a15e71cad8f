"""What may be asked of a transcription, and when an answer is not believed."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from numbers import Integral, Real
from typing import Any, Final

from ptir.errors import UsageError, short, unknown_name

TEMPERATURES: Final = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
"""What a window is decoded with, one after another until its answer is believed."""
COMPRESSION_RATIO_THRESHOLD: Final = 2.4
"""A text that zlib makes more than so many times shorter repeats itself."""
LOGPROB_THRESHOLD: Final = -1.0
"""Tokens whose mean log probability is below this are guesses."""
NO_SPEECH_THRESHOLD: Final = 0.6
"""Guesses in a window where the probability that nobody speaks is above this are left out."""
FORGETS_ABOVE: Final = 0.5
"""What was decoded with a higher temperature is no text to go on from."""
MOST: Final = 64
"""Temperatures, and beams, at most."""


@dataclass(frozen=True)
class SpeechOptions:
    """How a recording is transcribed; the thresholds and their values are those of the paper.

    ``language`` is a code or an English name; without one the first window tells it. ``task`` is
    ``transcribe`` or ``translate`` (to English). With ``timestamps`` segments have the times that
    the model gives, and the next window begins where the last segment ended; without, windows
    follow each other and are segments.

    A window is decoded with the first ``temperature``: at 0 each token is the likeliest, or of
    ``beams`` texts the likeliest is taken; else they are drawn, by ``seed``, ``best_of`` texts of
    which the likeliest is taken, by the mean log probability of its tokens. Where the answer's
    compression ratio is above ``compression_ratio_threshold``, or the mean log probability of its
    tokens below ``logprob_threshold``, the next temperature follows. A window is left out where
    the probability that nobody speaks is above ``no_speech_threshold`` and that mean is below
    ``logprob_threshold``. None switches a threshold off.

    ``prompt`` is a text that stands before every window's, for words and how they are spelled.
    With ``condition_on_previous_text`` the text so far stands behind it. ``word_timestamps`` has
    each segment tell when its words were said, and how probable they are.

    Raises ``UsageError``. Source: Radford et al., "Robust Speech Recognition via Large-Scale Weak
    Supervision", 2022, section 4.5.
    """

    language: str | None = None
    task: str = "transcribe"
    timestamps: bool = True
    temperature: float | Sequence[float] = TEMPERATURES
    compression_ratio_threshold: float | None = COMPRESSION_RATIO_THRESHOLD
    logprob_threshold: float | None = LOGPROB_THRESHOLD
    no_speech_threshold: float | None = NO_SPEECH_THRESHOLD
    condition_on_previous_text: bool = False
    prompt: str | None = None
    beams: int = 1
    seed: int = 0
    word_timestamps: bool = False
    best_of: int = 1

    def __post_init__(self) -> None:
        temperatures = self.temperatures
        if not 1 <= len(temperatures) <= MOST:
            raise UsageError(f"temperature: {len(temperatures)} of them; give 1 to {MOST}")
        for one in temperatures:
            if not (_number(one) and 0 <= one < math.inf):
                raise UsageError(f"temperature {short(one)}: must be a number >= 0, or several")
        for name in ("timestamps", "condition_on_previous_text", "word_timestamps"):
            if type(getattr(self, name)) is not bool:
                raise UsageError(f"{name} {short(getattr(self, name))}: must be True or False")
        for name in ("compression_ratio_threshold", "logprob_threshold", "no_speech_threshold"):
            value = getattr(self, name)
            if value is not None and not (_number(value) and not math.isnan(value)):
                raise UsageError(f"{name} {short(value)}: must be a number, or None for none")
        for name in ("beams", "best_of"):
            value = getattr(self, name)
            if not (_whole(value) and 1 <= value <= MOST):
                raise UsageError(f"{name} {short(value)}: must be an integer in [1, {MOST}]")
        if not (_whole(self.seed) and 0 <= self.seed < 2**64):
            raise UsageError(f"seed {short(self.seed)}: must be an integer in [0, 2**64)")
        if self.prompt is not None and not isinstance(self.prompt, str):
            raise UsageError(f"prompt {short(self.prompt)}: must be a text")

    @property
    def temperatures(self) -> tuple[float, ...]:
        """All of them, in their order."""
        given = self.temperature
        several = isinstance(given, Sequence) and not isinstance(given, str)
        return tuple(given) if several else (given,)  # type: ignore[arg-type, return-value]

    @property
    def follows(self) -> bool:
        """Whether a window can be heard only when the one before is known."""
        return self.timestamps or self.condition_on_previous_text

    def silent(self, heard: Heard) -> bool:
        """Whether a window with such an answer is left out."""
        most, least = self.no_speech_threshold, self.logprob_threshold
        if most is None or heard.no_speech_prob <= most:
            return False
        return least is None or heard.avg_logprob < least

    def doubts(self, heard: Heard) -> bool:
        """Whether a window with such an answer is decoded again."""
        most, least = self.compression_ratio_threshold, self.logprob_threshold
        repeats = most is not None and heard.compression_ratio > most
        guessed = least is not None and heard.avg_logprob < least
        return (repeats or guessed) and not self.silent(heard)


@dataclass(frozen=True)
class Heard:
    """A window's tokens, their mean log probability, and the probability that nobody speaks.

    ``temperature`` is what it was decoded with, ``compression_ratio`` that of its text.
    """

    tokens: tuple[int, ...]
    avg_logprob: float
    no_speech_prob: float
    temperature: float = 0.0
    compression_ratio: float = 0.0


def speech_options(given: Mapping[str, Any]) -> SpeechOptions:
    """Options by their names; raises ``UsageError`` for one that there is not."""
    known = [one.name for one in fields(SpeechOptions)]
    for name in given:
        if name not in known:
            raise UsageError(unknown_name("option", name, known))
    return SpeechOptions(**given)


def compression_ratio(text: str) -> float:
    """How many times shorter zlib makes a text's bytes."""
    data = text.strip().encode()
    return len(data) / len(zlib.compress(data))


def _number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _whole(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)
