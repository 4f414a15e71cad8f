"""What a layer carries from one step to the next: one record per kind of state.

A model lists one for each of its layers (``states``). Whoever runs it sizes and holds the tensors,
gives them to a step and gets the next ones back; no kind is known outside this file. A record says
of which types the tensors are, and to which earlier positions they can be taken back.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import ClassVar, Final, Protocol, TypeVar

from ptir.capture.tensor import Tensor
from ptir.types import F32, I32, DType, TensorType
from ptir.types import dtype as dtype_named

LayerTensors = tuple[Tensor, ...]
State = tuple[LayerTensors, ...]
"""The tensors of all layers, as a step takes and returns them."""

T = TypeVar("T")

ROOM: Final = 512
"""Positions beside a window for which its cache has room: the largest piece of a prompt."""


class LayerState(Protocol):
    """What is asked of a kind of state; all tensors are zero before the first step.

    ``trims`` says whether the state after any number of positions also serves as that after the
    first few of them: what stands beyond a row's length is not read. What a window's cache has
    given up (``WindowKeysValues``) it lacks then, too.
    """

    trims: ClassVar[bool]

    @property
    def names(self) -> tuple[str, ...]:
        """What its tensors are called, in their order."""
        ...

    def types(self, batch: int, capacity: int, cache_dtype: DType = F32) -> tuple[TensorType, ...]:
        """The types of its tensors for ``batch`` rows of at most ``capacity`` positions.

        ``cache_dtype`` is the element type of what is kept for each position.
        """
        ...

    def serves(self, capacity: int, larger: int) -> bool:
        """Whether what is kept with room for ``capacity`` positions is right with more room."""
        ...


class Lasting:
    """What is kept is the same however much room there is."""

    def serves(self, capacity: int, larger: int) -> bool:
        """Always."""
        return True


@dataclass(frozen=True)
class KeysValues:
    """The keys and the values of every position, both [batch, heads, capacity, head_dim].

    With room for more than ``original`` positions keys are rotated otherwise (longrope).
    """

    trims: ClassVar[bool] = True

    heads: int
    head_dim: int
    original: float = math.inf

    @property
    def names(self) -> tuple[str, ...]:
        """What its tensors are called, in their order."""
        return ("keys", "values")

    def types(self, batch: int, capacity: int, cache_dtype: DType = F32) -> tuple[TensorType, ...]:
        """Two tensors of ``cache_dtype``."""
        return (TensorType(cache_dtype, (batch, self.heads, capacity, self.head_dim)),) * 2

    def serves(self, capacity: int, larger: int) -> bool:
        """Where both are rotated alike."""
        return (capacity > self.original) == (larger > self.original)


@dataclass(frozen=True)
class WindowKeysValues(Lasting):
    """The keys and the values of those positions that a layer with a window may still read.

    Both tensors have ``window + room`` places, or as many as there are positions where these are
    fewer. Places 0, 1, ... of row b are those of positions ``first[b]``, ``first[b] + 1``, ...:
    side by side, as in ``KeysValues``, so that the same kernels read them. A step takes in at most
    ``room`` positions. Where they would not fit, whoever holds the state slides the tensors first
    (``ptir.nn.slid``): then ``first`` is greater, and what stood before it is gone.
    """

    trims: ClassVar[bool] = True

    heads: int
    head_dim: int
    window: int
    room: int = ROOM

    @property
    def names(self) -> tuple[str, ...]:
        """What its tensors are called, in their order."""
        return ("keys", "values", "first")

    def places(self, capacity: int) -> int:
        """For how many positions there is room at a time, in a state of ``capacity`` positions."""
        return min(capacity, self.window + self.room)

    def types(self, batch: int, capacity: int, cache_dtype: DType = F32) -> tuple[TensorType, ...]:
        """Two tensors of ``cache_dtype`` and i32[batch]."""
        shape = (batch, self.heads, self.places(capacity), self.head_dim)
        return (*(TensorType(cache_dtype, shape),) * 2, TensorType(I32, (batch,)))

    @property
    def whole(self) -> KeysValues:
        """The state that keeps every position."""
        return KeysValues(self.heads, self.head_dim)


@dataclass(frozen=True)
class CrossKeysValues(Lasting):
    """The keys and values of every position, and beside them those of what an encoder gave.

    The latter are [batch, heads, source, head_dim] for its ``source`` positions: they are computed
    once, before the first step, and steps leave them as they are.
    """

    trims: ClassVar[bool] = True

    heads: int
    head_dim: int
    source: int

    @property
    def names(self) -> tuple[str, ...]:
        """What its tensors are called, in their order."""
        return (*self.own.names, "source_keys", "source_values")

    @property
    def own(self) -> KeysValues:
        """The state of the positions alone."""
        return KeysValues(self.heads, self.head_dim)

    def types(self, batch: int, capacity: int, cache_dtype: DType = F32) -> tuple[TensorType, ...]:
        """Four tensors of ``cache_dtype``."""
        seen = TensorType(cache_dtype, (batch, self.heads, self.source, self.head_dim))
        return (*self.own.types(batch, capacity, cache_dtype), seen, seen)


def keys_values(
    heads: int, head_dim: int, window: int | None, original: float = math.inf
) -> KeysValues | WindowKeysValues:
    """What a layer keeps that sees ``window`` positions back, itself included, or all (None).

    All is kept where keys are rotated otherwise with room for more than ``original`` positions.
    """
    if window is None or original < math.inf:
        return KeysValues(heads, head_dim, original)
    return WindowKeysValues(heads, head_dim, window)


def whole(states: Iterable[LayerState], longest: int | None = None) -> tuple[LayerState, ...]:
    """The same states, but all positions are kept in place of a window's.

    With ``longest`` only where texts of so many positions fit beside a window: nothing is saved.
    """
    return tuple(
        one.whole
        if isinstance(one, WindowKeysValues) and (longest is None or one.places(longest) == longest)
        else one
        for one in states
    )


@dataclass(frozen=True)
class Carried:
    """One tensor of a recurrent state: [batch, *shape] of an element type."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "f32"


