"""The captured steps of a language model: prefill chunks and single-token decoding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from ptir import functional as F
from ptir.capture.jit import jit
from ptir.capture.plan import Plan
from ptir.capture.tensor import Tensor
from ptir.models.nextn import Predicting
from ptir.models.table import CausalModel
from ptir.nn.state import LayerTensors, State, merged
from ptir.types import TensorType

CHUNKS: Final = (8, 32, 128, 512)
"""Prompt chunks are padded to these lengths, so a few programs serve every prompt."""


class Steps:
    """A bound model's steps, compiled once per batch size, cache capacity and chunk size."""

    def __init__(self, model: CausalModel) -> None:
        self._model = model
        self._jitted: dict[tuple[str, int, int], Any] = {}

    def extend(self, batch: int, capacity: int) -> Any:
        """``(tokens i32[B,T], state, start, count)`` to the last logits and the next state."""
        return self._get(self._extend, batch, capacity)

    def advance(self, batch: int, capacity: int) -> Any:
        """``(tokens i32[B], state, start, count, controls, draw, logits_too)`` to the next ones.

        ``controls`` are those of ``choose``, but ``uniform`` f32[N,B] holds the draws of N steps,
        of which row ``draw`` i32[1] is used (without ``uniform``: None). The result is the tokens
        i32[B], the next state, the next ``start``, the next ``draw`` and, if asked, the logits.
        """
        return self._get(self._advance, batch, capacity)

    def verify(self, batch: int, capacity: int) -> Any:
        """``(tokens i32[1,T], state, held, start, count, controls, logits_too)`` to what follows.

        The result is the tokens i32[T] that are chosen after each of the given ones, the next state
        and, if asked, the logits f32[T,V]. ``controls`` are those of ``choose`` for T rows. The
        tensors of layers that cannot be trimmed are those of ``held``, which stay as they are; in
        ``state`` their places are empty.
        """
        return self._get(self._verify, batch, capacity)

    def read(self, capacity: int) -> Any:
        """``(tokens i32[1,T], kept [1,1,C,D], state, start, count)`` to what the head says then.

        See ``Predicting.read``, which the model must be.
        """
        return self._get(self._read, 1, capacity)

    def propose(self, capacity: int) -> Any:
        """``(token i32[1], hidden f32[1,D], state, start)`` to the next ones, by the model's head.

        See ``Predicting.propose``, which the model must be.
        """
        return self._get(self._propose, 1, capacity)

    def at_once(self, batch: int, capacity: int, budget: int) -> int:
        """How many steps may be submitted in one call that reads ``budget`` bytes of weights."""
        plans: tuple[Plan, ...] = self.advance(batch, capacity).plans
        return max(1, budget // max(1, plans[-1].weights)) if plans else 1

    def _get(self, step: Any, batch: int, capacity: int) -> Any:
        key = (step.__name__, batch, capacity)
        if key not in self._jitted:
            self._jitted[key] = jit(step, donate=("state",))
        return self._jitted[key]

    def _extend(
        self, tokens: Tensor, state: State, start: Tensor, count: Tensor
    ) -> tuple[Tensor, State]:
        return self._model(tokens, state, start, count)

    def _read(
        self, tokens: Tensor, kept: Tensor, state: LayerTensors, start: Tensor, count: Tensor
    ) -> tuple[Tensor, Tensor, LayerTensors, Tensor]:
        assert isinstance(self._model, Predicting)
        return self._model.read(tokens, kept, state, start, count)

    def _propose(
        self, token: Tensor, hidden: Tensor, state: LayerTensors, start: Tensor
    ) -> tuple[Tensor, Tensor, LayerTensors, Tensor]:
        assert isinstance(self._model, Predicting)
        return self._model.propose(token, hidden, state, start)

    def _verify(
        self,
        tokens: Tensor,
        state: State,
        held: State,
        start: Tensor,
        count: Tensor,
        controls: dict[str, Tensor],
        logits_too: bool,
    ) -> tuple[Any, ...]:
        logits, state = self._model(tokens, merged(state, held), start, count, every=True)
        rows = logits.reshape(tokens.shape[1], -1)
        return choose(rows, controls), state, rows if logits_too else None

    def _advance(
        self,
        tokens: Tensor,
        state: State,
        start: Tensor,
        count: Tensor,
        controls: dict[str, Tensor],
        draw: Tensor | None,
        logits_too: bool,
    ) -> tuple[Any, ...]:
        if draw is not None:
            controls = controls | {"uniform": F.take(controls["uniform"], draw).reshape(-1)}
        logits, state = self._model(tokens.reshape(-1, 1), state, start, count)
        following = None if draw is None else draw + 1
        result = (choose(logits, controls), state, start + count, following)
        return (*result, logits) if logits_too else result


def all_logits(
    model: CausalModel,
    types: Callable[[int, int], Sequence[Sequence[TensorType]]],
    tokens: Tensor,
    count: Tensor,
) -> Tensor:
    """Logits f32[B,T,V] of all positions of ``tokens`` i32[B,T], from the start of a text on.

    ``types`` are those of the state for rows and a capacity, ``count`` i32[B] says which tokens
    are real.
    """
    batch, length = tokens.shape
    zero = F.full((batch,), 0, "i32")
    state = tuple(
        tuple(F.full(one.shape, 0, one.dtype.name) for one in layer)
        for layer in types(batch, length)
    )
    return model(tokens, state, zero, count, every=True)[0]


def choose(logits: Tensor, controls: dict[str, Tensor]) -> Tensor:
    """The next token of each row; without controls the most likely one.

    ``controls`` may hold ``seen`` bool[B,V] and ``penalty`` f32[B] (repetition penalty), and the
    sampler's ``temperature``, ``top_k``, ``top_p``, ``min_p`` and ``uniform`` f32[B], its draws.
    """
    if "seen" in controls:
        logits = F.repetition_penalty(logits, controls["seen"], controls["penalty"])
    if "temperature" not in controls:
        return logits.argmax(1)
    names = ("temperature", "top_k", "top_p", "min_p", "uniform")
    return F.sample(logits, *(controls[name] for name in names))


def fitting_chunk(length: int, sizes: Sequence[int] = CHUNKS) -> int:
    """The size of the chunk for ``length`` tokens, or of the largest there is."""
    return next((size for size in sizes if size >= length), sizes[-1])


def chunk_sizes(length: int, most: int | None = None) -> list[tuple[int, int]]:
    """How a prompt is cut: (padded size, real tokens) of each chunk.

    The rest goes into one chunk if at least half of that is used, else a smaller one comes first.
    No chunk but the smallest is larger than ``most``, where a step may take no more.
    """
    allowed = [size for size in CHUNKS if most is None or size <= most] or CHUNKS[:1]
    chunks: list[tuple[int, int]] = []
    while length > 0:
        fitting = fitting_chunk(length, allowed)
        smaller = max((size for size in allowed if size <= length), default=fitting)
        size = fitting if 2 * length > fitting else smaller
        chunks.append((size, min(size, length)))
        length -= size
    return chunks
