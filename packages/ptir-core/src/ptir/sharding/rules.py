"""Sharding rules: which axes of an op go together, so that a split of one is one of the others.

One table, ``SHARDING_RULES``: a function for each op that lists its *factors*. A factor is a set of
axes, one at most of each operand and result, along which the op works place by place; operands
without one are needed whole. A factor that is summed over leaves addends. An op without a row has
none, so it is done whole by every worker.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from ptir.ir.program import Instruction
from ptir.ops.record import OPS
from ptir.sharding.placement import (
    REPLICATED,
    Partial,
    Placement,
    Ranges,
    Split,
    ranges_of_units,
    units_of_ranges,
)
from ptir.types import BF16, F16, TensorType
from ptir.weights.words import SIGNED, fills_words, period, words_for


@dataclass(frozen=True)
class FactorAxis:
    """An axis that a factor's units lie along: ``outer`` rounds of units of ``inner`` places."""

    axis: int
    outer: int = 1
    inner: int = 1


@dataclass(frozen=True)
class Factor:
    """Axes that are split alike: ``count`` units, the axis of each operand and result or None.

    A result that each worker has an addend of is ``Partial``.
    """

    count: int
    operands: tuple[FactorAxis | None, ...]
    results: tuple[FactorAxis | Partial, ...]

    def units(self, link: FactorAxis | Partial | None, split: Split) -> tuple[Ranges, ...] | None:
        """The units that each worker has when a linked axis is split so; None where it cannot."""
        if not isinstance(link, FactorAxis) or link.axis != split.axis:
            return None
        found = [units_of_ranges(p, self.count, link.outer, link.inner) for p in split.parts]
        return tuple(u for u in found if u is not None) if None not in found else None

    def placed(self, link: FactorAxis | Partial | None, units: tuple[Ranges, ...]) -> Placement:
        """The placement of an operand or result when workers have these units."""
        if isinstance(link, FactorAxis):
            parts = (ranges_of_units(part, self.count, link.outer, link.inner) for part in units)
            return Split(link.axis, tuple(parts))
        return link or REPLICATED


Rule = Callable[[Instruction, Sequence[TensorType]], list[Factor]]

SHARDING_RULES: Final[dict[str, Rule]] = {}
"""The factors of each op."""


def factors(instruction: Instruction, types: Sequence[TensorType]) -> list[Factor]:
    """The factors of an op (not of a composite) with at least two units."""
    rule = SHARDING_RULES.get(instruction.op)
    if rule is None and "elementwise" in OPS[instruction.op].traits:
        rule = _elementwise
    found = rule(instruction, types) if rule else []
    return [factor for factor in found if factor.count > 1]


def _row(*names: str) -> Callable[[Rule], Rule]:
    def add(rule: Rule) -> Rule:
        SHARDING_RULES.update(dict.fromkeys(names, rule))
        return rule

    return add


def _same(
    instruction: Instruction, types: Sequence[TensorType], axes: Sequence[int]
) -> list[Factor]:
    """Factors for axes at which the first operand and every result have the same places."""
    others: list[FactorAxis | None] = [None] * (len(types) - 1)
    results = len(instruction.types)
    return [
        Factor(types[0].shape[axis], (FactorAxis(axis), *others), (FactorAxis(axis),) * results)
        for axis in axes
    ]


def _elementwise(instruction: Instruction, types: Sequence[TensorType]) -> list[Factor]:
    shape = instruction.types[0].shape
    if any(type.shape not in (shape, ()) for type in types):
        return []
    return [
        Factor(
            count, tuple(FactorAxis(axis) if t.rank else None for t in types), (FactorAxis(axis),)
        )
        for axis, count in enumerate(shape)
    ]


@_row("constant", "iota")
def _creation(instruction: Instruction, types: Sequence[TensorType]) -> list[Factor]:
    shape = instruction.types[0].shape
    return [Factor(count, (), (FactorAxis(axis),)) for axis, count in enumerate(shape)]


@_row("broadcast_to")
def _broadcast(instruction: Instruction, types: Sequence[TensorType]) -> list[Factor]:
    operand, result = types[0], instruction.types[0]
    new = result.rank - operand.rank
    return [
        Factor(
            count,
            (FactorAxis(a - new) if a >= new and operand.shape[a - new] == count else None,),
            (FactorAxis(a),),
        )
        for a, count in enumerate(result.shape)
    ]


@_row("transpose")
def _transpose(instruction: Instruction, types: Sequence[TensorType]) -> list[Factor]:
    order = instruction.attributes["permutation"]
    return [
        Factor(types[0].shape[a], (FactorAxis(a),), (FactorAxis(at),)) for at, a in enumerate(order)
    ]


