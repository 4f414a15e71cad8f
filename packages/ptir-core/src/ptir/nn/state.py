"""What a layer carries from one step to the next: one record per kind of state.

A model lists one for each of its layers (``states``). Whoever runs it sizes and holds the tensors,
gives them to a step and gets the next ones back; no kind is known outside this file. A record says
of which types the tensors are, and to which earlier positions they can be taken back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import ClassVar, Protocol, TypeVar

from ptir.capture.tensor import Tensor
from ptir.types import F32, DType, TensorType
from ptir.types import dtype as dtype_named

LayerTensors = tuple[Tensor, ...]
State = tuple[LayerTensors, ...]
"""The tensors of all layers, as a step takes and returns them."""

T = TypeVar("T")


class LayerState(Protocol):
    """What is asked of a kind of state; all tensors are zero before the first step.

    ``trims`` says whether the state after any number of positions also serves as that after the
    first few of them: what stands beyond a row's length is not read.
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


@dataclass(frozen=True)
class KeysValues:
    """The keys and the values of every position, both [batch, heads, capacity, head_dim]."""

    trims: ClassVar[bool] = True

    heads: int
    head_dim: int

    @property
    def names(self) -> tuple[str, ...]:
        """What its tensors are called, in their order."""
        return ("keys", "values")

    def types(self, batch: int, capacity: int, cache_dtype: DType = F32) -> tuple[TensorType, ...]:
        """Two tensors of ``cache_dtype``."""
        return (TensorType(cache_dtype, (batch, self.heads, capacity, self.head_dim)),) * 2


@dataclass(frozen=True)
class Carried:
    """One tensor of a recurrent state: [batch, *shape] of an element type."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "f32"


@dataclass(frozen=True)
class Recurrent:
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
class SharedState:
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
