"""One rule per op: the bounds of its results from those of its operands.

Rules compute in float64 and leave rounding to ``Rounding``, which widens what they return.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from ptir.ir.program import Instruction
from ptir.ops import numerics
from ptir.ops.record import OPS
from ptir.types import DType
from ptir_testsuite.witnesses.spans import Array, Span, Unbounded, point

Rule = Callable[[Instruction, list[Span]], "Span | list[Span]"]
AnyRule = TypeVar("AnyRule", bound=Rule)

RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[AnyRule], AnyRule]:
    """Add the decorated function as the rule of ops."""

    def add(function: AnyRule) -> AnyRule:
        RULES.update(dict.fromkeys(names, function))
        return function

    return add


def _meaning(name: str) -> Callable[..., Any]:
    record = OPS[name]
    return lambda *arrays, **attributes: record.reference(numerics, *arrays, **attributes)


def _corners(candidates: Sequence[Array]) -> Span:
    """The least and the greatest of several arrays; NaN only where all are NaN."""
    stack = np.stack(np.broadcast_arrays(*candidates))
    return Span(np.fmin.reduce(stack), np.fmax.reduce(stack))


INCREASING = (
    *("exp", "expm1", "log", "log1p", "sqrt", "tanh", "erf", "floor", "ceil", "round", "sign"),
    *("add", "maximum", "minimum", "clamp", "stop_gradient", "and", "or"),
    *("reshape", "transpose", "broadcast_to", "slice", "concat", "pad", "reverse", "tile"),
)


@rule(*INCREASING)
def increasing(instruction: Instruction, operands: list[Span]) -> Span:
    """An op whose result grows with every operand: bounds to bounds."""
    function = _meaning(instruction.op)
    wide = [operand.wide() for operand in operands]
    low = function(*(w.low for w in wide), **instruction.attributes)
    high = function(*(w.high for w in wide), **instruction.attributes)
    if low.dtype.kind != "f":
        return _settled(low, high)
    return Span(np.where(np.isnan(low) & ~np.isnan(high), -np.inf, low), high)


@rule("reduce", "cumulative", "reduce_window")
def fold(instruction: Instruction, operands: list[Span]) -> Span:
    """Sums remember the magnitude of their terms; products are folded as intervals."""
    kind = instruction.attributes["kind"]
    function = _meaning(instruction.op)
    wide = operands[0].wide()
    rest = [operand.wide().low for operand in operands[1:]]
    if kind == "prod":
        return _product(instruction, wide)
    found = increasing(instruction, [wide, *operands[1:]])
    if kind != "sum":
        return found
    magnitude = np.maximum(np.abs(wide.low), np.abs(wide.high))
    return Span(found.low, found.high, function(magnitude, *rest, **instruction.attributes))


def _product(instruction: Instruction, wide: Span) -> Span:
    """A product's relative error grows with each factor, so the product is its own magnitude."""
    if instruction.op != "reduce":
        raise Unbounded(f"{instruction.op}: no rule for products")
    axes = instruction.attributes["axes"]
    kept = [a for a in range(wide.low.ndim) if a not in axes]
    shape = [wide.low.shape[a] for a in kept]
    low, high = (np.transpose(w, [*axes, *kept]).reshape(-1, *shape) for w in (wide.low, wide.high))
    result = Span(np.ones(shape), np.ones(shape))
    for factor in zip(low, high, strict=True):
        result = _corners([a * b for a in (result.low, result.high) for b in factor])
    return Span(result.low, result.high, np.maximum(np.abs(result.low), np.abs(result.high)))


@rule("neg")
def neg(instruction: Instruction, operands: list[Span]) -> Span:
    """The bounds change places."""
    wide = operands[0].wide()
    return Span(-wide.high, -wide.low)


@rule("not")
def inverse(instruction: Instruction, operands: list[Span]) -> Span:
    """The bounds change places."""
    return Span(~operands[0].high, ~operands[0].low)


@rule("abs")
def absolute(instruction: Instruction, operands: list[Span]) -> Span:
    """Zero where the bounds have both signs."""
    wide = operands[0].wide()
    found = _corners([np.abs(wide.low), np.abs(wide.high)])
    return Span(np.where((wide.low < 0) & (wide.high > 0), 0.0, found.low), found.high)


@rule("sub")
def sub(instruction: Instruction, operands: list[Span]) -> Span:
    """Least minus greatest, greatest minus least."""
    a, b = (operand.wide() for operand in operands)
    return Span(a.low - b.high, a.high - b.low)


