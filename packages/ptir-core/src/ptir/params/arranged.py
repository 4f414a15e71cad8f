"""A view of another source: parameters that are stored under other names, in parts or other shapes.

Libraries name and cut the tensors of one architecture in their own ways: queries, keys and values
as three matrices or as one, a scale as [C] or as [C,1,1].
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ptir.errors import CheckpointError, short
from ptir.params.source import Array, Counters, ParamSource, lookup, rows_of, runs_of
from ptir.types import TensorType


@dataclass(frozen=True)
class Arranged:
    """Which stored tensors a parameter is, one below the other along their first axis.

    ``squeezed``: axes of size 1 behind the first are left out of its shape.
    """

    stored: tuple[str, ...]
    squeezed: bool = False


class ArrangedSource:
    """Another source's tensors, arranged; those that ``arranged`` leaves out are not there.

    Raises ``CheckpointError`` for parts that do not fit together.
    """

    def __init__(self, source: ParamSource, arranged: Mapping[str, Arranged]) -> None:
        self.counters = Counters()
        self._source = source
        self._arranged = dict(arranged)
        self._types = {name: _type(source, name, one) for name, one in arranged.items()}

    def names(self) -> tuple[str, ...]:
        """The parameters' names, in the order given."""
        return tuple(self._arranged)

    def type(self, name: str) -> TensorType:
        """Stored element type, and the shape that the parameter has."""
        return lookup(self._types, name)

    def read(self, name: str) -> Array:
        """The values; those of several tensors in one array, each released when it was copied."""
        stored, type = lookup(self._arranged, name).stored, self.type(name)
        if len(stored) == 1:
            found = self._source.read(stored[0]).reshape(type.shape)
        else:
            found = self._joined(stored, type)
        found.setflags(write=False)
        self.counters.record(name, found.nbytes)
        return found

    def _joined(self, stored: tuple[str, ...], type: TensorType) -> Array:
        import numpy as np

        found, end = np.empty(type.shape, type.dtype.numpy), 0
        for name in stored:
            values = self._source.read(name)
            begin, end = end, end + values.shape[0]
            found[begin:end] = values.reshape(len(values), *type.shape[1:])
            self._source.release(name)
        return found

    def read_rows(self, name: str, first: int, end: int) -> Array:
        """Places of the first axis, of which the tensors that hold them are read alone."""
        import numpy as np

        stored, type = lookup(self._arranged, name).stored, self.type(name)
        runs = runs_of([self._source.type(one).shape[0] for one in stored], first, end)
        parts = [rows_of(self._source, stored[at], one, other) for at, one, other in runs]
        found = np.concatenate(parts) if len(parts) > 1 else parts[0]
        found = found.reshape(len(found), *type.shape[1:])
        self.counters.record(name, found.nbytes)
        return found

    def release(self, name: str) -> None:
        """Release every tensor behind a parameter."""
        for one in lookup(self._arranged, name).stored:
            self._source.release(one)


def _type(source: ParamSource, name: str, one: Arranged) -> TensorType:
    types = [source.type(stored) for stored in one.stored]
    first = types[0]
    if len(types) > 1:
        alike = {(type.dtype, type.shape[1:]) for type in types}
        if len(alike) > 1 or first.rank == 0:
            shown = ", ".join(f"{n} {t}" for n, t in zip(one.stored, types, strict=True))
            raise CheckpointError(
                f"{short(name)} is stored in parts that do not fit together: {shown}; fetch the"
                " checkpoint again"
            )
        rows = sum(type.shape[0] for type in types)
        first = TensorType(first.dtype, (rows, *first.shape[1:]))
    if one.squeezed:
        kept = (size for size in first.shape[1:] if size != 1)
        first = TensorType(first.dtype, (*first.shape[:1], *kept))
    return first
