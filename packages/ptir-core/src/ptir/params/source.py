"""Where parameter values come from: random access by name, read when first needed.

Files are read by ``ptir.checkpoint``; here are the protocol and the sources that need no file.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, TypeVar, runtime_checkable

from ptir.errors import CheckpointError, UsageError, nearest
from ptir.params.ids import BaseParamId
from ptir.types import TensorType, dtype_of

if TYPE_CHECKING:
    import numpy as np

    from ptir.weights import WeightFormat

#: Any NumPy array.
Array: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"
T = TypeVar("T")

#: Random values drawn from one generator; part of what a seed means, so never change it.
_BLOCK: Final = 1 << 18


class Counters:
    """What a source was asked for: bytes in all and loads per name; safe to use from threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.bytes_read = 0
        self.loads: Counter[str] = Counter()

    def record(self, name: str, nbytes: int) -> None:
        """Count one read of ``name`` that gave ``nbytes`` bytes."""
        with self._lock:
            self.bytes_read += nbytes
            self.loads[name] += 1


class ParamSource(Protocol):
    """Random access to the named parameters of one model.

    Every method that takes a name raises ``CheckpointError`` for a name that does not exist.
    """

    @property
    def counters(self) -> Counters:
        """What was read so far."""
        ...

    def names(self) -> tuple[str, ...]:
        """All names, in a stable order."""
        ...

    def type(self, name: str) -> TensorType:
        """Stored element type and shape; reads no values."""
        ...

    def read(self, name: str) -> Array:
        """The values as a read-only array of the stored type; shares memory where it can."""
        ...

    def release(self, name: str) -> None:
        """Give back the resident pages behind ``name``; reading it again is allowed."""
        ...


@runtime_checkable
class BlockSource(ParamSource, Protocol):
    """A source some of whose matrices are stored in blocks; their ``type`` and ``read`` are f32."""

    def format(self, name: str) -> WeightFormat | None:
        """How the blocks of a parameter are read; None where elements are stored as they are."""
        ...

    def blocks(self, name: str) -> Mapping[str, Array]:
        """The stored arrays [outputs, ...] of a matrix with a format, as its record names them."""
        ...


@runtime_checkable
class SizedSource(ParamSource, Protocol):
    """A source that knows the bytes of parameters where their types do not say them."""

    def stored_bytes(self, name: str) -> int:
        """Bytes in the file."""
        ...


@runtime_checkable
class RowSource(ParamSource, Protocol):
    """A source that puts parameters together or computes them, and some rows without the others."""

    def read_rows(self, name: str, first: int, end: int) -> Array:
        """Places ``first`` up to ``end`` of the first axis."""
        ...


def rows_of(source: ParamSource, name: str, first: int, end: int) -> Array:
    """Places of a parameter's first axis; what lies in a file is not read beside them."""
    if isinstance(source, RowSource):
        return source.read_rows(name, first, end)
    return source.read(name)[first:end]


@runtime_checkable
class BlockRowSource(BlockSource, Protocol):
    """A source that puts stored arrays together, and those of some rows without the others'."""

    def block_rows(self, name: str, first: int, end: int) -> Mapping[str, Array]:
        """The arrays of outputs ``first`` up to ``end``; each has a line for every output."""
        ...


def runs_of(sizes: Sequence[int], first: int, end: int) -> list[tuple[int, int, int]]:
    """Which rows of which parts are the rows ``first`` up to ``end`` of parts below each other.

    Parts have so many rows each (``sizes``). The result is the number of a part, its first row and
    the one behind its last; of no rows it is one run of none.
    """
    found, begin = [], 0
    for number, size in enumerate(sizes):
        one, other = max(first - begin, 0), min(end - begin, size)
        if one < other:
            found.append((number, one, other))
        begin += size
    return found or [(0, 0, 0)]


def block_rows_of(source: BlockSource, name: str, first: int, end: int) -> Mapping[str, Array]:
    """The stored arrays of some outputs of a matrix that has a line for every output in each."""
    if isinstance(source, BlockRowSource):
        return source.block_rows(name, first, end)
    return {key: array[first:end] for key, array in source.blocks(name).items()}


