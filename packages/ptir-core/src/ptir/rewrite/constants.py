"""Values known while compiling: uniform ones (every element the same) and small whole arrays."""

from __future__ import annotations

from typing import Any, Final

from ptir.ir.attributes import Literal
from ptir.ir.graph import Ref
from ptir.ops.record import op
from ptir.types import BOOL, TensorType

Number = bool | int | float

SMALL_BYTES: Final = 1024
"""Constants up to this size are computed while compiling, whatever they are computed from."""

_SPREADING: Final = frozenset({"broadcast_to", "reshape", "transpose", "slice", "reverse"})


def uniform(value: Ref) -> Number | None:
    """The number that every element of a constant expression is, or None."""
    node = value.node
    while node.op in _SPREADING:
        node = node.operands[0].node
    if node.op != "constant":
        return None
    literal: Literal = node.attributes["value"]
    width = literal.type.dtype.itemsize
    first = literal.data[:width]
    if not first or literal.data[width : 2 * width] not in (b"", first):
        return None
    if literal.data != first * literal.type.size:
        return None
    number: Number = literal.numpy().flat[0].item()
    return number


def fits(number: Number, type: TensorType) -> bool:
    """Whether a number written in a pattern is of the type's kind: ``0`` is not ``0.0``."""
    kind = type.dtype
    if isinstance(number, bool):
        return kind == BOOL
    return kind.is_integer if isinstance(number, int) else kind.is_float


def scalar(number: Number, type: TensorType) -> Literal:
    """A number as a rank 0 literal of the type's dtype (bool for True and False)."""
    import numpy as np

    element = BOOL if isinstance(number, bool) else type.dtype
    return Literal.of(np.array(number, dtype=element.numpy))


def known(value: Ref) -> Any:
    """The elements of a constant, or of a small iota or broadcast constant, as an array or None."""
    node = value.node
    if node.op == "constant":
        return node.attributes["value"].numpy()
    if value.type.nbytes > SMALL_BYTES:
        return None
    if node.op == "iota":
        return computed(value, ())
    if node.op == "broadcast_to":
        source = known(node.operands[0])
        return None if source is None else computed(value, (source,))
    return None


def computed(value: Ref, operands: tuple[Any, ...]) -> Any:
    """What the op behind ``value`` (of one result, without regions) means on these arrays."""
    from ptir.ops import numerics

    return op(value.node.op).reference(numerics, *operands, **value.node.attributes)
