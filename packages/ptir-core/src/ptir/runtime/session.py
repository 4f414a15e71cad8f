"""One batch of prompts being continued: cache, positions, chunked prefill, decoding.

Rows of unequal length sit side by side: row b's next token goes to position ``lengths[b]``, and a
row with ``count`` 0 in a step is left as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ptir.backend.contract import Target
from ptir.capture.lazy import from_handle, tensor
from ptir.capture.tensor import Tensor
from ptir.runtime.generation import SamplingOptions
from ptir.runtime.steps import Steps, choose, chunk_sizes

Progress = Callable[[int, int], None]
Array = np.ndarray[Any, Any]


class Session:
    """Prompts being continued together on a fixed-capacity cache."""

    def __init__(
        self, steps: Steps, target: Target, caches: Sequence[Any], options: SamplingOptions
    ) -> None:
        self._steps = steps
        self._target = target
        self._options = options
        self.batch, _, self.capacity, _ = caches[0][0].shape
        self._cache = tuple((self._zeros(k), self._zeros(v)) for k, v in caches)
        self.lengths = np.zeros(self.batch, np.int32)
        self._drawn = 0
        self._seen: Array | None = None

    def _zeros(self, type: Any) -> Tensor:
        zeros = np.zeros(type.shape, type.dtype.numpy)
        handle = self._target.backend.upload(zeros, self._target.device)
        return from_handle(handle, type, self._target)

    def _tensor(self, array: Array) -> Tensor:
        return tensor(array, backend=self._target)

    def prefill(self, prompts: Sequence[Sequence[int]], progress: Progress | None = None) -> Array:
        """Run the prompts into the cache; returns the logits f32[B,V] after each last token."""
        longest = max(map(len, prompts))
        final: Array | None = None
        done = 0
        for size, real in chunk_sizes(longest):
            counts = np.clip([len(p) - done for p in prompts], 0, real).astype(np.int32)
            tokens = np.zeros((self.batch, size), np.int32)
            for row, prompt in enumerate(prompts):
                tokens[row, : counts[row]] = prompt[done : done + counts[row]]
            logits = self._extend(tokens, counts)
            ends = (counts > 0) & (np.array([len(p) for p in prompts]) <= done + real)
            if ends.any():
                values = logits.numpy()
                final = np.zeros_like(values) if final is None else final
                final[ends] = values[ends]
            done += real
            if progress:
                progress(done, longest)
        assert final is not None
        return final

    def _extend(self, tokens: Array, counts: Array) -> Tensor:
        logits, self._cache = self._steps.extend(
            self._tensor(tokens),
            self._cache,
            self._tensor(self.lengths),
            self._tensor(counts),
            every=False,
        )
        self.lengths = self.lengths + counts
        result: Tensor = logits
        return result

    def watch(self, prompts: Sequence[Sequence[int]], vocabulary: int) -> None:
        """Remember which tokens each row holds, for the repetition penalty."""
        if self._options.repetition_penalty == 1:
            return
        self._seen = np.zeros((self.batch, vocabulary), np.bool_)
        for row, prompt in enumerate(prompts):
            self._seen[row, list(prompt)] = True

    def note(self, row: int, token: int) -> None:
        """Remember a generated token."""
        if self._seen is not None:
            self._seen[row, token] = True

    def pick(self, logits: Array) -> Array:
        """The next token of each row from logits on the host, with the same program parts."""
        return choose(self._tensor(logits), self._controls()).numpy()

    def advance(self, tokens: Array, active: Array, logits_too: bool) -> tuple[Array, Array | None]:
        """Append one token to each active row; returns the next tokens and, if asked, logits."""
        result = self._steps.advance(
            self._tensor(tokens.astype(np.int32).reshape(self.batch, 1)),
            self._cache,
            self._tensor(self.lengths),
            self._tensor(active.astype(np.int32)),
            self._controls(),
            logits_too=logits_too,
        )
        self._cache = result[1]
        self.lengths = self.lengths + active.astype(np.int32)
        return result[0].numpy(), result[2].numpy() if logits_too else None

    def _controls(self) -> dict[str, Tensor]:
        options, rows = self._options, self.batch
        controls: dict[str, Tensor] = {}
        if self._seen is not None:
            penalty = np.full(rows, options.repetition_penalty, np.float32)
            controls |= {"seen": self._tensor(self._seen), "penalty": self._tensor(penalty)}
        if options.greedy:
            return controls
        for name in ("temperature", "top_p", "min_p"):
            value = np.full(rows, getattr(options, name), np.float32)
            controls[name] = self._tensor(value)
        controls["top_k"] = self._tensor(np.full(rows, options.top_k, np.int32))
        seed = options.seed ^ (self._drawn * 0x9E3779B97F4A7C15 & (2**64 - 1))
        self._drawn += 1
        key = np.array([seed & 0xFFFFFFFF, seed >> 32], np.uint32)
        return controls | {"key": self._tensor(key)}


def capacity_for(needed: int, context: int) -> int:
    """The cache capacity for ``needed`` positions: a multiple of 64, at most the context."""
    return min(context, -(-needed // 64) * 64)



