"""Ops that work element by element: operands of one type, no broadcasting.

``accuracy`` is what float results promise (everything else is exact): ``exact``, ``rounded`` (the
nearest float), ``ulp:N``, or ``rounded or ulp:N`` (rounded where a backend claims it, as the
reference does). Samples hold values that tell a right answer from its mirror image.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from math import inf, nan
from typing import Any

from ptir.ir.attributes import Literal
from ptir.ir.graph import Ref
from ptir.ops.record import (
    ANY,
    BITS,
    FLOAT,
    INTEGER,
    NUMERIC,
    Array,
    Attribute,
    BadCall,
    Call,
    DTypeClass,
    Op,
    Sample,
    bad,
    define,
    dtypes,
    op,
    sample,
)
from ptir.types import BF16, BOOL, DTYPES, F16, F32, I32, U32, DType, TensorType

TINY = 1e-45  # the smallest f32 above zero
LAST = 3.4028234663852886e38  # the largest finite f32
LOW, HIGH, ONES = -(2**31), 2**31 - 1, 2**32 - 1


# --- type rules ---


def same_type(call: Call) -> TensorType:
    """The operands' common type."""
    first = call.types[0]
    for other in call.types[1:]:
        message = f"operand dtypes differ: {first.dtype} vs {other.dtype}; cast one of them"
        call.require(first.dtype == other.dtype, "dtypes", message)
        same_shape(call, first, other)
    return first


def same_shape(call: Call, first: TensorType, other: TensorType) -> None:
    """Refuse operands whose shapes differ."""
    message = f"operand shapes differ: {list(first.shape)} vs {list(other.shape)}; use broadcast_to"
    call.require(first.shape == other.shape, "shapes", message)


def _predicate(call: Call) -> TensorType:
    return same_type(call).with_dtype(BOOL)


def _select(call: Call) -> TensorType:
    predicate, on_true, on_false = call.types
    message = f"branch dtypes differ: {on_true.dtype} vs {on_false.dtype}; cast one of them"
    call.require(on_true.dtype == on_false.dtype, "dtypes", message)
    same_shape(call, predicate, on_true)
    same_shape(call, on_true, on_false)
    return on_true


def _target(call: Call, allowed: DTypeClass) -> DType:
    target = call["dtype"]
    if not isinstance(target, DType) or target not in allowed:
        listed = ", ".join(name for name in DTYPES if DTYPES[name] in allowed)
        call.fail("target", f"dtype is {target!r}; one of {listed}, as a DType")
    return target


def _cast(call: Call) -> TensorType:
    return call.types[0].with_dtype(_target(call, ANY))


def _bitcast(call: Call) -> TensorType:
    source, target = call.types[0].dtype, _target(call, ANY - dtypes("bool"))
    message = f"{source} has {source.bits} bits and {target} has {target.bits}; widths must agree"
    call.require(source.bits == target.bits, "width", message)
    return call.types[0].with_dtype(target)


# --- rows ---


def _through(name: str) -> Callable[..., Any]:
    """The numerics function called ``name``, looked up when it runs: NumPy loads that late."""

    def meaning(xp: Any, *arrays: Any, **attributes: Any) -> Any:
        return getattr(xp, name)(*arrays, **attributes)

    return meaning


def _refusals(operands: str, allowed: DTypeClass, attributes: dict[str, Any]) -> list[BadCall]:
    """The bad calls of every op whose operands have one type: dtype, arity, dtypes, shapes."""
    names = operands.split()
    count, good = len(names), next(n for n in reversed(DTYPES) if DTYPES[n] in allowed)
    wrong = next(n for n in ("f64", "bool", "f32") if DTYPES[n] not in allowed)
    listed = ", ".join(n for n in DTYPES if DTYPES[n] in allowed)
    message = f"{names[0]} has dtype {wrong}; one of {listed}"
    calls = [bad("dtype", *[f"{wrong}[2]"] * count, message=message, **attributes)]
    for given in (count - 1, count + 1):
        message = f"{given} operands given; takes {', '.join(names)}"
        calls.append(bad("arity", *[f"{good}[2]"] * given, message=message, **attributes))
    if count > 1:
        calls += _mismatches(count, good, allowed, attributes)
    return calls


