"""Find stop strings in streamed text, holding back only what may still become one."""

from __future__ import annotations

from collections.abc import Sequence

from ptir.errors import UsageError


class StopMatcher:
    """Cuts streamed text before the first stop string that is complete.

    Where several end at the same place, the longest counts; how the text was split into pieces
    changes nothing. Raises ``UsageError`` for an empty stop string.
    """

    def __init__(self, strings: Sequence[str]) -> None:
        if isinstance(strings, str) or not all(strings):
            raise UsageError(f"stop strings {strings!r}: must be a list of non-empty strings")
        self._strings = tuple(strings)
        self._held = ""
        self.matched: str | None = None

    def push(self, text: str) -> tuple[str, bool]:
        """Take the next piece; returns the text now safe to show, and whether a stop was met.

        After a stop, everything pushed is dropped.
        """
        if self.matched is not None:
            return "", True
        self._held += text
        found = self._first_stop()
        if found is not None:
            start, self.matched = found
            return self._take(start), True
        return self._take(len(self._held) - self._open_suffix()), False

    def flush(self) -> str:
        """The text still held back, at the end of the stream; empty after a stop."""
        return "" if self.matched is not None else self._take(len(self._held))

    def _first_stop(self) -> tuple[int, str] | None:
        found = [(self._held.find(stop), stop) for stop in self._strings if stop in self._held]
        return min(found, key=lambda hit: (hit[0] + len(hit[1]), hit[0]), default=None)

    def _open_suffix(self) -> int:
        """Length of the longest end of the held text that begins a stop string."""
        longest = max(map(len, self._strings), default=1) - 1
        ends = range(min(longest, len(self._held)), 0, -1)
        return next((n for n in ends if self._begins_stop(self._held[-n:])), 0)

    def _begins_stop(self, end: str) -> bool:
        return any(stop.startswith(end) for stop in self._strings)

    def _take(self, count: int) -> str:
        taken, self._held = self._held[:count], self._held[count:]
        return taken
