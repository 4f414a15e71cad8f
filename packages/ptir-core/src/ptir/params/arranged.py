"""A view of another source: parameters that are stored under other names, in parts or other shapes.

Libraries name and cut the tensors of one architecture in their own ways: queries, keys and values
as three matrices or as one, a scale as [C] or as [C,1,1].
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ptir.errors import CheckpointError, short
from ptir.params.source import (
    Array,
    BlockSource,
    Counters,
    ParamSource,
    block_rows_of,
    lookup,
    rows_of,
    runs_of,
)
from ptir.types import TensorType
from ptir.weights import WeightFormat


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

    def format(self, name: str) -> WeightFormat | None:
        """How the blocks of a parameter are read, where all its tensors have the same.

        None too where outputs share what is stored of them: the numbers are read then.
        """
        one = lookup(self._arranged, name)
        if not isinstance(self._source, BlockSource) or one.squeezed:
            return None
        first, *others = [self._source.format(stored) for stored in one.stored]
        if first is None or not others:
            return first
        return first if lines_alone(first) and all(other == first for other in others) else None

    def blocks(self, name: str) -> Mapping[str, Array]:
        """The stored arrays of a parameter that has a format, one tensor's below the other's."""
        import numpy as np

        if not isinstance(self._source, BlockSource):
            raise CheckpointError(f"{name!r}: is not stored in blocks")
        found = [self._source.blocks(one) for one in lookup(self._arranged, name).stored]
        if len(found) == 1:
            return found[0]
        return {key: np.concatenate([one[key] for one in found]) for key in found[0]}

    def block_rows(self, name: str, first: int, end: int) -> Mapping[str, Array]:
        """The same of some outputs, of which the tensors that hold them are read alone."""
        import numpy as np

        if not isinstance(self._source, BlockSource):
            raise CheckpointError(f"{name!r}: is not stored in blocks")
        stored = lookup(self._arranged, name).stored
        runs = runs_of([self._source.type(one).shape[0] for one in stored], first, end)
        found = [block_rows_of(self._source, stored[at], one, other) for at, one, other in runs]
        return {key: np.concatenate([one[key] for one in found]) for key in found[0]}


def lines_alone(format: WeightFormat) -> bool:
    """Whether each output has its own line in every stored array."""
    return all(array.outputs == 1 for array in format.arrays)


@dataclass(frozen=True)
class Lines:
    """A run of a stored tensor's first axis: from ``first`` up to ``end``."""

    stored: str
    first: int
    end: int


class LinesSource:
    """Another source's tensors, or runs of them, under other names; others are not there.

    One without axes is always whole.
    """

    def __init__(self, source: ParamSource, lines: Mapping[str, Lines]) -> None:
        self.counters = Counters()
        self._source = source
        self._lines = dict(lines)

    def names(self) -> tuple[str, ...]:
        """The names, in the order given."""
        return tuple(self._lines)

    def type(self, name: str) -> TensorType:
        """Stored element type, and the shape of the run."""
        one = lookup(self._lines, name)
        whole = self._source.type(one.stored)
        if not whole.rank:
            return whole
        return TensorType(whole.dtype, (one.end - one.first, *whole.shape[1:]))

    def read(self, name: str) -> Array:
        """The values of the run, shared with the source where it can."""
        one = lookup(self._lines, name)
        if self._source.type(one.stored).rank:
            found = rows_of(self._source, one.stored, one.first, one.end)
        else:
            found = self._source.read(one.stored)
        self.counters.record(name, found.nbytes)
        return found

    def read_rows(self, name: str, first: int, end: int) -> Array:
        """Places of the run."""
        one = lookup(self._lines, name)
        return rows_of(self._source, one.stored, one.first + first, one.first + end)

    def release(self, name: str) -> None:
        """Release the whole stored tensor."""
        self._source.release(lookup(self._lines, name).stored)

    def format(self, name: str) -> WeightFormat | None:
        """How the blocks of the stored tensor are read, where a run of them stands alone."""
        one = lookup(self._lines, name)
        if not isinstance(self._source, BlockSource):
            return None
        found = self._source.format(one.stored)
        whole = one.end - one.first == self._source.type(one.stored).shape[0]
        return found if found is None or whole or lines_alone(found) else None

    def blocks(self, name: str) -> Mapping[str, Array]:
        """The stored arrays of the run, which must have a format."""
        one = lookup(self._lines, name)
        if not isinstance(self._source, BlockSource):
            raise CheckpointError(f"{name!r}: is not stored in blocks")
        return block_rows_of(self._source, one.stored, one.first, one.end)


def _type(source: ParamSource, name: str, one: Arranged) -> TensorType:
    types = [source.type(stored) for stored in one.stored]
    first = types[0]
    if len(types) > 1:
        alike = {(type.dtype, type.shape[1:]) for type in types}
        if len(alike) > 1 or any(type.rank == 0 for type in types):
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
