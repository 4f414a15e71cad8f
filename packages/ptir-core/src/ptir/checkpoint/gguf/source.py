"""A GGUF model's tensors as parameters: under other names, their rows in another order.

Plain tensors are read as they are. Of quantized ones there are the stored blocks, which a loader
may take as they lie, and the numbers that they stand for in f32.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from ptir.checkpoint.gguf.header import GgufTensor
from ptir.checkpoint.gguf.splits import GgufModel
from ptir.checkpoint.gguf.tensor_types import READABLE
from ptir.errors import CheckpointError, short
from ptir.params.source import Array, Counters, lookup
from ptir.types import F32, TensorType
from ptir.weights import WeightFormat

BLOCKS: Final = "blocks"
"""The array of a record of GGUF's blocks."""
_CHUNK: Final = 1 << 22
"""Weights that are decoded at a time."""


@dataclass(frozen=True)
class Part:
    """What a parameter is made of: a tensor, or some of its rows.

    ``first`` and ``count`` cut rows out of a fused tensor; ``heads`` undoes the order in which
    converters store the rows of rotated queries and keys (pairs side by side, where models want
    the halves of a head); ``grouped``, the heads of queries and those of keys, puts rows that are
    stored as all queries, all keys and all values beside each other group by group; ``turned``
    gives [inputs, outputs] where [outputs, inputs] is stored; ``flat`` is all rows as one vector.
    ``plus`` was added to the numbers that are stored. ``spread`` puts an axis of one before the
    last, ``row`` one before all; ``decay`` says that minus e to the power of the parameter is
    stored. ``lines`` is how many rows a ``flat`` one is stored in, where one is written.
    """

    tensor: str
    first: int = 0
    count: int | None = None
    heads: int = 0
    turned: bool = False
    grouped: tuple[int, int] | None = None
    flat: bool = False
    plus: float = 0.0
    spread: bool = False
    decay: bool = False
    row: bool = False
    lines: int = 0

    def stored_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape in a file of a whole parameter of this shape."""
        if self.turned:
            shape = shape[::-1]
        if self.lines:
            shape = (self.lines, math.prod(shape) // self.lines)
        if self.row:
            shape = shape[1:]
        return (*shape[:-2], *shape[-1:]) if self.spread else shape

    def rows(self, stored: int) -> Array | slice:
        """Which of the stored rows, in the order of the parameter's."""
        import numpy as np

        end = stored if self.count is None else self.first + self.count
        if self.grouped:
            queries, groups = self.grouped
            places = np.arange(stored).reshape(queries + 2 * groups, -1)
            parts = np.split(places, (queries, queries + groups))
            by_group = [part.reshape(groups, -1, places.shape[1]) for part in parts]
            return np.concatenate(by_group, axis=1).reshape(-1)
        if not self.heads:
            return slice(self.first, end)
        numbers = np.arange(self.first, end).reshape(self.heads, -1, 2)
        return numbers.swapaxes(1, 2).reshape(-1)

    def stored_order(self, count: int) -> Array | slice:
        """Where in a whole parameter of ``count`` rows each stored row is: the way to a file."""
        import numpy as np

        order = self.rows(count)
        return order if isinstance(order, slice) else np.argsort(order)


