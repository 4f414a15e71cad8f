"""Split an answer, as it comes, into what a model reasons first and what it says then."""

from __future__ import annotations

from typing import Final, NamedTuple

TAGS: Final = (
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("<|channel>", "<channel|>"),
)
"""What models write around their reasoning, at the beginning of an answer."""
HEADS: Final = {"<|channel>": "thought"}
"""What stands behind a tag and is no reasoning: Gemma 4's says what comes."""
CHANNEL: Final = "<|channel|>"
MESSAGE: Final = "<|message|>"
START: Final = "<|start|>"
FINAL: Final = "final"
"""The channel of the answer where models (gpt-oss) write to several: other ones are reasoning."""


class AnswerPart(NamedTuple):
    """Text of the answer and text of the reasoning that became certain together."""

    text: str
    reasoning: str


class AnswerSplitter:
    """Takes the pieces of an answer to ``prompt``, which may end where reasoning has begun.

    What may still become a tag is held back.
    """

    def __init__(self, prompt: str = "") -> None:
        end = prompt.rstrip()
        begun = ((tag + HEADS.get(tag, ""), tag, close) for tag, close in TAGS)
        self._close = next((close for *tags, close in begun if end.endswith(tuple(tags))), "")
        self._held = self._header = self._head = ""
        self._place = "reasoning" if self._close else "beginning"

    def push(self, text: str, special: str = "") -> AnswerPart:
        """Take a piece of text, and the special token (``<|channel|>``) that comes behind it."""
        self._held += text
        if any(special in pair for pair in TAGS):
            self._held += special
        found = self._taken()
        if special in (CHANNEL, MESSAGE, START):
            rest = self._emptied()
            found = AnswerPart(found.text + rest.text, found.reasoning + rest.reasoning)
            self._enter(special)
        return found

    def flush(self) -> AnswerPart:
        """What is still held back, at the end."""
        return self._emptied()

    def _enter(self, special: str) -> None:
        """Go where a special token leads: to a header, or from it to what it is the header of."""
        if special == MESSAGE:
            self._place = "answer" if self._header.strip().startswith(FINAL) else "reasoning"
            self._close = ""
        else:
            self._place, self._header = "header", ""

    def _taken(self) -> AnswerPart:
        text = reasoning = ""
        if self._place == "beginning":
            self._begin()
        if self._place == "header":
            self._header, self._held = self._header + self._held, ""
        if self._place == "head" and not self._head.startswith(self._held):
            self._held, self._place = self._held.removeprefix(self._head), "reasoning"
        if self._place == "reasoning":
            reasoning = self._reasoned()
        if self._place == "between":
            self._held = self._held.lstrip()
            self._place = "answer" if self._held else "between"
        if self._place == "answer":
            text, self._held = self._held, ""
        return AnswerPart(text, reasoning)

    def _begin(self) -> None:
        """Find out whether an answer begins with a tag."""
        begun = self._held.lstrip()
        for tag, close in TAGS:
            if begun.startswith(tag):
                self._place, self._close, self._head = "head", close, HEADS.get(tag, "")
                self._held = begun.removeprefix(tag)
                return
        if begun and not any(tag.startswith(begun) for tag, _ in TAGS):
            self._place = "answer"

    def _reasoned(self) -> str:
        """The held text that is reasoning for certain."""
        before, close, after = self._held.partition(self._close) if self._close else ("", "", "")
        if close:
            self._held, self._place = after, "between"
            return before
        most = min(len(self._close) - 1, len(self._held))
        ends = range(most, 0, -1)
        kept = next((n for n in ends if self._close.startswith(self._held[-n:])), 0)
        cut = len(self._held) - kept
        found, self._held = self._held[:cut], self._held[cut:]
        return found

    def _emptied(self) -> AnswerPart:
        held, self._held = self._held, ""
        if self._place == "header" or (self._place == "head" and held == self._head):
            return AnswerPart("", "")
        reasons = self._place in ("head", "reasoning")
        return AnswerPart("", held) if reasons else AnswerPart(held, "")