def _mismatches(
    count: int, good: str, allowed: DTypeClass, attributes: dict[str, Any]
) -> list[BadCall]:
    """One bad call for each operand that differs from the first in its shape or its dtype."""
    calls = []
    other = next((n for n in DTYPES if DTYPES[n] in allowed and n != good), None)
    for position in range(1, count):
        types = [f"{good}[2]"] * count
        types[position] = f"{good}[2,1]"
        message = "operand shapes differ: [2] vs [2, 1]; use broadcast_to"
        calls.append(bad("shapes", *types, message=message, **attributes))
        types[position] = f"{other}[2]"
        message = f"operand dtypes differ: {good} vs {other}; cast one of them"
        if other is not None:
            calls.append(bad("dtypes", *types, message=message, **attributes))
    return calls


def _row(
    name: str,
    operands: str,
    allowed: DTypeClass,
    doc: str,
    samples: Sequence[Sample],
    *,
    traits: str = "",
    rule: Callable[[Call], TensorType] = same_type,
    attributes: Sequence[Attribute] = (),
    call: dict[str, Any] | None = None,
    also_bad: Sequence[BadCall] = (),
    **rest: Any,
) -> Op:
    """Define an elementwise op; ``call`` holds valid attributes for the derived bad calls."""
    numerics_name = f"{name}_" if name in ("and", "or", "not") else name
    return define(
        name,
        operands,
        dtypes=allowed,
        rule=rule,
        meaning=_through(numerics_name),
        doc=doc,
        attributes=attributes,
        samples=samples,
        bad_calls=[*_refusals(operands, allowed, call or {}), *also_bad],
        traits=f"elementwise {traits}",
        **rest,
    )


def _f(*values: float) -> Array:
    return Array("f32", list(values))


def _i(*values: int) -> Array:
    return Array("i32", list(values))


def _u(*values: int) -> Array:
    return Array("u32", list(values))


def _b(*values: bool) -> Array:
    return Array("bool", list(values))


def _unary(
    name: str, allowed: DTypeClass, doc: str, *pairs: tuple[Array, Array], **rest: Any
) -> Op:
    samples = [sample(given, gives=gives) for given, gives in pairs]
    return _row(name, "operand", allowed, doc, samples, **rest)


def _binary(
    name: str, allowed: DTypeClass, doc: str, *triples: tuple[Array, Array, Array], **rest: Any
) -> Op:
    samples = [sample(lhs, rhs, gives=gives) for lhs, rhs, gives in triples]
    return _row(name, rest.pop("operands", "lhs rhs"), allowed, doc, samples, **rest)


def _filled(value: float, like: Ref) -> Ref:
    """An f32 number in the shape of ``like``."""
    scalar = Literal(TensorType(F32, ()), struct.pack("<f", value))
    return op("broadcast_to")(op("constant")(value=scalar), shape=like.type.shape)


# --- unary ---