@dataclass(frozen=True)
class Recurrent(Lasting):
    """Tensors that hold the whole past in a fixed size, as a convolution's tail or a matrix.

    A step must leave those of a row with ``count`` 0 as they are, and let none of the tokens
    beyond ``count`` in. There is no way back but to a copy made before.
    """

    trims: ClassVar[bool] = False

    carried: tuple[Carried, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """What its tensors are called, in their order."""
        return tuple(one.name for one in self.carried)

    def types(self, batch: int, capacity: int, cache_dtype: DType = F32) -> tuple[TensorType, ...]:
        """A tensor for each that is carried, of its own element type."""
        return tuple(
            TensorType(dtype_named(one.dtype), (batch, *one.shape)) for one in self.carried
        )


@dataclass(frozen=True)
class HiddenStates(Lasting):
    """What the model's output reads at every position: [batch, 1, capacity, size].

    It has the shape of one head's keys, so that steps write it as they write these.
    """

    trims: ClassVar[bool] = True

    size: int

    @property
    def names(self) -> tuple[str, ...]:
        """What its tensor is called."""
        return ("hidden",)

    def types(self, batch: int, capacity: int, cache_dtype: DType = F32) -> tuple[TensorType, ...]:
        """One tensor of ``cache_dtype``."""
        return (TensorType(cache_dtype, (batch, 1, capacity, self.size)),)


@dataclass(frozen=True)
class SharedState(Lasting):
    """Nothing of its own: the layer reads the tensors of ``layer``, after that has run."""

    trims: ClassVar[bool] = True

    layer: int

    @property
    def names(self) -> tuple[str, ...]:
        """None."""
        return ()

    def types(self, batch: int, capacity: int, cache_dtype: DType = F32) -> tuple[TensorType, ...]:
        """None."""
        return ()


def merged(one: State, other: State) -> State:
    """The state of which each has the tensors of some layers, and nothing in the others' places."""
    return tuple(first or second for first, second in zip(one, other, strict=True))


def by_layer(states: Sequence[LayerState], flat: Iterable[T]) -> tuple[tuple[T, ...], ...]:
    """One thing for each tensor of all layers, in their order, as a tuple per layer."""
    rest: Iterator[T] = iter(flat)
    return tuple(tuple(islice(rest, len(state.names))) for state in states)


def tensor_names(states: Sequence[LayerState]) -> list[str]:
    """A name for each tensor of all layers, in their order: ``keys0``, ``values0``, ``keys1``."""
    return [f"{name}{layer}" for layer, state in enumerate(states) for name in state.names]
