"""The tensors of one quantized module, and the weight that they hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NoReturn

from ptir.errors import CheckpointError, short
from ptir.params.source import Array, ParamSource
from ptir.types import DType, TensorType
from ptir.weights import WeightFormat


@dataclass(frozen=True)
class StoredWeight:
    """A weight of ``shape`` [outputs, inputs], as ``arrays`` gives it by its record's names.

    ``tensors`` are those of the file. What is stored by ``flat`` records is one line of all
    outputs.
    """

    format: WeightFormat
    shape: tuple[int, int]
    tensors: tuple[str, ...]
    arrays: Callable[[], dict[str, Array]]
    flat: bool = False


@dataclass(frozen=True)
class ModuleTensors:
    """The tensors of a module by the last part of their names; every demand is checked.

    Raises ``CheckpointError`` for what is missing or has another type or shape.
    """

    module: str
    names: Mapping[str, str]
    source: ParamSource

    def has(self, suffix: str) -> bool:
        """Whether the module has a tensor."""
        return suffix in self.names

    def type(self, suffix: str) -> TensorType:
        """The type of a tensor that must be there."""
        if suffix not in self.names:
            held = ", ".join(self.names)
            raise CheckpointError(
                f"tensor {short(f'{self.module}.{suffix}')} is missing (the module has {held});"
                " fetch the checkpoint again"
            )
        return self.source.type(self.names[suffix])

    def matrix(self, suffix: str, *dtypes: DType) -> tuple[int, int]:
        """The two sizes of a tensor of one of some types."""
        found = self.typed(suffix, *dtypes)
        if len(found.shape) != 2:
            self.refuse(suffix, "a matrix is needed")
        return found.shape[0], found.shape[1]

    def typed(self, suffix: str, *dtypes: DType) -> TensorType:
        """The type of a tensor, which must be of one of some element types."""
        found = self.type(suffix)
        if found.dtype not in dtypes:
            self.refuse(suffix, f"must be of {' or '.join(map(str, dtypes))}")
        return found

    def shaped(self, suffix: str, shape: tuple[int, ...], *dtypes: DType) -> DType:
        """The element type of a tensor of a known shape."""
        found = self.typed(suffix, *dtypes)
        if found.shape != shape:
            self.refuse(suffix, f"{list(shape)} is needed by the other tensors of the module")
        return found.dtype

    def read(self, suffix: str) -> Array:
        """The values."""
        return self.source.read(self.names[suffix])

    def refuse(self, suffix: str, rule: str) -> NoReturn:
        """Raise ``CheckpointError`` about a tensor."""
        raise CheckpointError(
            f"tensor {short(self.names[suffix])} is {self.type(suffix)}: {rule};"
            " fetch the checkpoint again"
        )

    def weight(
        self,
        format: WeightFormat,
        shape: tuple[int, int],
        arrays: Callable[[], dict[str, Array]],
        *,
        flat: bool = False,
    ) -> StoredWeight:
        """The weight that all of the module's tensors hold."""
        return StoredWeight(format, shape, tuple(self.names.values()), arrays, flat)