_unary(
    "neg",
    NUMERIC,
    "The negative; floats flip the sign bit, integers wrap (unsigned ones too).",
    (_f(-2.5, 0.0, -0.0, inf, nan), _f(2.5, -0.0, 0.0, -inf, nan)),
    (_i(3, -4, 0, LOW), _i(-3, 4, 0, LOW)),
    (_u(1, 0), _u(ONES, 0)),
)
_unary(
    "abs",
    NUMERIC,
    "The magnitude; the smallest signed integer wraps to itself.",
    (_f(-2.5, 3.0, -0.0, -inf, nan), _f(2.5, 3.0, 0.0, inf, nan)),
    (_i(3, -4, 0, LOW), _i(3, 4, 0, LOW)),
    (_u(7, ONES), _u(7, ONES)),
)
_unary(
    "sign",
    NUMERIC,
    "-1, 0 or 1; floats keep -0 and NaN.",
    (_f(-2.5, TINY, 0.0, -0.0, -inf, nan), _f(-1.0, 1.0, 0.0, -0.0, -1.0, nan)),
    (_i(3, -4, 0, LOW), _i(1, -1, 0, -1)),
    (_u(0, ONES), _u(0, 1)),
)
_unary(
    "exp",
    FLOAT,
    "e to the power of the operand.",
    (_f(-1.0, 0.0, 1.0, -104.0, 89.0), _f(0.36787944117144233, 1.0, 2.718281828459045, 0, inf)),
    (_f(-inf, inf, nan), _f(0.0, inf, nan)),
    accuracy="ulp:3",
)
_unary(
    "expm1",
    FLOAT,
    "exp(x) - 1 without cancellation near zero; keeps -0.",
    (_f(-1.0, -0.0, 1e-10, 1.0), _f(-0.6321205588285577, -0.0, 1e-10, 1.718281828459045)),
    (_f(-inf, inf, nan), _f(-1.0, inf, nan)),
    accuracy="ulp:3",
)
_unary(
    "log",
    FLOAT,
    "The natural logarithm: of either zero -inf, of negative numbers NaN.",
    (_f(0.5, 1.0, 10.0, -1.0), _f(-0.6931471805599453, 0.0, 2.302585092994046, nan)),
    (_f(0.0, -0.0, inf, nan), _f(-inf, -inf, inf, nan)),
    accuracy="ulp:4",
)
_unary(
    "log1p",
    FLOAT,
    "log(1 + x) without cancellation near zero; keeps -0.",
    (_f(-0.5, -0.0, 1e-10, 1.0), _f(-0.6931471805599453, -0.0, 1e-10, 0.6931471805599453)),
    (_f(-1.0, -2.0, inf, nan), _f(-inf, nan, inf, nan)),
    accuracy="ulp:2",
)
_unary(
    "sqrt",
    FLOAT,
    "The square root: of negative numbers NaN, of -0 is -0.",
    (_f(2.0, 6.25, -0.0, 0.0, -1.0, inf), _f(1.4142135623730951, 2.5, -0.0, 0.0, nan, inf)),
    accuracy="rounded or ulp:3",
)
_unary(
    "rsqrt",
    FLOAT,
    "1 / sqrt(x), rounded once: of a zero the infinity of its sign, of negative numbers NaN.",
    (_f(2.0, 0.0, -0.0, -1.0, inf), _f(0.7071067811865476, inf, -inf, nan, 0.0)),
    accuracy="ulp:2",
)
_unary(
    "reciprocal",
    FLOAT,
    "1 / x: of a zero the infinity of its sign.",
    (_f(-3.0, 4.0, 0.0, -0.0, -inf, nan), _f(-0.3333333333333333, 0.25, inf, -inf, -0.0, nan)),
    accuracy="rounded or ulp:2.5",
    decomposition=lambda x: op("div")(_filled(1.0, x), x),
)
_unary(
    "sin",
    FLOAT,
    "The sine of an angle in radians, reduced exactly however large; of infinities NaN.",
    (
        _f(-1.0, -0.0, 1.0, 1e22),
        _f(-0.8414709848078965, -0.0, 0.8414709848078965, -0.7340815352961015),
    ),
    (_f(-inf, inf, nan), _f(nan, nan, nan)),
    accuracy="ulp:4",
)
_unary(
    "cos",
    FLOAT,
    "The cosine of an angle in radians, reduced exactly however large; of infinities NaN.",
    (
        _f(-1.0, -0.0, 2.0, 1e22),
        _f(0.5403023058681398, 1.0, -0.4161468365471424, 0.679061337095051),
    ),
    (_f(-inf, inf, nan), _f(nan, nan, nan)),
    accuracy="ulp:4",
)
_unary(
    "tanh",
    FLOAT,
    "The hyperbolic tangent; keeps -0.",
    (_f(-1.0, -0.0, 0.5, 20.0), _f(-0.7615941559557649, -0.0, 0.46211715726000973, 1.0)),
    (_f(-inf, inf, nan), _f(-1.0, 1.0, nan)),
    accuracy="ulp:5",
)
_unary(
    "erf",
    FLOAT,
    "The error function 2/sqrt(pi) * integral of exp(-t*t) from 0 to x; keeps -0.",
    (_f(-1.0, -0.0, 0.25, 5.0), _f(-0.8427007929497149, -0.0, 0.2763263901682369, 1.0)),
    (_f(-inf, inf, nan), _f(-1.0, 1.0, nan)),
    accuracy="ulp:16",
)
_unary(
    "floor",
    FLOAT,
    "The largest whole number not above the operand.",
    (_f(-1.5, -0.25, 0.75, 2.0, -0.0), _f(-2.0, -1.0, 0.0, 2.0, -0.0)),
    (_f(-inf, inf, nan), _f(-inf, inf, nan)),
)
_unary(
    "ceil",
    FLOAT,
    "The smallest whole number not below the operand; from (-1, 0) it is -0.",
    (_f(-1.5, -0.25, 0.75, 2.0, -0.0), _f(-1.0, -0.0, 1.0, 2.0, -0.0)),
    (_f(-inf, inf, nan), _f(-inf, inf, nan)),
)
_unary(
    "round",
    FLOAT,
    "The nearest whole number, halves to the even one; the sign is kept.",
    (_f(-1.5, -0.5, 0.5, 1.5, 2.5, 2.75), _f(-2.0, -0.0, 0.0, 2.0, 2.0, 3.0)),
    (_f(-inf, inf, nan), _f(-inf, inf, nan)),
)
_unary(
    "is_finite",
    FLOAT,
    "Whether the operand is neither infinite nor NaN.",
    (_f(-LAST, 0.0, inf, -inf, nan), _b(True, True, False, False, False)),
    rule=_predicate,
    decomposition=lambda x: op("compare")(op("abs")(x), _filled(inf, x), direction="lt"),
)
_unary(
    "not",
    BITS,
    "Logical not of bool, bitwise not of integers.",
    (_b(True, False), _b(False, True)),
    (_i(0, 5, LOW), _i(-1, -6, HIGH)),
    (_u(0, 5), _u(ONES, ONES - 5)),
)
_unary(
    "stop_gradient",
    ANY,
    "The operand itself; marks a value that a derivative treats as constant.",
    (_f(-0.0, nan, 1.0), _f(-0.0, nan, 1.0)),
    (_b(True, False), _b(True, False)),
    decomposition=lambda x: x,
    traits="view",
)

