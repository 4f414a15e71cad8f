"""The records of generation: what may be asked for and what comes back."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any, Final, Literal

from ptir.errors import UsageError, short
from ptir.notebook import Card, Displayed
from ptir.units import duration, size

FinishReason = Literal["stop", "length", "interrupted"]

_Range = tuple[Any, Callable[[Any], bool], str]

_RANGES: Final[dict[str, _Range]] = {
    "temperature": (Real, lambda v: 0 <= v < math.inf, "a number >= 0"),
    "top_k": (Integral, lambda v: 0 <= v < 2**31, "an integer in [0, 2**31)"),
    "top_p": (Real, lambda v: 0 < v <= 1, "a number in (0, 1]"),
    "min_p": (Real, lambda v: 0 <= v <= 1, "a number in [0, 1]"),
    "repetition_penalty": (Real, lambda v: 0 < v < math.inf, "a number > 0"),
}


@dataclass(frozen=True)
class SamplingOptions:
    """How tokens are chosen: temperature 0 is greedy; the filters apply in field order.

    ``top_k`` 0, ``top_p`` 1, ``min_p`` 0 and ``repetition_penalty`` 1 switch the filter off.
    ``seed`` is for every row as if it ran alone, so equal prompts give equal texts; a list of
    seeds, one per row, gives different ones. Raises ``UsageError`` for values out of range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | Sequence[int] = 0

    def __post_init__(self) -> None:
        for name, (kind, holds, rule) in _RANGES.items():
            value = getattr(self, name)
            real = isinstance(value, kind) and not isinstance(value, bool)
            if not real or not holds(value):
                raise UsageError(f"{name} {value!r}: must be {rule}")
        for seed in self.seed if isinstance(self.seed, Sequence) else [self.seed]:
            whole = isinstance(seed, Integral) and not isinstance(seed, bool)
            if not whole or not 0 <= seed < 2**64:
                raise UsageError(f"seed {seed!r}: must be an integer in [0, 2**64)")

    def seeds(self, rows: int) -> tuple[int, ...]:
        """The seed of each row; raises ``UsageError`` where a list has another length."""
        if not isinstance(self.seed, Sequence):
            return (int(self.seed),) * rows
        if len(self.seed) != rows:
            raise UsageError(f"{len(self.seed)} seeds for {rows} prompts; give one, or one each")
        return tuple(map(int, self.seed))

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature == 0


@dataclass(frozen=True)
class Piece:
    """One step of one row of a stream: the token and the text that became certain with it."""

    row: int
    token_id: int
    text: str
    logprob: float | None = None


@dataclass
class GenerationStats:
    """What a generation cost; times in seconds, memory in bytes.

    ``cached_tokens`` of the ``prompt_tokens`` were held by the state already; the others were
    computed in ``prompt_seconds``. Speculation proposed ``proposed_tokens``, of which
    ``accepted_tokens`` were right.
    """

    prompt_tokens: int = 0
    prompt_seconds: float = 0.0
    generated_tokens: int = 0
    generated_seconds: float = 0.0
    load_seconds: float = 0.0
    first_token_seconds: float = 0.0
    peak_memory_bytes: int = 0
    backend: str = ""
    device: str = ""
    host_fallback_ops: int = 0
    cached_tokens: int = 0
    proposed_tokens: int = 0
    accepted_tokens: int = 0

    def facts(self) -> list[tuple[str, object]]:
        """What of it is known, for people."""
        prompt = f"{self.prompt_tokens:,} tokens in {duration(self.prompt_seconds)}"
        cached = f", {self.cached_tokens:,} of them cached" if self.cached_tokens else ""
        seconds, tokens = self.generated_seconds, self.generated_tokens
        rate = f", {tokens / seconds:,.1f} a second" if seconds else ""
        found: list[tuple[str, object]] = [
            ("prompt", prompt + cached),
            ("generated", f"{tokens:,} tokens in {duration(seconds)}{rate}"),
        ]
        if self.proposed_tokens:
            accepted = f"{self.accepted_tokens:,} of {self.proposed_tokens:,} proposed tokens"
            found.append(("accepted", accepted))
        if self.peak_memory_bytes:
            found.append(("peak memory", size(self.peak_memory_bytes)))
        return [*found, ("on", f"{self.backend} ({self.device})")] if self.backend else found


@dataclass(frozen=True)
class Generation(Displayed):
    """The result for one prompt.

    ``text`` ends before a stop string; ``token_ids`` keeps that string's tokens, but no
    end-of-text token. Each entry of ``logprobs`` holds ``token_id``, ``logprob`` and ``top``, the
    best [id, log probability] pairs, all of the model's own distribution, before any filter.
    """

    text: str
    token_ids: list[int]
    prompt_ids: list[int]
    finish_reason: FinishReason
    stats: GenerationStats = field(compare=False)
    logprobs: list[dict[str, Any]] | None = None

    def __repr__(self) -> str:
        return (
            f"Generation({short(self.text)}, {len(self.token_ids)} tokens after"
            f" {len(self.prompt_ids)}, {self.finish_reason})"
        )

    def card(self) -> Card:
        """What a notebook shows: the text, why it ended and what it cost."""
        facts = [("finish reason", self.finish_reason), *self.stats.facts()]
        return Card("Generation", facts, text=self.text)
