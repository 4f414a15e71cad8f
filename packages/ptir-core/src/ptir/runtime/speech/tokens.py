"""The tokens by which a model of speech is told what to do, and tells when something was said.

``generation_config.json`` names them. Where it does not, they stand where Whisper has them: at the
vocabulary's end a timestamp for each position of the encoder and one more; before these the marks
``translate``, ``transcribe``, begin of a language model, begin of what went before, no speech, no
timestamps; between the start mark and ``translate`` a token for each language.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ptir.checkpoint import eos_token_ids
from ptir.errors import CheckpointError, UsageError, short
from ptir.models.fields import whole
from ptir.models.whisper import ENGLISH
from ptir.runtime.speech.languages import LANGUAGES, language_code

TASKS: Final = ("transcribe", "translate")
"""To write down what was said, or that in English."""
BEHIND_TRANSLATE: Final = 6
"""Tokens from ``translate`` to the one before the first timestamp."""
LONGEST_PROMPT: Final = 5
"""Tokens around what is said: the mark of a text before, start, language, task, no timestamps."""
LATEST_FIRST: Final = 50
"""The latest timestamp that a window may begin with: one second."""


@dataclass(frozen=True)
class SpeechTokens:
    """Ids of special tokens; those below ``end`` are text, those from ``first_stamp`` on times.

    A model for English alone has no ``languages`` and no ``tasks``. ``previous`` stands before the
    text that a window goes on from, and that before ``start``. ``suppressed`` are never
    chosen, ``suppressed_first`` not as the first token of a window, whose timestamp is at most
    ``latest_first`` steps behind its begin.
    """

    size: int
    start: int
    end: int
    languages: Mapping[str, int]
    tasks: Mapping[str, int]
    previous: int
    no_speech: int
    no_stamps: int
    first_stamp: int
    suppressed: tuple[int, ...]
    suppressed_first: tuple[int, ...]
    latest_first: int

    def room(self, context: int) -> int:
        """How many tokens of a text before may stand in front: less than half of a ``context``."""
        return min(context // 2 - 1, context - LONGEST_PROMPT - 1)

    @staticmethod
    def of(config: Mapping[str, Any], generation_config: Mapping[str, Any]) -> SpeechTokens:
        """What a checkpoint's two files say; raises ``CheckpointError``."""
        size = whole(config, "vocab_size")
        read = _Reader(size, generation_config, config)
        stamps = whole(config, "max_source_positions") + 1
        no_stamps = read.id("no_timestamps_token_id", size - stamps - 1)
        translate = no_stamps + 1 - BEHIND_TRANSLATE
        ends = eos_token_ids(config, generation_config)
        end = ends[0] if ends else translate - 1
        start = read.id("decoder_start_token_id", end + 1)
        first_stamp = no_stamps + 1
        if not 0 <= end < start < first_stamp <= size:
            raise CheckpointError(
                f"the tokens that end ({end}) and start ({start}) a text, the first timestamp"
                f" ({first_stamp}) and vocab_size {size} must be in this order; check"
                " generation_config.json"
            )
        several = generation_config.get("is_multilingual")
        several = size != ENGLISH if several is None else several
        if type(several) is not bool:
            read.refuse("is_multilingual", several, "true or false")
        by_place = dict(zip(LANGUAGES, range(start + 1, translate), strict=False))
        tasks = {"translate": translate, "transcribe": translate + 1}
        return SpeechTokens(
            size=size,
            start=start,
            end=end,
            languages=read.ids("lang_to_id", by_place) if several else {},
            tasks=read.ids("task_to_id", tasks, needed=TASKS) if several else {},
            previous=read.id("prev_sot_token_id", no_stamps - 2),
            no_speech=no_stamps - 1,
            no_stamps=no_stamps,
            first_stamp=first_stamp,
            suppressed=(*read.listed("suppress_tokens"), no_stamps),
            suppressed_first=read.listed("begin_suppress_tokens"),
            latest_first=read.id("max_initial_timestamp_index", LATEST_FIRST),
        )

    def prompt(self, language: str | None, task: str, *, timestamps: bool) -> list[int]:
        """What the decoder is given first."""
        marks = [self.languages[language], self.tasks[task]] if language is not None else []
        return [self.start, *marks, *([] if timestamps else [self.no_stamps])]

    def usual(self, *, timestamps: bool) -> list[int]:
        """A prompt where the language does not matter: to transcribe the first one."""
        return self.prompt(next(iter(self.languages), None), "transcribe", timestamps=timestamps)

    def language(self, asked: str | None, name: str) -> str | None:
        """The code of a language that is asked for; None where it is to be found out.

        Raises ``UsageError``, in which the model is called ``name``.
        """
        if asked is None:
            return None
        if self.languages:
            return language_code(asked, self.languages)
        if language_code(asked, LANGUAGES) != "en":
            raise UsageError(f"model {name!r} knows English alone, and language is {asked!r}")
        return None

    def check_task(self, task: str, name: str) -> None:
        """Raise ``UsageError`` for a task that the model does not know."""
        if task not in TASKS:
            raise UsageError(f"task {task!r}: must be {' or '.join(TASKS)}")
        if task == "translate" and not self.tasks:
            raise UsageError(
                f"model {name!r} knows English alone; a multilingual one translates to English"
            )


@dataclass(frozen=True)
class _Reader:
    """What is said of tokens, in the first of two files that says it."""

    size: int
    generation_config: Mapping[str, Any]
    config: Mapping[str, Any]

    def refuse(self, key: str, found: Any, rule: str) -> None:
        raise CheckpointError(
            f"generation_config.json: {key} {short(found)} must be {rule}; correct it, or fetch"
            " the file again"
        )

    def said(self, key: str) -> Any:
        found = self.generation_config.get(key)
        return self.config.get(key) if found is None else found

    def id(self, key: str, usual: int) -> int:
        found = self.said(key)
        found = usual if found is None else found
        self._check(key, found)
        return int(found)

    def ids(self, key: str, usual: Mapping[str, int], needed: Sequence[str] = ()) -> dict[str, int]:
        found = self.said(key)
        found = usual if found is None else found
        if not isinstance(found, Mapping) or not found or not {*needed} <= {*found}:
            also = f" with {' and '.join(needed)}" if needed else ""
            self.refuse(key, found, f"an object of tokens and their ids{also}")
        for one in found.values():
            self._check(key, one)
        return {str(k).removeprefix("<|").removesuffix("|>"): i for k, i in found.items()}

    def listed(self, key: str) -> tuple[int, ...]:
        found = self.said(key)
        found = [] if found is None else found
        if not isinstance(found, Sequence) or isinstance(found, str):
            self.refuse(key, found, "a list of ids")
        for one in found:
            self._check(key, one)
        return tuple(found)

    def _check(self, key: str, found: Any) -> None:
        if type(found) is not int or not 0 <= found < self.size:
            self.refuse(key, found, f"an id >= 0 and < vocab_size {self.size}")