# --- binary ---

_binary(
    "add",
    NUMERIC,
    "The sum: floats correctly rounded, integers wrap.",
    (
        _f(1.5, 0.1, -0.0, inf, LAST),
        _f(-2.25, 0.2, -0.0, -inf, LAST),
        _f(-0.75, 0.3, -0.0, nan, inf),
    ),
    (_i(HIGH, -3), _i(1, 5), _i(LOW, 2)),
    (_u(ONES, 3), _u(2, 5), _u(1, 8)),
    traits="commutative",
    accuracy="rounded",
)
_binary(
    "sub",
    NUMERIC,
    "The difference lhs - rhs: floats correctly rounded, integers wrap.",
    (_f(1.5, 0.0, -0.0, inf), _f(-2.25, 0.0, 0.0, inf), _f(3.75, 0.0, -0.0, nan)),
    (_i(LOW, -3), _i(1, 5), _i(HIGH, -8)),
    (_u(1, 8), _u(3, 5), _u(ONES - 1, 3)),
    accuracy="rounded",
)
_binary(
    "mul",
    NUMERIC,
    "The product: floats correctly rounded, integers wrap.",
    (_f(1.5, -0.0, 0.0, LAST), _f(-2.5, 3.0, inf, -2.0), _f(-3.75, -0.0, nan, -inf)),
    (_i(65536, -3), _i(65537, 5), _i(65536, -15)),
    (_u(65536, 3), _u(65537, 5), _u(65536, 15)),
    traits="commutative",
    accuracy="rounded",
)
_binary(
    "div",
    NUMERIC,
    "The quotient lhs / rhs: integers truncate towards zero, division by zero gives all ones, and "
    "the smallest signed integer over -1 is itself.",
    (_f(1.0, -6.25, 1.0, 1.0, 0.0), _f(3.0, 2.5, 0.0, -0.0, 0.0), _f(1 / 3, -2.5, inf, -inf, nan)),
    (_i(7, -7, 7, -7, 5, LOW), _i(2, 2, -2, -2, 0, -1), _i(3, -3, -3, 3, -1, LOW)),
    (_u(7, ONES, 5), _u(2, 2, 0), _u(3, HIGH, ONES)),
    accuracy="rounded or ulp:2.5",
)
_binary(
    "rem",
    NUMERIC,
    "lhs - rhs * trunc(lhs / rhs), exact, with the sign of lhs; an integer by zero gives lhs, a "
    "float by zero NaN.",
    (_f(5.5, -5.5, 4.0, -4.0, 1.0), _f(2.0, 2.0, inf, 2.0, 0.0), _f(1.5, -1.5, 4.0, -0.0, nan)),
    (_i(7, -7, 7, -7, 5, LOW), _i(2, 2, -2, -2, 0, -1), _i(1, -1, 1, -1, 5, 0)),
    (_u(7, ONES, 5), _u(4, 10, 0), _u(3, 5, 5)),
)
_binary(
    "pow",
    NUMERIC,
    "base to the power exponent. Floats follow IEEE 754 pow (x**0 and 1**x are 1, even of NaN); "
    "integers wrap, and a negative exponent gives 1, -1 or 0.",
    (
        _f(2.0, -2.0, -8.0, nan, 0.0),
        _f(-1.5, 3.0, 0.5, 0.0, -1.0),
        _f(2**-1.5, -8.0, nan, 1.0, inf),
    ),
    (
        _i(3, -3, 2, 1, -1, -1, 0, 0),
        _i(4, 3, -1, -5, -2, -3, -1, 0),
        _i(81, -27, 0, 1, 1, -1, 0, 1),
    ),
    (_i(3, 2, LOW), _i(21, 31, -2), _i(1870418611, LOW, 0)),
    (_u(3, 7, 0), _u(21, ONES, 0), _u(1870418611, 3067833783, 1)),
    operands="base exponent",
    accuracy="ulp:16",
)
_binary(
    "maximum",
    NUMERIC,
    "The larger operand; NaN if either is NaN, and -0 < +0.",
    (_f(-0.0, 0.0, nan, 1.0, -2.0), _f(0.0, -0.0, 1.0, nan, -3.0), _f(0.0, 0.0, nan, nan, -2.0)),
    (_i(-3, LOW), _i(-4, HIGH), _i(-3, HIGH)),
    (_u(3, ONES), _u(4, 0), _u(4, ONES)),
    traits="commutative",
)
_binary(
    "minimum",
    NUMERIC,
    "The smaller operand; NaN if either is NaN, and -0 < +0.",
    (_f(-0.0, 0.0, nan, 1.0, -2.0), _f(0.0, -0.0, 1.0, nan, -3.0), _f(-0.0, -0.0, nan, nan, -3.0)),
    (_i(-3, LOW), _i(-4, HIGH), _i(-4, LOW)),
    (_u(3, ONES), _u(4, 0), _u(3, 0)),
    traits="commutative",
)
_FALSE_TRUE = _b(False, False, True, True), _b(False, True, False, True)
_binary(
    "and",
    BITS,
    "Logical and of bool, bitwise and of integers.",
    (*_FALSE_TRUE, _b(False, False, False, True)),
    (_i(12, -1), _i(10, LOW), _i(8, LOW)),
    (_u(12, ONES), _u(10, 7), _u(8, 7)),
    traits="commutative",
)
_binary(
    "or",
    BITS,
    "Logical or of bool, bitwise or of integers.",
    (*_FALSE_TRUE, _b(False, True, True, True)),
    (_i(12, 1), _i(10, LOW), _i(14, LOW + 1)),
    (_u(12, ONES), _u(10, 7), _u(14, ONES)),
    traits="commutative",
)
_binary(
    "xor",
    BITS,
    "Logical exclusive or of bool, bitwise exclusive or of integers.",
    (*_FALSE_TRUE, _b(False, True, True, False)),
    (_i(12, -1), _i(10, LOW), _i(6, HIGH)),
    (_u(12, ONES), _u(10, 7), _u(6, ONES - 7)),
    traits="commutative",
)
_binary(
    "shift_left",
    INTEGER,
    "operand * 2**amount, wrapping; an amount of the width or more (negative ones are read as "
    "unsigned) gives 0.",
    (_i(3, -3, 5, 1, 1, 1), _i(4, 1, 31, 32, -1, 0), _i(48, -6, LOW, 0, 0, 1)),
    (_u(3, ONES, 1, 1), _u(4, 31, 32, ONES), _u(48, 2**31, 0, 0)),
    operands="operand amount",
)
_binary(
    "shift_right",
    INTEGER,
    "operand / 2**amount rounded down: signed operands shift their sign in, unsigned ones zeros; "
    "an amount of the width or more (negative ones are read as unsigned) leaves only those.",
    (_i(48, -5, LOW, LOW, 7, -7, 7), _i(4, 1, 31, 32, 32, -1, -1), _i(3, -3, -1, -1, 0, -1, 0)),
    (_u(48, ONES, ONES, ONES), _u(4, 31, 32, ONES), _u(3, 1, 0, 0)),
    operands="operand amount",
)

