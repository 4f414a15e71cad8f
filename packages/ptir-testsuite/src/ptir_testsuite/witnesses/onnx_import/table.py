"""The table of ONNX operators: each a builder function over ptir tensors.

A builder takes the ``Node`` that is imported and returns its results, or None to have the body
imported by which ONNX defines the operator. It reads shapes, axes and
the like with ``Node.ints``, which treats inputs as static, and refuses with ``NotImported`` what
it does not cover, always for one of ``Reason``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ptir.capture import Tensor
from ptir.types import DType

if TYPE_CHECKING:
    from ptir_testsuite.witnesses.onnx_import.scope import Scope

Array = np.ndarray[Any, np.dtype[Any]]
Results = Tensor | tuple[Tensor | None, ...] | None
Builder = Callable[["Node"], Results]


class Reason(StrEnum):
    """Why a case was not tried; nothing else is a reason."""

    STRINGS = "strings"
    SEQUENCES = "sequences or optionals"
    COMPLEX = "complex numbers"
    TRAINING = "training"
    RANDOM = "random by the witness's own generator"
    SUB_BYTE = "sub-byte types"
    DTYPE = "dtype outside the op set"
    SHAPE = "data-dependent shapes"
    NOT_ATTEMPTED = "op not attempted"


class NotImported(Exception):  # noqa: N818  a verdict, not a fault
    """A node is not imported, for a reason from the closed list."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


@dataclass(frozen=True)
class Node:
    """One ONNX node as its builder sees it."""

    op: str
    version: int
    operands: tuple[Tensor | None, ...]
    attributes: dict[str, Any]
    results: int
    scope: Scope

    def __getitem__(self, index: int) -> Tensor:
        """An input that must be there."""
        found = self.optional(index)
        if found is None:
            raise NotImported(Reason.NOT_ATTEMPTED, f"{self.op} without input {index}")
        return found

    def optional(self, index: int) -> Tensor | None:
        """An input that may be missing."""
        return self.operands[index] if index < len(self.operands) else None

    @property
    def present(self) -> tuple[Tensor, ...]:
        """All inputs that are there."""
        return tuple(operand for operand in self.operands if operand is not None)

    def attr(self, name: str, default: Any = None) -> Any:
        """An attribute as Python values, or the default."""
        return self.attributes.get(name, default)

    def static(self, index: int) -> Array | None:
        """The value of an input that the program is built for, or None where it is missing."""
        operand = self.optional(index)
        return None if operand is None else self.scope.static(operand)

    def ints(self, index: int, name: str = "") -> tuple[int, ...] | None:
        """Integers from an input, in older versions from an attribute; None where missing."""
        value = self.static(index)
        if value is None:
            value = self.attr(name)
        return None if value is None else tuple(int(v) for v in np.asarray(value).reshape(-1))

    def axis(self, default: int, rank: int, name: str = "axis") -> int:
        """The attribute ``axis`` as an axis number of ``rank`` axes."""
        return int(self.attr(name, default)) % max(rank, 1)


@dataclass(frozen=True)
class Entry:
    """A builder and the first operator set version that it is for."""

    since: int
    build: Builder


TABLE: Final[dict[str, list[Entry]]] = {}


def onnx_op(*names: str, since: int = 1) -> Callable[[Builder], Builder]:
    """Add the decorated builder to the table under ONNX operator names."""

    def add(build: Builder) -> Builder:
        for name in names:
            entries = TABLE.setdefault(name, [])
            if any(entry.since == since for entry in entries):
                raise ValueError(f"{name} has two builders since version {since}")
            entries.append(Entry(since, build))
            entries.sort(key=lambda entry: entry.since)
        return build

    return add


def builder(name: str, version: int) -> Builder | None:
    """The newest builder of ``name`` that an operator set ``version`` may use."""
    fitting = [entry for entry in TABLE.get(name, ()) if entry.since <= version]
    return fitting[-1].build if fitting else None


def element(number: int) -> DType:
    """The element type that an ONNX type number means; raises ``NotImported``."""
    from onnx import TensorProto, helper

    from ptir.errors import TypeRuleError
    from ptir.types import dtype_of

    name = TensorProto.DataType.Name(number)
    reason = next((r for part, r in _NO_ELEMENT.items() if part in name), None)
    if reason is not None:
        raise NotImported(reason, name)
    try:
        return dtype_of(np.zeros(0, helper.tensor_dtype_to_np_dtype(number)))
    except TypeRuleError as error:
        raise NotImported(Reason.DTYPE, name) from error


_NO_ELEMENT: Final = {
    "STRING": Reason.STRINGS,
    "COMPLEX": Reason.COMPLEX,
    "INT4": Reason.SUB_BYTE,
    "INT2": Reason.SUB_BYTE,
    "FLOAT4": Reason.SUB_BYTE,
    "FLOAT6": Reason.SUB_BYTE,
}


def refuse(detail: str, reason: Reason = Reason.NOT_ATTEMPTED) -> NotImported:
    """The exception to raise for what a builder does not cover."""
    return NotImported(reason, detail)


def product(values: Sequence[int]) -> int:
    """The product of sizes, 1 for none."""
    return int(np.prod(values, dtype=np.int64))
