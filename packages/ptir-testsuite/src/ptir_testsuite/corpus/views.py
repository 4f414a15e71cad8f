"""Views in front of an op: programs in which operands are transposed, sliced or broadcast values.

A backend may leave such a value as it lies and hand on how it is to be read. An op that reads it as
if it were dense is right everywhere but here. A row gives, for a wanted type, the type of the input
and the op that makes the one of the other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from ptir.ir.attributes import Attributes
from ptir.ops import OPS
from ptir.types import TensorType

Made = tuple[TensorType, str, dict[str, Any]]
View = Callable[[TensorType], Made | None]
"""From a wanted type to an input's type, an op and its attributes; None where there is no view."""


def _transposed(type: TensorType) -> Made | None:
    order = tuple(reversed(range(type.rank)))
    return type.with_shape(type.shape[::-1]), "transpose", {"permutation": order}


def _rotated(type: TensorType) -> Made | None:
    """The first axis comes from the end, so that no axis stays and none of two is the other's."""
    if type.rank < 3:
        return None
    order = (type.rank - 1, *range(type.rank - 1))
    return type.with_shape((*type.shape[1:], type.shape[0])), "transpose", {"permutation": order}


def _inner(type: TensorType) -> Made | None:
    """From the middle of a larger one: it starts later, and rows have gaps."""
    starts = (1,) * type.rank
    limits = tuple(n + 1 for n in type.shape)
    larger = type.with_shape(tuple(n + 2 for n in type.shape))
    return larger, "slice", {"starts": starts, "limits": limits}


def _every_second(type: TensorType) -> Made | None:
    limits = tuple(2 * n for n in type.shape)
    attributes = {"starts": (0,) * type.rank, "limits": limits, "strides": (2,) * type.rank}
    return type.with_shape(limits), "slice", attributes


def _reversed(type: TensorType) -> Made | None:
    return type, "reverse", {"axes": tuple(range(type.rank))}


def _repeated_rows(type: TensorType) -> Made | None:
    return type.with_shape((1, *type.shape[1:])), "broadcast_to", {"shape": type.shape}


def _repeated_elements(type: TensorType) -> Made | None:
    return type.with_shape((*type.shape[:-1], 1)), "broadcast_to", {"shape": type.shape}


def _folded(type: TensorType) -> Made | None:
    return type.with_shape((type.size,)), "reshape", {"shape": type.shape}


VIEWS: Final[dict[str, View]] = {
    "transposed": _transposed,
    "rotated": _rotated,
    "inner": _inner,
    "every second": _every_second,
    "reversed": _reversed,
    "repeated rows": _repeated_rows,
    "repeated elements": _repeated_elements,
    "folded": _folded,
}

REPEATING: Final = frozenset({"repeated rows", "repeated elements"})
"""Views with which the same sums come again: their errors are then no independent ones, of which
the check of a mean speaks, and so their operands are numbers whose sums are exact."""


def view_of(name: str, type: TensorType) -> tuple[TensorType, str, Attributes] | None:
    """The input and the instruction that give ``type`` by a view; None where it has none."""
    made = VIEWS[name](type) if type.rank and type.size else None
    if made is None:
        return None
    source, op, attributes = made
    bound = Attributes(OPS[op].bind(attributes))
    assert OPS[op].infer([source], bound, ()) == (type,), (name, type)
    return source, op, bound