def stored_formats(source: ParamSource) -> dict[str, WeightFormat]:
    """The formats of the parameters that are stored in blocks."""
    if not isinstance(source, BlockSource):
        return {}
    found = {name: source.format(name) for name in source.names()}
    return {name: format for name, format in found.items() if format is not None}


class ArraySource:
    """Parameters held in memory as NumPy arrays, which it shares and does not copy."""

    def __init__(self, arrays: Mapping[str, Array]) -> None:
        self.counters = Counters()
        self._types = {name: _array_type(array) for name, array in arrays.items()}
        self._arrays = {name: _read_only(array) for name, array in arrays.items()}

    def names(self) -> tuple[str, ...]:
        """All names, in the order given."""
        return tuple(self._arrays)

    def type(self, name: str) -> TensorType:
        """Element type and shape of the array."""
        return lookup(self._types, name)

    def read(self, name: str) -> Array:
        """A read-only view of the array."""
        array = lookup(self._arrays, name)
        self.counters.record(name, array.nbytes)
        return array

    def release(self, name: str) -> None:
        """Nothing to give back: the caller owns the arrays."""
        lookup(self._arrays, name)


class RandomSource:
    """Normally distributed parameters, generated when read and never kept.

    A value depends on ``seed``, the parameter's name and its type, not on what was read before.
    ``scale_fn(name, type)`` gives the standard deviation, ``offset_fn`` the mean (0 without it).
    Values are drawn as f32 and rounded to the stored type; raises ``UsageError`` for types that
    are not floating point.
    """

    def __init__(
        self,
        types: Mapping[str, TensorType],
        seed: int,
        scale_fn: Callable[[str, TensorType], float],
        offset_fn: Callable[[str, TensorType], float] = lambda name, type_: 0.0,
    ) -> None:
        if seed < 0:
            raise UsageError(f"seed {seed}: must be >= 0")
        for name, type_ in types.items():
            if not type_.dtype.is_float:
                raise UsageError(f"random parameter {name!r} has type {type_}: must be a float")
        self.counters = Counters()
        self._types = dict(types)
        self._seed = seed
        self._scale = scale_fn
        self._offset = offset_fn

    def names(self) -> tuple[str, ...]:
        """All names, in the order given."""
        return tuple(self._types)

    def type(self, name: str) -> TensorType:
        """The type the parameter was declared with."""
        return lookup(self._types, name)

    def read(self, name: str) -> Array:
        """The parameter's values, generated again on every read."""
        type_ = self.type(name)
        values = self._draw(BaseParamId.of(name), type_.size, self._scale(name, type_))
        values += values.dtype.type(self._offset(name, type_))
        self.counters.record(name, type_.nbytes)
        return _read_only(values.reshape(type_.shape).astype(type_.dtype.numpy, copy=False))

    def _draw(self, base: BaseParamId, size: int, std: float) -> Array:
        import numpy as np

        values = np.empty(size, np.float32)
        entropy = [self._seed, int.from_bytes(base.value, "little")]

        def fill(start: int) -> None:
            block = values[start : start + _BLOCK]
            seeds = np.random.SeedSequence([*entropy, start])
            np.random.Generator(np.random.SFC64(seeds)).standard_normal(dtype=np.float32, out=block)
            block *= np.float32(std)

        with ThreadPoolExecutor() as pool:
            list(pool.map(fill, range(0, size, _BLOCK)))
        return values

    def release(self, name: str) -> None:
        """Nothing to give back: no value is kept."""
        lookup(self._types, name)


