"""The caches of layers with a window in a session's state: where they begin, and how they slide.

Kernels of attention read keys that lie side by side, by how far they are from the query. So what
such a layer keeps is no ring that wraps: the tensors slide towards their beginning, now and then
and as a whole, and between two slides a step on them is one on any other cache.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from ptir.backend.contract import Target
from ptir.capture.jit import jit
from ptir.capture.plan import Plan
from ptir.capture.tensor import Tensor, from_handle
from ptir.errors import UsageError
from ptir.nn import slid
from ptir.nn.state import LayerState, LayerTensors, State, WindowKeysValues
from ptir.types import I32, TensorType

Array = np.ndarray[Any, Any]
Size = tuple[int, int]
"""A window and its room: caches with the same ones begin at the same positions."""
Firsts = dict[Size, Array]
"""The first position that each row still has, i64[B], by size."""

FREED: Final = 2
"""A slide frees at least a room over this: few slides, and much that can still be trimmed."""


class WindowCaches:
    """Those of ``batch`` rows; ``layers`` are their numbers among ``states``."""

    def __init__(self, states: Sequence[LayerState], batch: int, target: Target) -> None:
        self._states = {n: s for n, s in enumerate(states) if isinstance(s, WindowKeysValues)}
        self._batch, self._target = batch, target
        self._slide = jit(_slide, donate=("cache",))
        self.restart()

    def restart(self) -> None:
        """Every row begins with its first position."""
        sizes = {(state.window, state.room) for state in self._states.values()}
        self.firsts: Firsts = {size: np.zeros(self._batch, np.int64) for size in sizes}

    @property
    def layers(self) -> tuple[int, ...]:
        """The numbers of the layers with such a cache."""
        return tuple(self._states)

    @property
    def most(self) -> int | None:
        """How many positions one step may take in; None where any number will do."""
        return min((room for _, room in self.firsts), default=None)

    def holds(self, row: int, position: int, firsts: Firsts | None = None) -> bool:
        """Whether all is there that a token at ``position`` of a row sees."""
        places = self.firsts if firsts is None else firsts
        return all(one[row] <= max(0, position + 1 - window) for (window, _), one in places.items())

    def slides_for(self, positions: Array, counts: Array, capacity: int) -> Firsts:
        """Where caches must begin so that rows at ``positions`` have room for ``counts`` more.

        Those that have it already are left out. Raises ``UsageError`` for more than a step takes.
        """
        found: Firsts = {}
        for (window, room), first in self.firsts.items():
            places, most = window + room, int(counts.max(initial=0))
            short = positions + counts > first + places
            if places >= capacity or not short.any():
                continue
            if most > room:
                raise UsageError(
                    f"a step over {most} tokens: the cache of a window of {window} has room for"
                    f" {room} at a time; cut them into smaller pieces"
                )
            free = np.maximum(counts, room // FREED)  # no more than a room: what is seen stays
            found[window, room] = np.where(short, positions + free - places, first)
        return found

    def slid(self, tensors: State, wanted: Firsts) -> State:
        """The same state with caches that begin where they are ``wanted`` to; takes it over."""
        moved = list(tensors)
        for size, first in wanted.items():
            by = self._tensor(first - self.firsts[size])
            for layer in self._of(size):
                moved[layer] = self._slide(moved[layer], by)
            self.firsts[size] = first
        return tuple(moved)

    def begun(self, tensors: State) -> State:
        """The same state whose tensors say where caches begin, after a change of ``firsts``."""
        told = list(tensors)
        for size, first in self.firsts.items():
            for layer in self._of(size):
                told[layer] = (*told[layer][:2], self._tensor(first))
        return tuple(told)

    def captures(self, tensors: State, capacity: int) -> list[Callable[[], Plan]]:
        """What compiles the programs that slide, in a state of ``capacity`` positions."""
        return [
            self._capture(tensors[layer])
            for layer, state in self._states.items()
            if state.places(capacity) < capacity
        ]

    def _capture(self, cache: LayerTensors) -> Callable[[], Plan]:
        by = self._tensor(np.zeros(self._batch, np.int64))
        return lambda: self._slide.prepare(cache, by)

    def _of(self, size: Size) -> list[int]:
        return [n for n, state in self._states.items() if (state.window, state.room) == size]

    def _tensor(self, positions: Array) -> Tensor:
        array = positions.astype(np.int32)
        handle = self._target.backend.upload(array, self._target.device)
        return from_handle(handle, TensorType(I32, array.shape), self._target)


def _slide(cache: LayerTensors, by: Tensor) -> LayerTensors:
    return slid(cache, by)
