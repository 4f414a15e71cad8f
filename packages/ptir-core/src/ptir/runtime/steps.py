"""The captured steps of a language model: prefill chunks and single-token decoding."""

from __future__ import annotations

from typing import Any

from ptir import functional as F
from ptir.capture.jit import jit
from ptir.capture.tensor import Tensor
from ptir.models.table import Cache, CausalModel

CHUNKS = (8, 32, 128, 512)
"""Prompt chunks are padded to these lengths, so a few programs serve every prompt."""


class Steps:
    """A bound model's compiled steps; each is captured once per batch size and cache capacity."""

    def __init__(self, model: CausalModel) -> None:
        self._model = model
        self.extend = jit(self._extend, donate=("cache",))
        self.advance = jit(self._advance, donate=("cache",))

    def _extend(
        self, tokens: Tensor, cache: Cache, start: Tensor, count: Tensor, every: bool
    ) -> tuple[Tensor, Cache]:
        return self._model(tokens, cache, start, count, every=every)

    def _advance(
        self,
        tokens: Tensor,
        cache: Cache,
        start: Tensor,
        count: Tensor,
        controls: dict[str, Tensor],
        logits_too: bool,
    ) -> tuple[Any, ...]:
        logits, cache = self._model(tokens, cache, start, count)
        chosen = choose(logits, controls)
        return (chosen, cache, logits) if logits_too else (chosen, cache)


def choose(logits: Tensor, controls: dict[str, Tensor]) -> Tensor:
    """The next token of each row; without controls the most likely one.

    ``controls`` may hold ``seen`` bool[B,V] and ``penalty`` f32[B] (repetition penalty), and the
    sampler's ``temperature``, ``top_k``, ``top_p``, ``min_p`` and ``key`` u32[2].
    """
    if "seen" in controls:
        logits = F.repetition_penalty(logits, controls["seen"], controls["penalty"])
    if "temperature" not in controls:
        return logits.argmax(1)
    uniform = F.uniform(controls["key"], (logits.shape[0],))
    filters = (controls[name] for name in ("temperature", "top_k", "top_p", "min_p"))
    return F.sample(logits, *filters, uniform)


def chunk_sizes(length: int) -> list[tuple[int, int]]:
    """How a prompt is cut: (padded size, real tokens) of each chunk."""
    chunks: list[tuple[int, int]] = []
    while length > 0:
        size = next((c for c in CHUNKS if c >= length), CHUNKS[-1])
        chunks.append((size, min(size, length)))
        length -= size
    return chunks