# --- compare, select, clamp ---

_COMPARED = (
    (_f(-1.0, 2.0, -0.0, nan, inf), _f(1.0, -2.0, 0.0, nan, inf)),
    (_i(-1, 2, 3, LOW), _i(1, -2, 3, HIGH)),
    (_u(1, ONES, 3), _u(2, 1, 3)),
    (_b(False, True, True), _b(True, False, True)),
)
_COMPARISONS = {
    "eq": ((0, 0, 1, 0, 1), (0, 0, 1, 0), (0, 0, 1), (0, 0, 1)),
    "ne": ((1, 1, 0, 1, 0), (1, 1, 0, 1), (1, 1, 0), (1, 1, 0)),
    "lt": ((1, 0, 0, 0, 0), (1, 0, 0, 1), (1, 0, 0), (1, 0, 0)),
    "le": ((1, 0, 1, 0, 1), (1, 0, 1, 1), (1, 0, 1), (1, 0, 1)),
    "gt": ((0, 1, 0, 0, 0), (0, 1, 0, 0), (0, 1, 0), (0, 1, 0)),
    "ge": ((0, 1, 1, 0, 1), (0, 1, 1, 0), (0, 1, 1), (0, 1, 1)),
}
_row(
    "compare",
    "lhs rhs",
    NUMERIC | dtypes("bool"),
    "Whether lhs stands in ``direction`` to rhs, as bool. With a NaN only ``ne`` holds; the zeros "
    "are equal; false < true.",
    [
        sample(*operands, gives=_b(*map(bool, gives)), direction=direction)
        for direction, results in _COMPARISONS.items()
        for operands, gives in zip(_COMPARED, results, strict=True)
    ],
    rule=_predicate,
    attributes=[Attribute("direction", "eq, ne, lt, le, gt or ge", choices=tuple(_COMPARISONS))],
    call={"direction": "lt"},
    also_bad=[
        bad(
            "attribute",
            "f32[2]",
            "f32[2]",
            direction="lesser",
            message="unknown direction 'lesser' (nearest: le); known: eq, ge, gt, le, lt, ne",
        ),
        bad(
            "attribute",
            "f32[2]",
            "f32[2]",
            message="attribute 'direction' is missing: eq, ne, lt, le, gt or ge",
        ),
    ],
)
define(
    "select",
    "predicate on_true on_false",
    dtypes={"predicate": dtypes("bool"), "on_true": ANY, "on_false": ANY},
    rule=_select,
    meaning=_through("select"),
    doc="on_true where the predicate holds, else on_false; all three of one shape.",
    traits="elementwise",
    samples=[
        sample(
            _b(True, False, True), _f(nan, 1.0, -0.0), _f(2.0, 3.0, 0.0), gives=_f(nan, 3, -0.0)
        ),
        sample(_b(True, False), _i(-1, 2), _i(3, LOW), gives=_i(-1, LOW)),
        sample(_b(False, True), _b(True, False), _b(False, True), gives=_b(False, False)),
        sample(
            Array("bool", True), Array("bf16", -1.5), Array("bf16", 2.0), gives=Array("bf16", -1.5)
        ),
    ],
    bad_calls=[
        bad(
            "dtype",
            "i32[2]",
            "f32[2]",
            "f32[2]",
            message="predicate has dtype i32; one of bool",
        ),
        bad(
            "dtypes",
            "bool[2]",
            "f32[2]",
            "i32[2]",
            message="branch dtypes differ: f32 vs i32; cast one of them",
        ),
        bad(
            "shapes",
            "bool[]",
            "f32[2]",
            "f32[2]",
            message="operand shapes differ: [] vs [2]; use broadcast_to",
        ),
        bad(
            "shapes",
            "bool[2]",
            "f32[2]",
            "f32[]",
            message="operand shapes differ: [2] vs []; use broadcast_to",
        ),
        bad(
            "arity",
            "bool[2]",
            "f32[2]",
            message="2 operands given; takes predicate, on_true, on_false",
        ),
    ],
)
_row(
    "clamp",
    "low operand high",
    NUMERIC,
    "minimum(maximum(operand, low), high): NaN propagates, and high wins where low > high.",
    [
        sample(
            _f(-1, -1, -1, 2, nan),
            _f(-5, 0.5, nan, 0, 0),
            _f(1, 1, 1, 1, 1),
            gives=_f(-1, 0.5, nan, 1, nan),
        ),
        sample(_f(-0.0, 0.0), _f(0.0, -0.0), _f(1.0, 1.0), gives=_f(0.0, 0.0)),
        sample(_i(-2, -2, 3), _i(-7, 7, 0), _i(5, 5, 1), gives=_i(-2, 5, 1)),
        sample(_u(1, 1), _u(0, ONES), _u(9, 9), gives=_u(1, 9)),
    ],
    decomposition=lambda low, x, high: op("minimum")(op("maximum")(x, low), high),
)

