"""The records of generation: what may be asked for and what comes back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from ptir.errors import UsageError

FinishReason = Literal["stop", "length", "interrupted"]


@dataclass(frozen=True)
class SamplingOptions:
    """How tokens are chosen: temperature 0 is greedy; the filters apply in field order.

    ``top_k`` 0, ``top_p`` 1, ``min_p`` 0 and ``repetition_penalty`` 1 switch the filter off.
    Raises ``UsageError`` for values out of range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        ranges = {
            "temperature": self.temperature >= 0,
            "top_k": self.top_k >= 0,
            "top_p": 0 < self.top_p <= 1,
            "min_p": 0 <= self.min_p <= 1,
            "repetition_penalty": self.repetition_penalty > 0,
            "seed": 0 <= self.seed < 2**64,
        }
        rules = ">= 0; >= 0; in (0, 1]; in [0, 1]; > 0; in [0, 2**64)".split("; ")
        for (name, holds), rule in zip(ranges.items(), rules, strict=True):
            if not holds:
                raise UsageError(f"{name} {getattr(self, name)}: must be {rule}")

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
    """What a generation cost; times in seconds, memory in bytes."""

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


@dataclass(frozen=True)
class Generation:
    """The result for one prompt."""

    text: str
    token_ids: list[int]
    prompt_ids: list[int]
    finish_reason: FinishReason
    stats: GenerationStats = field(compare=False)
    logprobs: list[dict[str, Any]] | None = None