class GgufSource:
    """The parameters of a model, each of which is one of ``parts``.

    Raises ``CheckpointError`` for a type that cannot be decoded, for rows that are not there, and
    when a tensor is read from a file that was cut since.
    """

    def __init__(self, model: GgufModel, parts: Mapping[str, Part]) -> None:
        self.counters = Counters()
        self._model = model
        self._tensors = model.tensors
        self._parts = dict(parts)
        for part in self._parts.values():
            self._check(part, self._tensors[part.tensor])

    def names(self) -> tuple[str, ...]:
        """All names, in the order of the parts."""
        return tuple(self._parts)

    def type(self, name: str) -> TensorType:
        """Element type and shape; f32 for what is stored in blocks."""
        part, tensor = self._found(name)
        shape = tensor.shape
        if part.count is not None:
            shape = (part.count, *shape[1:])
        if part.turned:
            shape = shape[::-1]
        if part.flat:
            shape = (math.prod(shape),)
        if part.row:
            shape = (1, *shape)
        if part.spread:
            shape = (*shape[:-1], 1, *shape[-1:])
        return TensorType(F32 if part.plus or part.decay else tensor.type.dtype or F32, shape)

    def read(self, name: str) -> Array:
        """The numbers; those of plain tensors share the mapped bytes where they can."""
        part, tensor = self._found(name)
        return self._values(name, self._rows(part, tensor), self.type(name).shape)

    def read_rows(self, name: str, first: int, end: int) -> Array:
        """Places of the first axis; those of blocks alone are decoded."""
        part, tensor = self._found(name)
        shape = self.type(name).shape
        if part.turned or part.flat or part.row or len(shape) < 2:
            return self.read(name)[first:end]
        each = math.prod(shape[1:-1]) if tensor.type.format else 1  # lines of blocks for a place
        rows = self._rows(part, tensor)[first * each : end * each]
        return self._values(name, rows, (end - first, *shape[1:]))

    def _values(self, name: str, rows: Array, shape: tuple[int, ...]) -> Array:
        """The numbers of rows, in a shape."""
        part, tensor = self._found(name)
        values = self._decoded(rows, tensor) if tensor.type.format else rows
        found = values.reshape(shape[:: -1 if part.turned else 1])
        found = found.T if part.turned else found
        found = found.astype("f4") - part.plus if part.plus else found
        found = self._rates(part, found) if part.decay else found
        found.setflags(write=False)
        self.counters.record(name, found.nbytes)
        return found

    def release(self, name: str) -> None:
        """Drop the tensor's pages from memory; they are read from the file again when touched."""
        part, _ = self._found(name)
        self._model.file(part.tensor).drop_pages(part.tensor)

    def format(self, name: str) -> WeightFormat | None:
        """How the blocks of a parameter are read; None for plain elements."""
        return self._found(name)[1].type.format

    def stored_as(self, name: str) -> str:
        """What the file calls the type of a parameter."""
        return self._found(name)[1].type.name

    def blocks(self, name: str) -> Mapping[str, Array]:
        """The stored arrays of a quantized matrix, u8[outputs, bytes], as its record names them.

        Outputs are in the order of the parameter's; a ``turned`` one has them along its last axis.
        """
        part, tensor = self._found(name)
        rows = self._rows(part, tensor)
        self.counters.record(name, rows.nbytes)
        return {BLOCKS: rows}

    def _found(self, name: str) -> tuple[Part, GgufTensor]:
        part = lookup(self._parts, name)
        return part, self._tensors[part.tensor]

    def _rates(self, part: Part, found: Array) -> Array:
        """The logarithms of decays that are stored below 0."""
        import numpy as np

        if not (found < 0).all():
            raise CheckpointError(
                f"{self._model.file(part.tensor).path}: tensor {short(part.tensor)}: decays must be"
                " below 0: fetch the file again"
            )
        return np.asarray(np.log(-found.astype(np.float64)), np.float32)

    def _rows(self, part: Part, tensor: GgufTensor) -> Array:
        """The rows of a part: plain elements, or the bytes of blocks."""
        raw = self._model.file(part.tensor).raw(part.tensor)
        lines = _lines(tensor)
        if tensor.type.dtype is not None:
            raw = raw.view(tensor.type.dtype.numpy)
            raw = raw if raw.flags.aligned else raw.copy()
        return raw.reshape(lines, -1 if lines else 0)[part.rows(lines)]

    def _decoded(self, rows: Array, tensor: GgufTensor) -> Array:
        import numpy as np

        from ptir.weights.decode import decode

        assert tensor.type.format is not None
        found = np.empty((rows.shape[0], tensor.shape[-1]), np.float32)
        for part in chunks(*found.shape):
            found[part] = decode(tensor.type.format, {BLOCKS: rows[part]})
        return found

    def _check(self, part: Part, tensor: GgufTensor) -> None:
        where = f"{self._model.file(part.tensor).path}: tensor {short(part.tensor)}"
        kind, lines = tensor.type, _lines(tensor)
        if kind.dtype is None and kind.format is None:
            raise CheckpointError(
                f"{where}: is {kind.name}, which cannot be decoded; {', '.join(READABLE)} can:"
                " fetch the model in one of these"
            )
        if excess := TensorType(kind.dtype or F32, tensor.shape).excess:
            raise CheckpointError(f"{where}: {tensor} {excess}")
        rows = lines if part.count is None else part.count
        each = sum(part.grouped) + part.grouped[1] if part.grouped else 2 * part.heads
        if part.first + rows > lines or (each and rows % each):
            heads = part.grouped[0] if part.grouped else part.heads
            also = f" of {heads} heads, two to a pair" if part.heads else ""
            also = f" of {heads} heads, their keys and values" if part.grouped else also
            raise CheckpointError(
                f"{where}: {tensor} has {lines} rows; {rows} from {part.first} on{also} are"
                " needed: fetch the model again"
            )


def _lines(tensor: GgufTensor) -> int:
    """Rows: all but the last axis of blocks, the first axis of plain elements."""
    import math

    if tensor.type.dtype is None:
        return math.prod(tensor.shape[:-1])
    return tensor.shape[0] if tensor.shape else 1


def chunks(outputs: int, inputs: int) -> Iterator[slice]:
    """Runs of outputs that are small enough to be decoded at once."""
    step = max(1, _CHUNK // max(inputs, 1))
    return (slice(first, first + step) for first in range(0, outputs, step))
