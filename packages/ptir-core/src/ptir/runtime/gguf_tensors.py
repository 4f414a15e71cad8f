"""A model's parameters as the tensors of a GGUF file: their names, shapes, types and rows there.

Most parameters are one tensor. Weights of experts get an axis for these; gate and up, which some
families store as one, are two tensors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from ptir.checkpoint.gguf import Outgoing
from ptir.checkpoint.gguf.architectures.layout import Cut, Layout
from ptir.checkpoint.gguf.mixtures import Facts, Mixture, Replaced, stays_f32
from ptir.checkpoint.gguf.source import BLOCKS, Part
from ptir.checkpoint.gguf.tensor_types import TYPES
from ptir.checkpoint.gguf.write import TYPE_IDS, nbytes_of
from ptir.checkpoint.save import converted
from ptir.errors import CheckpointError
from ptir.params.source import Array, BlockSource, ParamSource, stored_formats
from ptir.runtime.quantize import quantized_rows
from ptir.types import BF16, F16, F32, DType, TensorType
from ptir.weights import WeightFormat

if TYPE_CHECKING:
    from ptir.runtime.calibration import Calibrated

Chosen: TypeAlias = Callable[[str, TensorType, tuple[int, ...]], str]
"""The type of a tensor in the file, by its name there, what it is now, and its shape there."""
Progress: TypeAlias = Callable[[int, int], None]
PLAIN: Final[Mapping[DType, str]] = {F32: "F32", F16: "F16", BF16: "BF16"}
"""What floats are called in a file."""


@dataclass(frozen=True)
class Piece:
    """A tensor of a file, and what it is of a parameter.

    ``experts`` is how many there are, where the tensor has an axis for them. ``taken`` are the
    outputs of each that it has, where it does not have all; of a ``vector`` for each expert they
    are places of its last axis.
    """

    part: Part
    experts: int = 0
    taken: slice | None = None
    vector: bool = False

    def shape(self, stored: tuple[int, ...]) -> tuple[int, ...]:
        """The shape there of a parameter of this shape."""
        if self.vector:
            return (*stored[:-1], len(range(*self._taken.indices(stored[-1]))))
        if self.experts:
            outputs = len(range(*self._taken.indices(stored[0] // self.experts)))
            return (self.experts, outputs, *stored[1:])
        return self.part.stored_shape(stored)

    def rows(self, count: int) -> Array | slice:
        """Which of so many rows of the parameter it has, in the order of the file."""
        import numpy as np

        if self.taken is None or self.vector:
            return self.part.stored_order(count)
        numbers: Array = np.arange(count).reshape(self.experts, -1)[:, self.taken].reshape(-1)
        return numbers

    def columns(self, values: Array) -> Array:
        """What it has of an array of vectors."""
        return values[..., self.taken] if self.vector and self.taken is not None else values

    @property
    def _taken(self) -> slice:
        return slice(None) if self.taken is None else self.taken


@dataclass(frozen=True)
class Written:
    """What is written: ``source``'s tensors of these ``names``, as ``layout`` calls them."""

    names: Sequence[str]
    source: ParamSource
    layout: Layout
    config: Mapping[str, Any]

    def pieces(self, name: str) -> list[Piece]:
        """The tensors of a parameter; raises ``CheckpointError`` for what has none."""
        found, experts = self.layout.cut(name), self.layout.experts(self.config)
        if found is not None:
            return _halves(*found, experts, self.source.type(name))
        part = self.layout.part(name, dict(self.config))
        if part is None:
            raise CheckpointError(f"parameter {name!r} has no name in GGUF files")
        return [Piece(part, experts if part.tensor.endswith(STACKED) else 0)]

    def tensors(self, chosen: Chosen, found: Calibrated | None = None) -> list[Outgoing]:
        """All tensors, in types that are ``chosen`` where a parameter has no blocks already."""
        formats = stored_formats(self.source)
        source = self.source if found is None else found.source
        arrays = {} if found is None else found.arrays
        made = []
        for name in self.names:
            type = self.source.type(name)
            for piece in self.pieces(name):
                shape, tensor = piece.shape(type.shape), piece.part.tensor
                in_blocks = name in formats and formats[name].name in TYPE_IDS
                called = formats[name].name if in_blocks else chosen(tensor, type, shape)
                rows = partial(_rows, source, in_blocks, name, piece, called)
                if name in arrays:
                    rows = partial(_in_order, arrays[name][BLOCKS], piece)
                made.append(Outgoing(tensor, called, shape, rows))
        return made

    def formats(self, tensors: Sequence[Outgoing]) -> dict[str, WeightFormat]:
        """The formats of the parameters that are to be quantized, by name."""
        types = {one.name: TYPES[TYPE_IDS[one.type]].format for one in tensors}
        found = {name: types[self.pieces(name)[0].part.tensor] for name in self.names}
        return {name: format for name, format in found.items() if format is not None}