class RenamedSource:
    """A view of another source under other names; ``mapping`` goes from new name to old name.

    Two new names may share an old one (tied weights). Its counters count by new name.
    Raises ``CheckpointError`` when an old name does not exist in ``source``.
    """

    def __init__(self, source: ParamSource, mapping: Mapping[str, str]) -> None:
        known = set(source.names())
        for new, old in mapping.items():
            if old not in known:
                raise CheckpointError(f"renamed {new!r}: {_unknown(old, known)}")
        self.counters = Counters()
        self._source = source
        self._old = dict(mapping)

    def names(self) -> tuple[str, ...]:
        """The new names, in the order of the mapping."""
        return tuple(self._old)

    def type(self, name: str) -> TensorType:
        """Stored element type and shape."""
        return self._source.type(lookup(self._old, name))

    def read(self, name: str) -> Array:
        """The values of the old name, shared with the source."""
        array = self._source.read(lookup(self._old, name))
        self.counters.record(name, array.nbytes)
        return array

    def read_rows(self, name: str, first: int, end: int) -> Array:
        """Places of the old name's first axis."""
        array = rows_of(self._source, lookup(self._old, name), first, end)
        self.counters.record(name, array.nbytes)
        return array

    def release(self, name: str) -> None:
        """Release the old name in the source."""
        self._source.release(lookup(self._old, name))

    def format(self, name: str) -> WeightFormat | None:
        """How the blocks of the old name are read; None where the source has none."""
        old = lookup(self._old, name)
        return self._source.format(old) if isinstance(self._source, BlockSource) else None

    def blocks(self, name: str) -> Mapping[str, Array]:
        """The stored arrays of the old name, which must have a format."""
        if not isinstance(self._source, BlockSource):
            raise CheckpointError(f"{name!r}: is not stored in blocks")
        return self._source.blocks(lookup(self._old, name))

    def block_rows(self, name: str, first: int, end: int) -> Mapping[str, Array]:
        """Those of some outputs of the old name, which must have a format."""
        if not isinstance(self._source, BlockSource):
            raise CheckpointError(f"{name!r}: is not stored in blocks")
        return block_rows_of(self._source, lookup(self._old, name), first, end)


class JoinedSource:
    """The parameters of two sources, whose names differ; raises ``CheckpointError`` if one is both.

    Its counters count what was read of either.
    """

    def __init__(self, first: ParamSource, second: ParamSource) -> None:
        self.counters = Counters()
        self._of = {name: one for one in (first, second) for name in one.names()}
        both = [name for name in first.names() if name in set(second.names())]
        if both:
            raise CheckpointError(f"parameter {both[0]!r} is stored twice; keep one of them")

    def names(self) -> tuple[str, ...]:
        """All names, those of the first source first."""
        return tuple(self._of)

    def type(self, name: str) -> TensorType:
        """Stored element type and shape."""
        return lookup(self._of, name).type(name)

    def read(self, name: str) -> Array:
        """The values, shared with the source."""
        array = lookup(self._of, name).read(name)
        self.counters.record(name, array.nbytes)
        return array

    def release(self, name: str) -> None:
        """Release it in its source."""
        lookup(self._of, name).release(name)

    def format(self, name: str) -> WeightFormat | None:
        """How the blocks of a parameter are read; None where its source has none."""
        source = lookup(self._of, name)
        return source.format(name) if isinstance(source, BlockSource) else None

    def blocks(self, name: str) -> Mapping[str, Array]:
        """The stored arrays of a parameter, which must have a format."""
        source = lookup(self._of, name)
        if not isinstance(source, BlockSource):
            raise CheckpointError(f"{name!r}: is not stored in blocks")
        return source.blocks(name)


def lookup(table: Mapping[str, T], name: str) -> T:
    """The entry of ``name``; raises ``CheckpointError`` with the nearest names."""
    if name not in table:
        raise CheckpointError(_unknown(name, table))
    return table[name]


def _unknown(name: str, known: Iterable[str]) -> str:
    names = sorted(known)
    near = nearest(name, names)
    hint = f"nearest: {', '.join(near)}; " if near else ""
    return f"unknown parameter {name!r} ({hint}{len(names)} known)"


def _array_type(array: Array) -> TensorType:
    return TensorType(dtype_of(array), tuple(array.shape))


def _read_only(array: Array) -> Array:
    native = array.astype(array.dtype.newbyteorder("="), copy=False)
    view = native.view()
    view.setflags(write=False)
    return view