# --- conversions ---

_row(
    "cast",
    "operand",
    ANY,
    "The elements converted to ``dtype``. To integers, floats truncate and saturate and NaN gives "
    "0, while integers wrap; to floats every value is rounded once, half to even; to bool every "
    "value but zero is true, NaN included; true is 1.",
    [
        sample(_f(-1.75, 2.5, nan, inf, -3e9), dtype=I32, gives=_i(-1, 2, 0, HIGH, LOW)),
        sample(_f(-1.75, 2.5, nan, inf, 3e9), dtype=U32, gives=_u(0, 2, 0, ONES, 3000000000)),
        sample(_i(-1, 5, LOW), dtype=U32, gives=_u(ONES, 5, 2**31)),
        sample(_u(ONES, 5), dtype=I32, gives=_i(-1, 5)),
        sample(_i(16777217, 16777219, -3), dtype=F32, gives=_f(16777216.0, 16777220.0, -3.0)),
        sample(_f(-0.0, nan, TINY, -inf), dtype=BOOL, gives=_b(False, True, True, True)),
        sample(_b(True, False), dtype=F32, gives=_f(1.0, 0.0)),
        sample(
            _f(1.00390625, 1.01171875, -0.1, LAST),
            dtype=BF16,
            gives=Array("bf16", [1.0, 1.015625, -0.1001, inf]),
        ),
        sample(_f(2049.0, 65520.0, -1e-8), dtype=F16, gives=Array("f16", [2048.0, inf, -0.0])),
        sample(_i(257, -259), dtype=BF16, gives=Array("bf16", [256.0, -260.0])),
        sample(Array("bf16", [-1.5]), dtype=F16, gives=Array("f16", [-1.5])),
    ],
    rule=_cast,
    attributes=[Attribute("dtype", "element type of the result, a DType")],
    call={"dtype": F32},
    accuracy="rounded",
    also_bad=[
        bad(
            "target",
            "f32[2]",
            dtype="f16",
            message="dtype is 'f16'; one of bool, i32, u32, f16, bf16, f32, as a DType",
        ),
        bad(
            "target",
            "f32[2]",
            dtype=DTYPES["f64"],
            message="dtype is DType(f64); one of bool, i32, u32, f16, bf16, f32, as a DType",
        ),
    ],
)
_row(
    "bitcast",
    "operand",
    ANY - dtypes("bool"),
    "The same bits read as ``dtype``, which has the same width; bool has no bits to share.",
    [
        sample(_f(-0.0, 1.0, inf), dtype=U32, gives=_u(2**31, 0x3F800000, 0x7F800000)),
        sample(_u(ONES, 5), dtype=I32, gives=_i(-1, 5)),
        sample(_i(-(2**31), 0x40200000), dtype=F32, gives=_f(-0.0, 2.5)),
        sample(Array("f16", [1.0]), dtype=BF16, gives=Array("bf16", [0.0078125])),
    ],
    rule=_bitcast,
    attributes=[Attribute("dtype", "element type of the result, a DType")],
    call={"dtype": F32},
    also_bad=[
        bad(
            "target",
            "u32[2]",
            dtype=BOOL,
            message="dtype is DType(bool); one of i32, u32, f16, bf16, f32, as a DType",
        ),
        bad(
            "width",
            "f32[2]",
            dtype=F16,
            message="f32 has 32 bits and f16 has 16; widths must agree",
        ),
        bad(
            "width",
            "bf16[2]",
            dtype=U32,
            message="bf16 has 16 bits and u32 has 32; widths must agree",
        ),
    ],
)