@rule("mul")
def mul(instruction: Instruction, operands: list[Span]) -> Span:
    """Least and greatest of the products of bounds."""
    a, b = (operand.wide() for operand in operands)
    if operands[0] is operands[1]:
        square = absolute(instruction, [a])
        return Span(square.low * square.low, square.high * square.high)
    return _corners([x * y for x in (a.low, a.high) for y in (b.low, b.high)])


@rule("div", "reciprocal", "rsqrt")
def quotient(instruction: Instruction, operands: list[Span]) -> Span:
    """Least and greatest of the quotients of bounds; unbounded where the divisor may be 0."""
    function = _meaning(instruction.op)
    wide = [operand.wide() for operand in operands]
    numerators = (wide[0].low, wide[0].high) if len(wide) == 2 else (None,)
    divisor = wide[-1]
    calls = [(d,) if n is None else (n, d) for n in numerators for d in (divisor.low, divisor.high)]
    found = _corners([function(*call) for call in calls])
    if instruction.types[0].dtype.is_integer:
        return found
    open_ = (divisor.low <= 0) & (divisor.high >= 0) & (divisor.low != divisor.high)
    return Span(np.where(open_, -np.inf, found.low), np.where(open_, np.inf, found.high))


@rule("pow")
def power(instruction: Instruction, operands: list[Span]) -> Span:
    """Least and greatest at the corners; the base must not change its sign."""
    a, b = (operand.wide() for operand in operands)
    if np.any((a.low < 0) & (a.high > 0)) or (np.any(a.low < 0) and not b.exact):
        raise Unbounded("pow of a base with both signs")
    function = _meaning("pow")
    return _corners([function(x, y) for x in (a.low, a.high) for y in (b.low, b.high)])


@rule("sin", "cos")
def wave(instruction: Instruction, operands: list[Span]) -> Span:
    """The value in the middle, as far apart as the angle may be."""
    wide = operands[0].wide()
    middle = _meaning(instruction.op)((wide.low + wide.high) / 2)
    radius = (wide.high - wide.low) / 2
    return Span(np.maximum(middle - radius, -1.0), np.minimum(middle + radius, 1.0))


@rule("cast")
def cast(instruction: Instruction, operands: list[Span]) -> Span:
    """Bounds to bounds; floats stay in float64 and are widened as the cast rounds."""
    dtype: DType = instruction.attributes["dtype"]
    if dtype.is_float:
        return operands[0].wide()
    low, high = (numerics.cast(bound, dtype=dtype) for bound in (operands[0].low, operands[0].high))
    if dtype.kind == "bool":
        return _flags(operands[0].low * operands[0].high > 0, high | low)
    return _settled(low, high)


def _settled(low: Array, high: Array) -> Span:
    """A point where both bounds agree everywhere: rounding to whole numbers forgets errors."""
    return point(low) if np.array_equal(low, high) else Span(low, high)


def _flags(certain: Array, possible: Array) -> Span:
    return _settled(np.asarray(certain), np.asarray(possible))


COMPARE: dict[str, Callable[[Span, Span], Span]] = {
    "lt": lambda a, b: _flags(a.high < b.low, a.low < b.high),
    "le": lambda a, b: _flags(a.high <= b.low, a.low <= b.high),
    "gt": lambda a, b: _flags(a.low > b.high, a.high > b.low),
    "ge": lambda a, b: _flags(a.low >= b.high, a.high >= b.low),
    "eq": lambda a, b: _flags(
        (a.low == a.high) & (b.low == b.high) & (a.low == b.low),
        (a.low <= b.high) & (b.low <= a.high),
    ),
    "ne": lambda a, b: _flags(
        ~((a.low <= b.high) & (b.low <= a.high)),
        ~((a.low == a.high) & (b.low == b.high) & (a.low == b.low)),
    ),
}


@rule("compare")
def compare(instruction: Instruction, operands: list[Span]) -> Span:
    """What holds for all values in the bounds, and what for some."""
    a, b = (operand.wide() for operand in operands)
    return COMPARE[instruction.attributes["direction"]](a, b)


@rule("rem")
def remainder(instruction: Instruction, operands: list[Span]) -> Span:
    """As far apart as the dividend, where the quotient cannot change; else all that may remain."""
    a, b = (operand.wide() for operand in operands)
    if np.any(b.low != b.high):
        raise Unbounded("rem by a value that is known only by bounds")
    low, high = (numerics.rem(end, b.low) for end in (a.low, a.high))
    same = np.trunc(a.low / b.low) == np.trunc(a.high / b.low)
    most = np.abs(b.low)
    return Span(
        np.where(same, low, np.where(a.low < 0, -most, 0.0)),
        np.where(same, high, np.where(a.high > 0, most, 0.0)),
    )


