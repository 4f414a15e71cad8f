"""Attribute values: what an instruction carries besides its operands.

Equality is equality of the printed form, so ``1``, ``1.0`` and ``True`` differ, ``-0.0`` differs
from ``0.0`` and a NaN equals itself. This is what keeps ``x + 1`` and ``x + 1.0`` apart.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ptir.errors import TypeRuleError
from ptir.types import BOOL, DType, TensorType, dtype_of

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class Literal:
    """A constant tensor: its type and its elements as little-endian row-major bytes."""

    type: TensorType
    data: bytes

    def __post_init__(self) -> None:
        if len(self.data) != self.type.nbytes:
            raise TypeRuleError(
                f"literal {self.type}: {len(self.data)} bytes given, {self.type.nbytes} needed"
            )
        # Any other byte is true to one backend and false, or a number, to the next.
        if self.type.dtype == BOOL and self.data.translate(None, b"\0\1"):
            raise TypeRuleError(f"literal {self.type}: a byte of it is neither 0 nor 1")

    @staticmethod
    def of(array: Any) -> Literal:
        """The literal that holds a NumPy array's elements."""
        import numpy as np

        dense = np.ascontiguousarray(array, np.asarray(array).dtype.newbyteorder("<"))
        return Literal(TensorType(dtype_of(dense), tuple(array.shape)), dense.tobytes())

    def numpy(self) -> np.ndarray[Any, Any]:
        """The elements as a read-only NumPy array."""
        import numpy as np

        return np.frombuffer(self.data, self.type.dtype.numpy).reshape(self.type.shape)

    @cached_property
    def text(self) -> str:
        """The printed form: ``f32[2] 0x<hex of the bytes>``, exact for every dtype."""
        return f"{self.type} 0x{self.data.hex()}"


Attr = bool | int | float | str | None | DType | Literal | tuple["Attr", ...]


def normalize(value: Any) -> Attr:
    """The attribute value for a Python value: lists become tuples; raises ``TypeRuleError``."""
    if value is None or isinstance(value, bool | str | DType | Literal):
        return value
    if isinstance(value, list | tuple):
        return tuple(normalize(item) for item in value)
    if hasattr(value, "__index__"):
        return int(value.__index__())
    if isinstance(value, float) or hasattr(value, "__float__"):
        return float(value)
    raise TypeRuleError(f"{type(value).__name__} {value!r} cannot be an attribute value")


def attribute_text(value: Attr) -> str:
    """The printed form of one attribute value; ``ir.parser`` reads it back exactly."""
    match value:
        case None:
            return "none"
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float():
            return float_text(value)
        case str():
            return quoted(value)
        case DType():
            return f"!{value.name}"
        case Literal():
            return value.text
        case _:
            return f"[{', '.join(map(attribute_text, value))}]"


def float_text(value: float) -> str:
    """A float's shortest exact text; NaN keeps its bits (``nan(7ff8000000000000)``)."""
    if math.isnan(value):
        return f"nan({struct.pack('>d', value).hex()})"
    text = repr(value)
    return text if any(c in text for c in ".en") else text + ".0"


def quoted(text: str) -> str:
    """A string literal in JSON spelling, ASCII only."""
    import json

    return json.dumps(text)


class Attributes(Mapping[str, Attr]):
    """An immutable mapping of attribute names to values, ordered by name."""

    __slots__ = ("_items", "text")

    def __init__(self, values: Mapping[str, Any] | None = None) -> None:
        items = sorted((values or {}).items(), key=lambda item: item[0])
        self._items: dict[str, Attr] = {name: normalize(value) for name, value in items}
        self.text: str = ", ".join(f"{k} = {attribute_text(v)}" for k, v in self._items.items())

    def __getitem__(self, name: str) -> Any:
        return self._items[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Attributes) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return f"Attributes({self.text})"


NO_ATTRIBUTES = Attributes()
