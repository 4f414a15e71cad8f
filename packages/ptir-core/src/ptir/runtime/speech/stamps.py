"""Timestamps among tokens: which may follow what was said, and what a window's tokens mean.

What is said stands between the time when it begins and the time when it ends; two segments have two
times between them, mostly the same one twice. Times never go back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ptir.models.whisper import SHRINKS
from ptir.runtime.speech.tokens import SpeechTokens


class Bounds(NamedTuple):
    """The tokens that may follow: below the first timestamp those from ``text`` on, else a range.

    Timestamps are those from ``low`` on, before ``high``.
    """

    text: int
    low: int
    high: int


def bounds(said: Sequence[int], tokens: SpeechTokens) -> Bounds:
    """What may follow the tokens of a window so far."""
    first, size = tokens.first_stamp, tokens.size
    if not said:
        return Bounds(first, first, min(size, first + tokens.latest_first + 1))
    ended = said[-1] >= first
    if ended and (len(said) < 2 or said[-2] >= first):  # a segment has begun: its text follows
        return Bounds(0, size, size)
    last = max((one for one in reversed(said) if one >= first), default=first - 1)
    # behind an end stands the begin of the next segment, which may be the same time, or nothing
    return Bounds(tokens.end, last, size) if ended else Bounds(0, last + 1, size)


def unbound(tokens: SpeechTokens) -> Bounds:
    """What may follow where no timestamps are asked for: anything."""
    return Bounds(0, tokens.first_stamp, tokens.size)


@dataclass(frozen=True)
class Part:
    """Tokens of one segment, with its times, and when they stand, in steps from the window's begin.

    ``end`` is None where nothing says when it ends.
    """

    tokens: tuple[int, ...]
    start: int
    end: int | None


def parts(said: Sequence[int], tokens: SpeechTokens) -> tuple[list[Part], int | None]:
    """The segments of a window's tokens, and how many frames of it are done with.

    That is None where all are: where nothing follows the last end, or no segment is closed. What
    follows the last begin is said again by the window that begins there.
    """
    first = tokens.first_stamp
    times = [one >= first for one in said]
    cuts = [n for n in range(1, len(said)) if times[n - 1] and times[n]]
    whole = times[-2:] == [False, True]
    if not cuts:
        stamps = [one - first for one, is_time in zip(said, times, strict=True) if is_time]
        start = stamps[0] if times[:1] == [True] else 0
        end = stamps[-1] if stamps and stamps[-1] > start else None
        return ([Part(tuple(said), start, end)] if said else []), None
    ends = [*cuts, len(said)] if whole else cuts
    found = [
        Part(tuple(said[a:b]), said[a] - first, said[b - 1] - first)
        for a, b in zip([0, *ends], ends, strict=False)
    ]
    return found, None if whole else SHRINKS * (said[cuts[-1] - 1] - first)


def untimed(said: Sequence[int], tokens: SpeechTokens) -> tuple[list[Part], None]:
    """The same where no timestamps were asked for: all is one segment, as long as the window."""
    return ([Part(tuple(said), 0, None)] if said else []), None