@_row("reshape")
def _reshape(instruction: Instruction, types: Sequence[TensorType]) -> list[Factor]:
    """Both shapes are cut where either ends an axis; each piece is a factor."""
    before, after = types[0].shape, instruction.types[0].shape
    if 0 in before:
        return []
    cuts = sorted({*_ends(before), *_ends(after)})
    if any(larger % smaller for smaller, larger in itertools.pairwise(cuts)):
        cuts = _common(before, after)
    found: list[Factor] = []
    for larger, smaller in zip(reversed(cuts), reversed(cuts[:-1]), strict=False):
        axes = [_piece(shape, smaller, larger) for shape in (before, after)]
        if axes[0] and axes[1]:
            found.append(Factor(larger // smaller, (axes[0],), (axes[1],)))
    return found


def _ends(shape: Sequence[int]) -> list[int]:
    """The places that one step along an axis passes, for each axis, and those of all of them."""
    return [math.prod(shape[axis:]) for axis in range(len(shape) + 1)]


def _common(before: Sequence[int], after: Sequence[int]) -> list[int]:
    """The cuts that both shapes have: between them is what cannot be told apart."""
    return sorted({*_ends(before)} & {*_ends(after)})


def _piece(shape: Sequence[int], smaller: int, larger: int) -> FactorAxis | None:
    """The axis that a piece of ``larger`` by ``smaller`` places lies in."""
    ends = _ends(shape)
    for axis, (end, begin) in enumerate(itertools.pairwise(ends)):
        if begin <= smaller and larger <= end and end > begin:
            return FactorAxis(axis, outer=end // larger, inner=smaller // begin)
    return None


@_row("slice")
def _slice(instruction: Instruction, types: Sequence[TensorType]) -> list[Factor]:
    given = instruction.attributes
    strides = given["strides"] or (1,) * types[0].rank
    rows = zip(given["starts"], given["limits"], strides, types[0].shape, strict=True)
    whole = [
        a for a, (low, high, step, size) in enumerate(rows) if (low, high, step) == (0, size, 1)
    ]
    return _same(instruction, types, whole)


@_row("concat")
def _concat(instruction: Instruction, types: Sequence[TensorType]) -> list[Factor]:
    along = instruction.attributes["axis"]
    return [
        Factor(count, (FactorAxis(axis),) * len(types), (FactorAxis(axis),))
        for axis, count in enumerate(types[0].shape)
        if axis != along
    ]


@_row("pad")
def _pad(instruction: Instruction, types: Sequence[TensorType]) -> list[Factor]:
    given = instruction.attributes
    inner = given["interior"] or (0,) * types[0].rank
    rows = zip(given["low"], given["high"], inner, strict=True)
    return _same(instruction, types, [a for a, row in enumerate(rows) if not any(row)])


@_row("tile")
def _tile(instruction: Instruction, types: Sequence[TensorType]) -> list[Factor]:
    times = instruction.attributes["repeats"]
    return _same(instruction, types, [axis for axis, n in enumerate(times) if n == 1])


@_row("reverse")
def _reverse(instruction: Instruction, types: Sequence[TensorType]) -> list[Factor]:
    turned = instruction.attributes["axes"]
    return _same(instruction, types, [a for a in range(types[0].rank) if a not in turned])


@_row("cumulative", "sort")
def _along(instruction: Instruction, types: Sequence[TensorType]) -> list[Factor]:
    along = instruction.attributes["axis"]
    return _same(instruction, types, [a for a in range(types[0].rank) if a != along])


@_row("top_k")
def _last(instruction: Instruction, types: Sequence[TensorType]) -> list[Factor]:
    return _same(instruction, types, range(types[0].rank - 1))


@_row("dynamic_slice")
def _dynamic_slice(instruction: Instruction, types: Sequence[TensorType]) -> list[Factor]:
    sizes = instruction.attributes["sizes"]
    return [
        factor
        for axis, factor in enumerate(_same(instruction, types, range(types[0].rank)))
        if sizes[axis] == types[0].shape[axis]
    ]


@_row("dynamic_update_slice")
def _dynamic_update(instruction: Instruction, types: Sequence[TensorType]) -> list[Factor]:
    operand, update = types[0].shape, types[1].shape
    return [
        Factor(size, (FactorAxis(axis), FactorAxis(axis), None), (FactorAxis(axis),))
        for axis, size in enumerate(operand)
        if size == update[axis]
    ]


@_row("take")
def _take(instruction: Instruction, types: Sequence[TensorType]) -> list[Factor]:
    along, (operand, indices) = instruction.attributes["axis"], types
    found = [
        Factor(size, (FactorAxis(a), None), (FactorAxis(a if a < along else a + indices.rank - 1),))
        for a, size in enumerate(operand.shape)
        if a != along
    ]
    return found + [
        Factor(size, (None, FactorAxis(a)), (FactorAxis(along + a),))
        for a, size in enumerate(indices.shape)
    ]


@_row("arg_max", "arg_min")
def _arg(instruction: Instruction, types: Sequence[TensorType]) -> list[Factor]:
    along = instruction.attributes["axis"]
    return [
        Factor(size, (FactorAxis(a),), (FactorAxis(a - (a > along)),))
        for a, size in enumerate(types[0].shape)
        if a != along
    ]


@_row("reduce")
def _reduce(instruction: Instruction, types: Sequence[TensorType]) -> list[Factor]:
    kind, folded = instruction.attributes["kind"], instruction.attributes["axes"]
    found: list[Factor] = []
    for axis, size in enumerate(types[0].shape):
        if axis not in folded:
            at = axis - sum(other < axis for other in folded)
            found.append(Factor(size, (FactorAxis(axis),), (FactorAxis(at),)))
        elif kind not in ("sum", "prod") or types[0].dtype not in (F16, BF16):
            found.append(Factor(size, (FactorAxis(axis),), (Partial(kind),)))
    return found  # f16 and bf16 sums are rounded once, which the sum of rounded sums is not


@_row("dot_general")
def _dot(instruction: Instruction, types: Sequence[TensorType]) -> list[Factor]:
    lhs, _ = types
    given = instruction.attributes
    batch = list(zip(given["lhs_batch"], given["rhs_batch"], strict=True))
    summed = list(zip(given["lhs_contract"], given["rhs_contract"], strict=True))
    found = [
        Factor(lhs.shape[a], (FactorAxis(a), FactorAxis(b)), (FactorAxis(at),))
        for at, (a, b) in enumerate(batch)
    ]
    at = len(batch)
    for side, type in enumerate(types):
        for axis in range(type.rank):
            if all(axis != pair[side] for pair in (*batch, *summed)):
                axes = (FactorAxis(axis), None) if side == 0 else (None, FactorAxis(axis))
                found.append(Factor(type.shape[axis], axes, (FactorAxis(at),)))
                at += 1
    addend = Partial("sum", wide=instruction.types[0].dtype in (F16, BF16))
    found += [Factor(lhs.shape[a], (FactorAxis(a), FactorAxis(b)), (addend,)) for a, b in summed]
    return found


@_row("quantize", "dequantize")
def _affine(instruction: Instruction, types: Sequence[TensorType]) -> list[Factor]:
    """Along the quantized axis a unit is a group, where a group has whole words."""
    given, (result,) = instruction.attributes, instruction.types
    along, group, bits = given["axis"], given["group"], given["bits"]
    found: list[Factor] = []
    for axis, size in enumerate(types[1].shape):
        if axis != along:
            count = result.shape[axis]
            scales = (FactorAxis(axis) if t.shape[axis] == count else None for t in types[1:])
            found.append(Factor(count, (FactorAxis(axis), *scales), (FactorAxis(axis),)))
        elif fills_words(group, bits):
            words, values = (
                FactorAxis(axis, inner=words_for(group, bits)),
                FactorAxis(axis, inner=group),
            )
            first, last = (values, words) if instruction.op == "quantize" else (words, values)
            found.append(Factor(size, (first, FactorAxis(axis), FactorAxis(axis)), (last,)))
    return found


@_row("unpack_vectors")
def _vectors(instruction: Instruction, types: Sequence[TensorType]) -> list[Factor]:
    """Along the packed axis a unit is the least that has whole words of codes and of signs."""
    given, (result,) = instruction.attributes, instruction.types
    along, (codes, table, signs) = given["axis"], types
    count, words = period(given["bits"])
    signed = signs.shape[along] > 0
    each = math.lcm(count * table.shape[1], SIGNED if signed else 1)
    found: list[Factor] = []
    for axis, size in enumerate(codes.shape):
        of = FactorAxis(axis)
        if axis != along:
            found.append(Factor(size, (of, None, of), (of,)))
        elif result.shape[axis] % each == 0:
            operands = (
                FactorAxis(axis, inner=each // (count * table.shape[1]) * words),
                None,
                FactorAxis(axis, inner=each // SIGNED) if signed else None,
            )
            found.append(
                Factor(result.shape[axis] // each, operands, (FactorAxis(axis, inner=each),))
            )
    return found


@_row("reduce_window")
def _window(instruction: Instruction, types: Sequence[TensorType]) -> list[Factor]:
    names = ("window", "strides", "low", "high", "base_dilation", "window_dilation")
    rows = [instruction.attributes[name] for name in names]
    plain = (1, 1, 0, 0, 1, 1)
    axes = [
        axis
        for axis in range(types[0].rank)
        if all(row is None or row[axis] == want for row, want in zip(rows, plain, strict=True))
    ]
    return _same(instruction, types, axes)