@rule("is_finite")
def is_finite(instruction: Instruction, operands: list[Span]) -> Span:
    """Finite at both bounds."""
    ends = [np.isfinite(bound) for bound in (operands[0].low, operands[0].high)]
    return _flags(ends[0] & ends[1], ends[0] | ends[1])


@rule("select")
def select(instruction: Instruction, operands: list[Span]) -> Span:
    """The chosen side; both where the predicate is open."""
    predicate, yes, no = operands[0], operands[1].wide(), operands[2].wide()
    either = yes.union(no)
    low, high = (
        np.where(predicate.high & ~predicate.low, e, np.where(predicate.low, y, n))
        for e, y, n in ((either.low, yes.low, no.low), (either.high, yes.high, no.high))
    )
    return Span(low, high)


@rule("dot_general")
def dot_general(instruction: Instruction, operands: list[Span]) -> Span:
    """Middle and radius; the error of the sums is relative to the products' magnitudes."""
    attributes = {k: v for k, v in instruction.attributes.items() if k != "dtype"}
    dot = _meaning("dot_general")
    a, b = (operand.wide() for operand in operands)
    (ma, ra), (mb, rb) = (((s.low + s.high) / 2, (s.high - s.low) / 2) for s in (a, b))
    middle = dot(ma, mb, **attributes)
    total = dot(np.abs(ma) + ra, np.abs(mb) + rb, **attributes)
    radius = np.maximum(total - dot(np.abs(ma), np.abs(mb), **attributes), 0.0)
    return Span(middle - radius, middle + radius, total)


@rule("sort", "top_k")
def ordered(instruction: Instruction, operands: list[Span]) -> list[Span]:
    """Sorted bounds enclose the sorted values; indices are known where both bounds agree."""
    function = _meaning(instruction.op)
    wide = operands[0].wide()
    (low, below), (high, above) = (
        function(bound, **instruction.attributes) for bound in (wide.low, wide.high)
    )
    return [Span(low, high), _settled(np.minimum(below, above), np.maximum(below, above))]


@rule("arg_max", "arg_min")
def extreme(instruction: Instruction, operands: list[Span]) -> Span:
    """The index where both bounds agree."""
    function = _meaning(instruction.op)
    wide = operands[0].wide()
    low, high = (function(bound, **instruction.attributes) for bound in (wide.low, wide.high))
    return _settled(np.minimum(low, high), np.maximum(low, high))


@rule("take", "dynamic_slice", "gather", "extract_patches")
def moved(instruction: Instruction, operands: list[Span]) -> Span:
    """Elements by exact indices."""
    return _moved(instruction, operands, 1)


@rule("scatter_reduce", "segment_reduce")
def scattered(instruction: Instruction, operands: list[Span]) -> Span:
    """Elements by exact indices; what is added is its own magnitude."""
    kind = instruction.attributes["kind"]
    values, index = [o for i, o in enumerate(operands) if i != 1], operands[1]
    places = _place(instruction, index)
    if kind in ("mul", "prod") and not all(value.exact for value in values):
        raise Unbounded(f"{instruction.op} multiplies values that are known only by bounds")
    function = _meaning(instruction.op)

    def at(arrays: list[Array]) -> Array:
        found = function(arrays[0], places, *arrays[1:], **instruction.attributes)
        return np.asarray(found)

    wide = [value.wide() for value in values]
    low, high = at([w.low for w in wide]), at([w.high for w in wide])
    if kind in ("mul", "prod"):
        return Span(low, high, np.abs(low))
    magnitude = at([np.maximum(np.abs(w.low), np.abs(w.high)) for w in wide])
    return Span(low, high, magnitude)


@rule("dynamic_update_slice")
def updated(instruction: Instruction, operands: list[Span]) -> Span:
    """Elements by exact indices."""
    return _moved(instruction, operands, 2)


def _place(instruction: Instruction, operand: Span) -> Array:
    if operand.native is None:
        raise Unbounded(f"{instruction.op} at a position that depends on a rounded value")
    return operand.native


def _moved(instruction: Instruction, operands: list[Span], count: int) -> Span:
    function = _meaning(instruction.op)
    indices = [_place(instruction, operand) for operand in operands[count:]]
    low, high = (
        function(
            *(getattr(o.wide(), end) for o in operands[:count]), *indices, **instruction.attributes
        )
        for end in ("low", "high")
    )
    return Span(low, high)
