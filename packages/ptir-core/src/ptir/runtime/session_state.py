"""The state of all layers between steps: allocated, taken back to earlier positions, enlarged."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from ptir.backend.contract import Target
from ptir.capture.plan import Plan
from ptir.capture.tensor import Tensor, from_handle
from ptir.errors import OutOfMemory, UsageError
from ptir.nn.state import LayerState, State
from ptir.runtime.window_caches import Firsts, WindowCaches
from ptir.types import DType, TensorType

Array = np.ndarray[Any, Any]

MARKS: Final = 4
"""Copies of what cannot be trimmed that are kept; the oldest goes first."""


@dataclass(frozen=True)
class Mark:
    """The tensors of layers that cannot be trimmed, as they were at ``positions``.

    Those of layers with a window are among them once their caches have slid too far to come back
    without, and ``firsts`` then says where they begin. ``logits`` f32[B,V] are those behind the
    last tokens, where the state cannot go back by one to compute them again.
    """

    positions: Array
    tensors: dict[int, tuple[Array, ...]]
    firsts: Firsts | None = None
    logits: Array | None = None


class SessionState:
    """What the layers of a model carry for ``batch`` rows with room for ``capacity`` positions.

    ``tensors`` are given to a step, which takes them over, and replaced by what it returns.
    ``positions`` i64[B] counts what every row has taken in: who runs steps adds to it. ``tokens``
    are those that a row has taken in, as far as they are known: fewer where steps ran ahead.
    ``run`` is of the run that goes on with it last; those before it have nothing to say.
    ``model`` is whose layers it is of, where a model made it; with ``heads`` those of the model's
    head are the last two (``ptir.models.nextn.Predicting``), and ``read`` i64[B] counts how many
    positions of a row that head has read. ``logits`` f32[B,V] are what ``keep``
    found behind rows that are held to their ends. ``drafts`` are the states of models that proposed
    how the row goes on.
    """

    logits: Array | None = None
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
        self._windows = WindowCaches(states, batch, at)
        self._dtype, self._target = cache_dtype, at
        self.batch, self.capacity = batch, capacity
        self.drafts: list[SessionState] = []
        self.restart()

    def restart(self) -> None:
        """Forget everything: the state before the first step."""
        self.positions = np.zeros(self.batch, np.int64)
        self.read = np.zeros(self.batch, np.int64)
        self.tokens: list[list[int]] = [[] for _ in range(self.batch)]
        self.tensors: State = tuple(
            tuple(self._zeros(one) for one in self._types(state, self.capacity))
            for state in self._states
        )
        self._windows.restart()
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

    # --- room for a step ---

    @property
    def largest_step(self) -> int | None:
        """How many positions a row may take in at a time; None where any number will do."""
        return self._windows.most

    def reserve(self, counts: Array, positions: Array | None = None) -> None:
        """Make room for a step of ``counts`` i64[B] tokens on rows that hold ``positions``.

        Caches of windows slide for it, where they must. The rows hold what is counted, unless it is
        said. Raises ``UsageError`` for more tokens than ``largest_step``.
        """
        at = self.positions if positions is None else positions
        wanted = self._windows.slides_for(at, counts, self.capacity)
        if not wanted:
            return
        self._save({**self._windows.firsts, **wanted})
        self.tensors = self._windows.slid(self.tensors, wanted)

    def slide_captures(self) -> list[Callable[[], Plan]]:
        """What compiles the programs by which ``reserve`` makes room."""
        return self._windows.captures(self.tensors, self.capacity)

    def _save(self, firsts: Firsts) -> None:
        """Have the last mark keep what the caches of windows lack once they begin at ``firsts``.

        Those before it no longer do: one such copy is enough, most texts go on from the last one.
        The last token before a mark is taken in again where a text is the same (``keep``).
        """
        if not self._marks or self._marks[-1].firsts is not None:
            return
        last = self._marks[-1]
        now, later = (
            all(self._windows.holds(row, at - 1, one) for row, at in enumerate(last.positions))
            for one in (self._windows.firsts, firsts)
        )
        if later or not now:
            return
        self._marks = deque(map(self._forgotten, self._marks), MARKS)
        kept = {**last.tensors, **self._copied(self._windows.layers)}
        begun = {size: first.copy() for size, first in self._windows.firsts.items()}
        self._marks[-1] = replace(last, tensors=kept, firsts=begun)

    def _forgotten(self, mark: Mark) -> Mark:
        """A mark without caches of windows."""
        kept = {n: one for n, one in mark.tensors.items() if n not in self._windows.layers}
        return replace(mark, tensors=kept, firsts=None)

    def _copied(self, layers: Iterable[int]) -> dict[int, tuple[Array, ...]]:
        return {n: tuple(one.numpy().copy() for one in self.tensors[n]) for n in layers}

    # --- back to earlier positions ---

    def mark(self, logits: Array | None = None) -> None:
        """Make ``rewind`` able to come back here; costs a copy of what cannot be trimmed.

        What windows see is copied later, where caches slide so far that it would be lost. With the
        ``logits`` f32[B,V] of the last tokens ``keep`` need not leave them to be taken in again.
        """
        if self._marks and (self._marks[-1].positions == self.positions).all():
            return  # of the same tokens: others would have to go for it
        layers = self._untrimmed()
        if layers or self._windows.layers:
            behind = logits if layers else None  # others go back by one token anyway
            made = Mark(self.positions.copy(), self._copied(layers), logits=behind)
            self._marks.append(made)

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
        last one is, because logits come of it, unless a mark has those behind all ``rows``: then
        they are ``logits``, and nothing is to be taken in.
        """
        pairs = zip(self.tokens, rows, strict=True)
        alike = np.array([_common(held, row) for held, row in pairs], np.int64)
        lengths = np.array([len(row) for row in rows], np.int64)
        self.logits = self._logits_behind(lengths) if (alike == lengths).all() else None
        ends = lengths - (self.logits is None)
        found = self.rewind(np.minimum(np.minimum(alike, ends), self.positions).tolist())
        if self.logits is not None and (found < lengths).any():  # a window was lost
            self.logits = None
            found = self.rewind(np.minimum(found, lengths - 1).tolist())
        self.tokens = [list(row[:count]) for row, count in zip(rows, found, strict=True)]
        return found

    def _logits_behind(self, positions: Array) -> Array | None:
        """Those that a mark at ``positions`` has."""
        marks = (mark for mark in reversed(self._marks) if (mark.positions == positions).all())
        return next((mark.logits for mark in marks), None)

    def rewind(self, positions: Sequence[int]) -> Array:
        """Take each row back to a position, or to the last one before it that can be reached.

        That is the position itself where all layers can be trimmed and the caches of windows still
        hold what stood before it, else the last mark before it or 0. Returns the positions reached,
        i64[B]. Raises ``UsageError`` for positions that no row has come to.
        """
        wanted = np.array(positions, np.int64)
        if wanted.shape != (self.batch,) or (wanted < 0).any() or (wanted > self.positions).any():
            raise UsageError(
                f"rewind to {wanted.tolist()}: give each of the {self.batch} rows a position from 0"
                f" to what it holds, {self.positions.tolist()}"
            )
        layers = self._untrimmed()
        back: dict[int, Mark | None] = {}
        for row in np.flatnonzero(wanted < self.positions).tolist():
            if layers or self._lacks(row, wanted[row]):
                wanted[row], back[row] = self._way_back(row, wanted[row])
        if back:
            self._put_back(layers, back)
            self._put_windows_back({r: m for r, m in back.items() if self._lacks(r, wanted[r])})
        self.positions = wanted
        # The head read the last position together with the token behind it, which is gone.
        self.read = np.minimum(self.read, np.maximum(wanted - 1, 0))
        self.tokens = [row[:at] for row, at in zip(self.tokens, wanted, strict=True)]
        self._marks = deque((m for m in self._marks if (m.positions <= wanted).all()), MARKS)
        return wanted.copy()

    def _untrimmed(self) -> list[int]:
        """The layers that do not come back by forgetting alone."""
        return [n for n, state in enumerate(self._states) if state.names and not state.trims]

    def _way_back(self, row: int, position: int) -> tuple[int, Mark | None]:
        """The position that a mark takes a row back to, and that mark; 0 and none without.

        What a mark keeps of windows serves for earlier positions than its own, too.
        """
        for mark in [] if self._untrimmed() else reversed(self._marks):
            ahead = mark.firsts is not None and mark.positions[row] >= position
            if ahead and self._windows.holds(row, position, mark.firsts):
                return position, mark
        before = self._mark_before(row, position)
        return (0, None) if before is None else (int(before.positions[row]), before)

    def _mark_before(self, row: int, position: int) -> Mark | None:
        """The last mark that leads back, at which a row was not yet beyond ``position``."""
        return next(
            (
                mark
                for mark in reversed(self._marks)
                if mark.positions[row] <= position
                and (mark.firsts is not None or self._windows.holds(row, mark.positions[row]))
            ),
            None,
        )

    def _lacks(self, row: int, position: int) -> bool:
        return not self._windows.holds(row, position)

    def _put_windows_back(self, found: Mapping[int, Mark | None]) -> None:
        """Rows of the caches of windows from marks; without one they begin anew."""
        if not found:
            return
        saved = {row: mark for row, mark in found.items() if mark is not None}
        if saved:
            self._put_back(self._windows.layers, saved)
        for size, first in self._windows.firsts.items():
            for row, mark in found.items():
                begun = None if mark is None else mark.firsts
                first[row] = 0 if begun is None else begun[size][row]
        self.tensors = self._windows.begun(self.tensors)

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

        Tensors that have a place for each position are copied into larger ones. Everything is
        forgotten where what a layer keeps would be another with more room: ``keep`` then says so.
        """
        if capacity < self.capacity:
            raise UsageError(f"enlarge to {capacity}: there is room for {self.capacity} already")
        if not all(state.serves(self.capacity, capacity) for state in self._states):
            self.capacity = capacity
            self.restart()
            return
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
