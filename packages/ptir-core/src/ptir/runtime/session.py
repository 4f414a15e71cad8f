"""One batch of prompts being continued: cache, positions, chunked prefill, decoding.

Rows of unequal length sit side by side: row b's next token goes to its own position, and a row
with ``count`` 0 in a step is left as it is. Decoding keeps tokens and positions on the device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from ptir.backend.contract import Target
from ptir.capture.lazy import fetch, from_handle
from ptir.capture.tensor import Tensor
from ptir.errors import UsageError
from ptir.ops.numerics import rng_bits
from ptir.runtime.generation import SamplingOptions
from ptir.runtime.steps import Steps, choose, chunk_sizes
from ptir.types import BOOL, F32, I32, DType, TensorType

if TYPE_CHECKING:
    from ptir.runtime.handle import Model

Progress = Callable[[int, int], None]
Array = np.ndarray[Any, Any]

_WORD = 0xFFFFFFFF


class Draws:
    """The sampler's random numbers: each row has a stream of its own, which its seed decides.

    Draw n of a row is element n of ``functional.uniform`` under the key (low word, high word) of
    its seed: neither the other rows nor the row's place in the batch matter.
    """

    def __init__(self, seeds: Sequence[int]) -> None:
        self._keys = [np.array([seed & _WORD, seed >> 32], np.uint32) for seed in seeds]
        self._known = np.empty((len(seeds), 0), np.float32)
        self._taken = 0

    def take(self) -> Array:
        """The next draw of every row, f32[B] in [0, 1)."""
        if self._taken == self._known.shape[1]:
            size = max(64, 2 * self._taken)
            words = np.stack([rng_bits(key, shape=(size,)) for key in self._keys])
            self._known = (words >> 8).astype(np.float32) * np.float32(2.0**-24)
        self._taken += 1
        return self._known[:, self._taken - 1].copy()


@dataclass(frozen=True)
class _Step:
    """A step that was submitted: its rows, its tokens and what waits for them, and its logits."""

    active: Array
    tokens: Tensor
    fetched: Callable[[], Array] | None
    logits: Tensor | None


class Session:
    """Prompts being continued together on a fixed-capacity cache.

    ``prefill`` comes first, then ``pick``, then one ``advance`` per further token.
    """

    def __init__(
        self,
        steps: Steps,
        target: Target,
        caches: Sequence[Any],
        options: SamplingOptions,
        rows: int,
        capacity: int,
    ) -> None:
        self._steps = steps
        self._target = target
        self._options = options
        self.batch, self.capacity = rows, capacity
        self._cache = tuple((self._zeros(k), self._zeros(v)) for k, v in caches)
        self._constants = self._constant_controls()
        self._draws = Draws(options.seeds(rows))
        self._seen: Array | None = None
        self._tokens: Tensor
        self._start: Tensor
        self._active: tuple[bytes, Tensor] | None = None
        self._ahead: _Step | None = None

    @classmethod
    def of(
        cls, model: Model, rows: int, needed: int, options: SamplingOptions | None = None
    ) -> Self:
        """A session of a loaded model for ``rows`` prompts with room for ``needed`` positions."""
        capacity = capacity_for(needed, model.context)
        caches = model.cache_types(rows, capacity)
        chosen = options or SamplingOptions()
        return cls(model.steps, model.target, caches, chosen, rows, capacity)

    def _zeros(self, type: TensorType) -> Tensor:
        return self._tensor(np.zeros(type.shape, type.dtype.numpy), type.dtype)

    def _tensor(self, array: Array, dtype: DType = I32) -> Tensor:
        """Upload an array that already has the element type ``dtype``."""
        handle = self._target.backend.upload(array, self._target.device)
        return from_handle(handle, TensorType(dtype, array.shape), self._target)

    def prefill(self, prompts: Sequence[Sequence[int]], progress: Progress | None = None) -> Array:
        """Run the prompts into the cache; returns the logits f32[B,V] after each last token."""
        lengths = np.array([len(prompt) for prompt in prompts], np.int32)
        longest, done = int(lengths.max()), 0
        found: list[tuple[Array, Array]] = []
        for size, real in chunk_sizes(longest):
            logits = self._extend(prompts, lengths, done, size)
            ending = (lengths > done) & (lengths <= done + size)
            if ending.any():
                found.append((ending, logits.numpy()))
            done += real
            if progress:
                progress(done, longest)
        self._start = self._tensor(lengths)
        final: Array = found[-1][1].copy()
        for ending, values in found:
            final[ending] = values[ending]
        return final

    def _extend(
        self, prompts: Sequence[Sequence[int]], lengths: Array, done: int, size: int
    ) -> Tensor:
        counts = np.clip(lengths - done, 0, size)
        tokens = np.zeros((self.batch, size), np.int32)
        for row, prompt in enumerate(prompts):
            tokens[row, : counts[row]] = prompt[done : done + counts[row]]
        start = self._tensor(np.minimum(lengths, done))
        count = self._tensor(counts)
        extend = self._steps.extend(self.batch, self.capacity)
        logits, self._cache = extend(self._tensor(tokens), self._cache, start, count)
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
        self._tokens = choose(self._tensor(logits, F32), self._controls())
        return self._tokens.numpy()

    def advance(
        self, active: Array, logits_too: bool = False, ahead: bool = False
    ) -> tuple[Array, Array | None]:
        """Append the tokens last chosen to the ``active`` rows and choose the next ones.

        Returns these i32[B] and, if asked, the logits f32[B,V] behind them. ``ahead`` says that
        most likely some of the rows go on: where the device works by itself, the step after is
        queued before this one's tokens are waited for. Rows may leave then, but not come back.
        """
        step, self._ahead = self._ahead, None
        if step is None:
            step = self._queue(active, logits_too)
        elif (active & ~step.active).any() or logits_too:
            asked, known = (np.flatnonzero(rows).tolist() for rows in (active, step.active))
            raise UsageError(
                f"advance of rows {asked} with logits_too={logits_too}: this step was submitted"
                f" ahead, for rows {known} and without logits; leave out ahead=True before it"
            )
        if ahead and step.fetched and not logits_too and self._seen is None:
            self._ahead = self._queue(active, False)
        tokens = step.fetched() if step.fetched else step.tokens.numpy()
        return tokens, step.logits.numpy() if step.logits is not None else None

    def _queue(self, active: Array, logits_too: bool) -> _Step:
        """Submit a step."""
        advance = self._steps.advance(self.batch, self.capacity)
        count = self._count(active)
        controls = self._controls()
        result = advance(self._tokens, self._cache, self._start, count, controls, logits_too)
        self._tokens, self._cache, self._start = result[:3]
        logits = result[3] if logits_too else None
        return _Step(active.copy(), self._tokens, fetch(self._tokens.ref), logits)

    def _count(self, active: Array) -> Tensor:
        key = active.tobytes()
        if self._active is None or self._active[0] != key:
            self._active = key, self._tensor(active.astype(np.int32))
        return self._active[1]

    def _constant_controls(self) -> dict[str, Tensor]:
        """The operands of ``choose`` that stay the same for the whole session, uploaded once."""
        options, rows = self._options, self.batch
        values = {} if options.repetition_penalty == 1 else {"penalty": options.repetition_penalty}
        if not options.greedy:
            values |= {name: getattr(options, name) for name in ("temperature", "top_p", "min_p")}
        constants = {
            name: self._tensor(np.full(rows, value, np.float32), F32)
            for name, value in values.items()
        }
        if not options.greedy:
            constants["top_k"] = self._tensor(np.full(rows, options.top_k, np.int32))
        return constants

    def _controls(self) -> dict[str, Tensor]:
        controls = dict(self._constants)
        if self._seen is not None:
            controls["seen"] = self._tensor(self._seen, BOOL)
        if not self._options.greedy:
            controls["uniform"] = self._tensor(self._draws.take(), F32)
        return controls


def capacity_for(needed: int, context: int) -> int:
    """The cache capacity for ``needed`` positions, at most the context.

    The next power of two from 64 to 4096, beyond that a multiple of 4096: few sizes, few programs.
    """
    step = min(4096, max(64, 1 << (needed - 1).bit_length()))
    return min(context, -(-needed // step) * step)
