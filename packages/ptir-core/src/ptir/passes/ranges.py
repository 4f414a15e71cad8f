"""Ranges of values: some places along an axis, computed from ranges of what a value is made of.

A product with rows of a weight needs these rows alone, also where the weight is words, scales and
minima that become numbers inside the program. ``Ranges.of`` goes from a value back to where it
comes from, and asks there for the places that it needs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from ptir.ir.graph import Ref, reachable
from ptir.ops.record import op
from ptir.params.quantized import resized

ELEMENT_BY_ELEMENT: Final = frozenset(
    ("add", "and", "cast", "div", "mul", "neg", "or", "shift_left", "shift_right", "sub")
)
"""Ops on operands of one shape that weights are computed with."""

Leaf: TypeAlias = Callable[[Ref, int, int, int], Ref]
"""Gives places of a value from outside: the value, the axis, the first place, behind the last."""
CompositeRange: TypeAlias = "Callable[[Ranges, Ref, int, int, int], Ref]"
"""The same of a composite's result, from ranges of its operands."""


class NotByRanges(Exception):  # noqa: N818  not an error: a question answered with no
    """Places of a value cannot be computed without the others; the text says why."""


@dataclass
class Ranges:
    """Computes ranges of values; ``composites`` are rules for those that are no ops, by name."""

    leaf: Leaf
    composites: Mapping[str, CompositeRange] = field(default_factory=dict[str, CompositeRange])
    _known: dict[tuple[int, int, int, int, int], Ref] = field(
        default_factory=dict[tuple[int, int, int, int, int], Ref], repr=False
    )

    def of(self, value: Ref, axis: int, first: int, end: int) -> Ref:
        """Places ``first`` up to ``end`` along an axis of ``value``; raises ``NotByRanges``."""
        key = (*value.key, axis, first, end)
        if key not in self._known:
            self._known[key] = self._computed(value, axis, first, end)
        return self._known[key]

    def _computed(self, value: Ref, axis: int, first: int, end: int) -> Ref:
        node = value.node
        if node.is_source:
            return self.leaf(value, axis, first, end)
        if not any(one.is_source for one in reachable([value])):
            return sliced(value, axis, first, end)
        if node.op == "composite":
            name = str(node.attributes["name"])
            if name not in self.composites:
                raise NotByRanges(f"{name} has no rule for rows")
            return self.composites[name](self, value, axis, first, end)
        if node.op in ELEMENT_BY_ELEMENT:
            return self._again(value, [self.of(o, axis, first, end) for o in node.operands])
        if node.op == "dequantize" and node.attributes["axis"] != axis:
            return self._again(value, [self.of(o, axis, first, end) for o in node.operands])
        rule = _MOVES.get(node.op)
        if rule is None:
            raise NotByRanges(f"{node.op} has no rule for rows")
        return rule(self, value, axis, first, end)

    @staticmethod
    def _again(value: Ref, operands: list[Ref]) -> Ref:
        found: Ref = op(value.node.op)(*operands, **dict(value.node.attributes))
        return found


def sliced(value: Ref, axis: int, first: int, end: int) -> Ref:
    """Places along an axis of a value that is there."""
    shape = value.type.shape
    starts = tuple(first if a == axis else 0 for a in range(len(shape)))
    limits = tuple(end if a == axis else n for a, n in enumerate(shape))
    found: Ref = op("slice")(value, starts=starts, limits=limits, strides=None)
    return found


# --- ops that move elements ---


def _transposed(ranges: Ranges, value: Ref, axis: int, first: int, end: int) -> Ref:
    order = value.node.attributes["permutation"]
    operand = ranges.of(value.node.operands[0], order[axis], first, end)
    found: Ref = op("transpose")(operand, permutation=order)
    return found


def _reshaped(ranges: Ranges, value: Ref, axis: int, first: int, end: int) -> Ref:
    """The axis is one of the operand's, several that became one, or the outer part of one."""
    (operand,) = value.node.operands
    before, after = operand.type.shape, value.type.shape
    outside = math.prod(after[:axis])
    for at, size in enumerate(before):
        if math.prod(before[:at]) != outside or not size or not after[axis]:
            continue
        inner, outer = max(1, size // after[axis]), max(1, after[axis] // size)
        whole = size * outer == after[axis] * inner
        if whole and first % outer == 0 and end % outer == 0:
            part = ranges.of(operand, at, first * inner // outer, end * inner // outer)
            shape = resized(after, axis, end - first)
            found: Ref = op("reshape")(part, shape=shape)
            return found
    raise NotByRanges(f"rows are no places along an axis behind reshape({operand.type})")


def _broadcast(ranges: Ranges, value: Ref, axis: int, first: int, end: int) -> Ref:
    (operand,), shape = value.node.operands, value.type.shape
    at = axis - (len(shape) - operand.type.rank)
    if at >= 0 and operand.type.shape[at] != 1:
        operand = ranges.of(operand, at, first, end)
    found: Ref = op("broadcast_to")(operand, shape=resized(shape, axis, end - first))
    return found


def _cut(ranges: Ranges, value: Ref, axis: int, first: int, end: int) -> Ref:
    (operand,), attributes = value.node.operands, value.node.attributes
    starts, limits = list(attributes["starts"]), list(attributes["limits"])
    strides = attributes["strides"]
    if strides is not None and strides[axis] != 1:
        raise NotByRanges("rows are picked with a stride")
    part = ranges.of(operand, axis, starts[axis] + first, starts[axis] + end)
    starts[axis], limits[axis] = 0, end - first
    if [0] * len(starts) == starts and tuple(limits) == part.type.shape and strides is None:
        return part
    found: Ref = op("slice")(part, starts=tuple(starts), limits=tuple(limits), strides=strides)
    return found


def _joined(ranges: Ranges, value: Ref, axis: int, first: int, end: int) -> Ref:
    along, found, at = value.node.attributes["axis"], [], 0
    for operand in value.node.operands:
        if along != axis:
            found.append(ranges.of(operand, axis, first, end))
            continue
        size = operand.type.shape[axis]
        low, high = max(first - at, 0), min(end - at, size)
        if low < high:
            found.append(ranges.of(operand, axis, low, high))
        at += size
    if len(found) == 1:
        return found[0]
    joined: Ref = op("concat")(*found, axis=along)
    return joined


def _padded(ranges: Ranges, value: Ref, axis: int, first: int, end: int) -> Ref:
    operand, filling = value.node.operands
    attributes: dict[str, Any] = dict(value.node.attributes)
    interior = attributes["interior"]
    size = operand.type.shape[axis]
    if attributes["low"][axis] or (interior and interior[axis]) or first >= size:
        raise NotByRanges("rows lie among padding")
    part = ranges.of(operand, axis, first, min(end, size))
    attributes["high"] = resized(attributes["high"], axis, max(0, end - size))
    found: Ref = op("pad")(part, filling, **attributes)
    return found


_MOVES: Final[Mapping[str, Callable[[Ranges, Ref, int, int, int], Ref]]] = {
    "transpose": _transposed,
    "reshape": _reshaped,
    "broadcast_to": _broadcast,
    "slice": _cut,
    "concat": _joined,
    "pad": _padded,
}
