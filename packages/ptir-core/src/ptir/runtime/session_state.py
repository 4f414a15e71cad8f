"""The state of all layers between steps: allocated, taken back to earlier positions, enlarged."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ptir.backend.contract import Target
from ptir.capture.tensor import Tensor, from_handle
from ptir.errors import OutOfMemory, UsageError
from ptir.nn.state import LayerState, State
from ptir.types import DType, TensorType

Array = np.ndarray[Any, Any]

MARKS: Final = 4
"""Copies of what cannot be trimmed that are kept; the oldest goes first."""


@dataclass(frozen=True)
class Mark:
    """The tensors of layers that cannot be trimmed, as they were at ``positions``."""

    positions: Array
    tensors: dict[int, tuple[Array, ...]]


class SessionState:
    """What the layers of a model carry for ``batch`` rows with room for ``capacity`` positions.

    ``tensors`` are given to a step, which takes them over, and replaced by what it returns.
    ``positions`` i64[B] counts what every row has taken in: who runs steps adds to it. ``tokens``
    are those that a row has taken in, as far as they are known: fewer where steps ran ahead.
    ``run`` is of the run that goes on with it last; those before it have nothing to say.
    ``model`` is whose layers it is of, where a model made it; with ``heads`` those of the model's
    head are the last two (``ptir.models.nextn.Predicting``).
    """

    run: object = None
    model: object = None
    heads: bool = False

    def __init__(
        self,
        states: Sequence[LayerState],
        batch: int,
        capacity: int,
        cache_dtype: DType,
        at: Target,
    ) -> None:
        self._states = tuple(states)
        self._dtype, self._target = cache_dtype, at
        self.batch, self.capacity = batch, capacity
        self.restart()

    def restart(self) -> None:
        """Forget everything: the state before the first step."""
        self.positions = np.zeros(self.batch, np.int64)
        self.tokens: list[list[int]] = [[] for _ in range(self.batch)]
        self.tensors: State = tuple(
            tuple(self._zeros(one) for one in self._types(state, self.capacity))
            for state in self._states
        )
        self._marks: deque[Mark] = deque(maxlen=MARKS)

    def _types(self, state: LayerState, capacity: int) -> tuple[TensorType, ...]:
        return state.types(self.batch, capacity, self._dtype)

    def _zeros(self, type: TensorType) -> Tensor:
        try:
            zeros = np.zeros(type.shape, type.dtype.numpy)
        except MemoryError as error:
            raise OutOfMemory(
                f"the state {type} of a layer does not fit the memory; ask for fewer tokens (-n)"
            ) from error
        return self._tensor(zeros, type.dtype)

    def _tensor(self, array: Array, dtype: DType) -> Tensor:
        handle = self._target.backend.upload(array, self._target.device)
        return from_handle(handle, TensorType(dtype, array.shape), self._target)

    # --- back to earlier positions ---

    def mark(self) -> None:
        """Make ``rewind`` able to come back here; costs a copy of what cannot be trimmed."""
        layers = self._untrimmed()
        if layers:
            tensors = {n: tuple(one.numpy().copy() for one in self.tensors[n]) for n in layers}
            self._marks.append(Mark(self.positions.copy(), tensors))

    def split(self) -> tuple[State, State]:
        """The tensors of layers that can be trimmed, and those of the others.

        Each has nothing in the places of layers that are the other's.
        """
        layers = frozenset(self._untrimmed())
        numbered = list(enumerate(self.tensors))
        trimmed = tuple(() if n in layers else tensors for n, tensors in numbered)
        return trimmed, tuple(tensors if n in layers else () for n, tensors in numbered)

    def keep(self, rows: Sequence[Sequence[int]]) -> Array:
        """Keep what ``rows`` of tokens begin with, but for their last ones; forget the rest.

        Returns how many tokens of each are held then, i64[B]: those behind are to be taken in. The
        last one always is, because logits come of it.
        """
        pairs = list(zip(self.tokens, rows, strict=True))
        alike = [min(_common(held, row), len(row) - 1) for held, row in pairs]
        found = self.rewind(np.minimum(alike, self.positions).tolist())
        self.tokens = [list(row[:count]) for row, count in zip(rows, found, strict=True)]
        return found

    def rewind(self, positions: Sequence[int]) -> Array:
        """Take each row back to a position, or to the last one before it that can be reached.

        That is the position itself where all layers can be trimmed, else the last mark before it
        or 0. Returns the positions reached, i64[B]. Raises ``UsageError`` for positions that no
        row has come to.
        """
        wanted = np.array(positions, np.int64)
        if wanted.shape != (self.batch,) or (wanted < 0).any() or (wanted > self.positions).any():
            raise UsageError(
                f"rewind to {wanted.tolist()}: give each of the {self.batch} rows a position from 0"
                f" to what it holds, {self.positions.tolist()}"
            )
        back = {
            row: self._mark_before(row, wanted[row])
            for row in np.flatnonzero(wanted < self.positions).tolist()
        }
        layers = self._untrimmed()
        if layers and back:
            self._put_back(layers, back)
            for row, mark in back.items():
                wanted[row] = 0 if mark is None else mark.positions[row]
        self.positions = wanted
        self.tokens = [row[:at] for row, at in zip(self.tokens, wanted, strict=True)]
        self._marks = deque((m for m in self._marks if (m.positions <= wanted).all()), MARKS)
        return wanted.copy()

    def _untrimmed(self) -> list[int]:
        """The layers that do not come back by forgetting alone."""
        return [n for n, state in enumerate(self._states) if state.names and not state.trims]

    def _mark_before(self, row: int, position: int) -> Mark | None:
        """The last mark at which a row was not yet beyond ``position``."""
        return next((m for m in reversed(self._marks) if m.positions[row] <= position), None)

    def _put_back(self, layers: Sequence[int], found: Mapping[int, Mark | None]) -> None:
        """Rows of the layers' tensors from marks; without one, as before the first step."""
        tensors = list(self.tensors)
        for layer in layers:
            arrays = [one.numpy().copy() for one in tensors[layer]]
            for at, array in enumerate(arrays):
                for row, mark in found.items():
                    array[row] = 0 if mark is None else mark.tensors[layer][at][row]
            types = (one.dtype for one in tensors[layer])
            tensors[layer] = tuple(map(self._tensor, arrays, types))
        self.tensors = tuple(tensors)

    # --- more room ---

    def enlarge(self, capacity: int) -> None:
        """Make room for ``capacity`` positions, which must not be fewer than there are.

        Tensors that have a place for each position are copied into larger ones.
        """
        if capacity < self.capacity:
            raise UsageError(f"enlarge to {capacity}: there is room for {self.capacity} already")
        wanted = (self._types(state, capacity) for state in self._states)
        self.tensors = tuple(
            tuple(map(self._enlarged, held, types))
            for held, types in zip(self.tensors, wanted, strict=True)
        )
        self.capacity = capacity

    def _enlarged(self, tensor: Tensor, type: TensorType) -> Tensor:
        sizes = zip(tensor.shape, type.shape, strict=True)
        grown = [axis for axis, (old, new) in enumerate(sizes) if old != new]
        for axis in grown:
            shape = (*tensor.shape[:axis], type.shape[axis], *tensor.shape[axis + 1 :])
            rest = (*shape[:axis], shape[axis] - tensor.shape[axis], *shape[axis + 1 :])
            array = np.concatenate([tensor.numpy(), np.zeros(rest, type.dtype.numpy)], axis)
            tensor = self._tensor(array, type.dtype)
        return tensor


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two rows begin with alike."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(one), len(other)))
