"""The records of a transcription, and the forms in which it is written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Protocol

from ptir.errors import short
from ptir.notebook import Card, Displayed
from ptir.units import duration


class Timed(Protocol):
    """A text, said from ``start`` to ``end``."""

    @property
    def start(self) -> float:
        """In seconds from the recording's begin."""
        ...

    @property
    def end(self) -> float:
        """In seconds from the recording's begin."""
        ...

    @property
    def text(self) -> str:
        """What was said."""
        ...


@dataclass(frozen=True)
class SpeechWord:
    """A ``word`` with the space before it and its marks, said from ``start`` to ``end``.

    ``probability`` is the mean of its tokens', each among all tokens of text.
    """

    start: float
    end: float
    word: str
    probability: float

    @property
    def text(self) -> str:
        """The word."""
        return self.word


@dataclass(frozen=True)
class SpeechSegment:
    """What was said from ``start`` to ``end``, in seconds from the recording's begin.

    ``tokens`` are those of its text and times. The others are numbers of its window: the
    ``temperature`` that it was decoded with, the mean logarithm of its tokens' probabilities
    (``avg_logprob``), how many times shorter zlib makes its text (``compression_ratio``), and the
    probability that nobody speaks (``no_speech_prob``). ``words`` are there if they were asked for.
    """

    start: float
    end: float
    text: str
    tokens: tuple[int, ...]
    temperature: float
    avg_logprob: float
    compression_ratio: float
    no_speech_prob: float
    words: tuple[SpeechWord, ...] = ()


@dataclass(frozen=True)
class Transcript(Displayed):
    """What was said in a recording of ``duration`` seconds, in a ``language`` (its code).

    The language is None where a model knows English alone.
    """

    segments: tuple[SpeechSegment, ...]
    language: str | None
    duration: float

    @property
    def text(self) -> str:
        """All of it, without times."""
        return "".join(segment.text for segment in self.segments).strip()

    def srt(self) -> str:
        """SubRip subtitles."""
        return "".join(srt_block(number, one) for number, one in enumerate(self.segments, 1))

    def vtt(self) -> str:
        """WebVTT subtitles."""
        return VTT_HEADER + "".join(map(vtt_block, self.segments))

    def __repr__(self) -> str:
        return (
            f"Transcript({short(self.text)}, {len(self.segments)} segments, {self.language},"
            f" {duration(self.duration)})"
        )

    def card(self) -> Card:
        """What a notebook shows: the text, and what it was heard in."""
        facts: list[tuple[str, object]] = [
            ("language", self.language or "en"),
            ("segments", len(self.segments)),
            ("recording", duration(self.duration)),
        ]
        return Card("Transcript", facts, text=self.text)


@dataclass
class TranscriptRun:
    """A transcription under way: iterating gives segments; ``result`` is all that came so far.

    One that failed fails again with the same error: there is no more to come.
    """

    found: Iterator[SpeechSegment]
    duration: float
    language: str | None = None
    _segments: list[SpeechSegment] = field(default_factory=list[SpeechSegment])
    _problem: Exception | None = None

    def __iter__(self) -> Iterator[SpeechSegment]:
        if self._problem is not None:
            raise self._problem
        try:
            for segment in self.found:
                self._segments.append(segment)
                yield segment
        except Exception as problem:
            self._problem = problem
            raise

    def finished(self) -> Transcript:
        """All that is found, once it is."""
        for _ in self:
            pass
        return self.result

    @property
    def result(self) -> Transcript:
        """What was found so far."""
        return Transcript(tuple(self._segments), self.language, self.duration)


def clock(seconds: float, *, point: str = ".", hours: bool = True) -> str:
    """A time as subtitles have it, ``00:01:02.500``; without ``hours`` only where there are any."""
    whole = round(seconds * 1000)
    minutes, rest = divmod(whole, 60_000)
    whole_hours, minutes = divmod(minutes, 60)
    front = f"{whole_hours:02}:" if hours or whole_hours else ""
    return f"{front}{minutes:02}:{rest // 1000:02}{point}{rest % 1000:03}"


VTT_HEADER: Final = "WEBVTT\n\n"


def srt_block(number: int, one: Timed) -> str:
    """A segment in SubRip: a number, times, the text, an empty line."""
    times = f"{clock(one.start, point=',')} --> {clock(one.end, point=',')}"
    return f"{number}\n{times}\n{_line(one.text)}\n\n"


def vtt_block(one: Timed) -> str:
    """A segment in WebVTT: times, the text, an empty line."""
    text = _line(one.text).replace("&", "&amp;").replace("<", "&lt;")
    return f"{clock(one.start)} --> {clock(one.end)}\n{text}\n\n"


def _line(text: str) -> str:
    """A text in which nothing is taken for the times of another."""
    return " ".join(text.split()).replace("-->", "->")