STACKED: Final = "_exps.weight"
"""The end of names of tensors that have an axis for experts."""


def _halves(cut: Cut, before: str, kind: str, experts: int, type: TensorType) -> list[Piece]:
    """Gate and up: one half of each expert's outputs and the other, or every other output."""
    vector = kind == "bias"
    outputs = type.shape[-1] if vector else type.shape[0] // experts
    half = outputs // 2
    first, second = slice(0, half), slice(half, outputs)
    if cut.interleaved:
        first, second = slice(0, outputs, 2), slice(1, outputs, 2)
    return [
        Piece(Part(f"{before}{stem}.{kind}"), experts, taken, vector)
        for stem, taken in zip(cut.stems, (first, second), strict=True)
    ]


def floats(dtype: DType | None) -> Chosen:
    """Matrices in a type, or as they are; vectors, also those of experts, and routers in f32."""

    def chosen(tensor: str, type: TensorType, shape: tuple[int, ...]) -> str:
        stays = type.rank == 1 or len(shape) == 1 or stays_f32(tensor)
        wanted = F32 if stays else dtype or type.dtype
        if wanted not in PLAIN:
            raise CheckpointError(f"tensor {tensor!r} is {wanted}; give --dtype f32")
        return PLAIN[wanted]

    return chosen


@dataclass(frozen=True)
class Mixed:
    """Types as a mixture says for a model of which ``facts`` are known: chooses them."""

    mixture: Mixture
    facts: Facts

    def __call__(self, tensor: str, type: TensorType, shape: tuple[int, ...]) -> str:
        """The type of a tensor."""
        return self.mixture.type_of(tensor, shape, self.facts)

    def replaced(self, tensors: Sequence[Outgoing]) -> list[Replaced]:
        """Those that got another type than is usual, because blocks do not divide their rows."""
        return [*self.mixture.replaced({one.name: one.shape for one in tensors}, self.facts)]


def mixed(mixture: Mixture, written: Written, layers: int) -> Mixed:
    """Types as a mixture says for a file of what is written, a model of so many layers."""
    tensors = [piece.part.tensor for name in written.names for piece in written.pieces(name)]
    return Mixed(mixture, mixture.facts(tensors, layers, written.layout.encodes))


def _in_order(blocks: Array, piece: Piece) -> Iterator[Array]:
    """Blocks of a matrix that is quantized already, its rows in the order of the file."""
    yield blocks[piece.rows(len(blocks))]


def _rows(
    source: ParamSource, in_blocks: bool, name: str, piece: Piece, called: str
) -> Iterator[Array]:
    """A parameter read when its turn comes: its rows in the order of the file."""
    import numpy as np

    kind, part = TYPES[TYPE_IDS[called]], piece.part
    if in_blocks:
        assert isinstance(source, BlockSource)
        values = source.blocks(name)[BLOCKS]
        yield values[piece.rows(len(values))]
    else:
        values = source.read(name)
        values = values.T if part.turned else values
        values = values.astype("f4") + part.plus if part.plus else values
        values = -np.exp(values.astype("f8")) if part.decay else values
        if not piece.experts:
            values = values.reshape(piece.shape(source.type(name).shape))
        order = piece.rows(len(values))
        if kind.format is not None:
            yield from quantized_rows(name, kind.format, values, order)
        else:
            assert kind.dtype is not None
            yield converted(name, piece.columns(values[order]), kind.dtype)
    source.release(name)


def reported(tensors: Sequence[Outgoing], progress: Progress) -> list[Outgoing]:
    """The same tensors, which tell of the weights that were taken from them."""
    total = sum(math.prod(one.shape) for one in tensors)
    done = 0

    def following(one: Outgoing) -> Iterator[Array]:
        nonlocal done
        before, size, taken = done, math.prod(one.shape), 0
        for chunk in one.chunks():
            yield chunk
            taken += chunk.nbytes
            done = before + size * taken // nbytes_of(one)
            progress(done, total)

    return [replace(one, chunks=partial(following, one)) for one in tensors]
