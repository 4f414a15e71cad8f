"""The table of rules. A row: name, left, right, samples, condition (``when``), computed parts.

Rows of ``EXACT`` hold bit for bit for every float, quiet NaN, infinities, both zeros and
subnormals included. Rows of ``FAST_MATH`` do not; nothing uses them unless it is asked to.
"""

from __future__ import annotations

import math
from typing import Any, Final

from ptir.rewrite.constants import fits
from ptir.rewrite.pattern import Binding
from ptir.rewrite.rule import AnyRule, Condition, row, type_of
from ptir.rewrite.structural import STRUCTURAL
from ptir.types import BF16, BOOL, F16, F32, F64, I32, U32

_I, _U, _F, _B = ({"x": f"{d}[256]"} for d in ("i32", "u32", "f32", "bool"))
_FF, _II, _BB = ({"x": f"{d}[256]", "y": f"{d}[256]"} for d in ("f32", "i32", "bool"))
_CFF, _CII = ({"c": "bool[256]", **pair} for pair in (_FF, _II))

# --- conditions and computed parts: functions of what the holes hold ---


def _kinds(*kinds: str) -> Condition:
    """The value in hole x is of one of these kinds."""
    return lambda b: type_of(b, "x").dtype.kind in kinds


_INTEGER = _kinds("int", "uint")
_BOOL = _kinds("bool")
_DISCRETE = _kinds("int", "uint", "bool")


def _shape(b: Binding) -> tuple[int, ...]:
    return type_of(b, "x").shape


_NORMAL: Final = {"f16": 14, "bf16": 126, "f32": 126, "f64": 1022}
"""Exponents k for which both 2**k and 2**-k are normal numbers."""


def _power_of_two(b: Binding) -> bool:
    """Dividing by c is multiplying by 1/c: both are powers of two that x's dtype has as normals."""
    c, x = b["c"], type_of(b, "x")
    if not fits(c, x) or not isinstance(c, float) or not math.isfinite(c):
        return False
    fraction, exponent = math.frexp(c)
    return abs(fraction) == 0.5 and abs(exponent - 1) <= _NORMAL[x.dtype.name]


def _through(b: Binding) -> bool:
    """The cast in the middle loses nothing, and changes no wrapping into saturating."""
    start, middle, end = type_of(b, "x").dtype, b["m"], b["d"]
    saturates = start.is_integer and middle.is_float and end.is_integer
    return middle.holds(start) and (not saturates or end.holds(start))


def _casts_back(b: Binding) -> bool:
    """The way back undoes the way there: nothing was lost, or integers wrapped both ways."""
    start, middle = type_of(b, "x").dtype, b["m"]
    wraps = start.is_integer and middle.is_integer and middle.bits >= start.bits
    return bool(b["d"] == start and (middle.holds(start) or wraps))


def _rounded_pow(b: Binding) -> bool:
    """Only a pow that is computed wider gives the rounded square; f64 has nothing wider."""
    return type_of(b, "x").dtype != F64


def _composed(b: Binding) -> tuple[int, ...]:
    return tuple(b["p"][axis] for axis in b["q"])


def _moves_only_ones(b: Binding) -> bool:
    order = [axis for axis in b["p"] if _shape(b)[axis] != 1]
    return order == sorted(order)


def _permuted(b: Binding) -> tuple[int, ...]:
    return tuple(_shape(b)[axis] for axis in b["p"])


def _whole(b: Binding) -> bool:
    ones = b["t"] is None or all(step == 1 for step in b["t"])
    return ones and b["l"] == _shape(b) and not any(b["s"])


def _steps(strides: Any, rank: int) -> tuple[int, ...]:
    return (1,) * rank if strides is None else tuple(strides)


def _slices(b: Binding) -> tuple[list[range], tuple[int, ...]]:
    """Which elements of each axis two slices one after the other keep, and the joint steps."""
    rank = type_of(b, "x").rank
    outer, inner = _steps(b["t"], rank), _steps(b["v"], rank)
    first = map(range, b["s"], b["l"], outer)
    kept = [r[a:z:step] for r, a, z, step in zip(first, b["u"], b["w"], inner, strict=True)]
    return kept, tuple(a * z for a, z in zip(outer, inner, strict=True))


def _sliced_starts(b: Binding) -> tuple[int, ...]:
    return tuple(kept.start if kept else 0 for kept in _slices(b)[0])


def _sliced_limits(b: Binding) -> tuple[int, ...]:
    return tuple(kept[-1] + 1 if kept else 0 for kept in _slices(b)[0])


def _sliced_steps(b: Binding) -> tuple[int, ...]:
    return _slices(b)[1]


def _nothing_padded(b: Binding) -> bool:
    return not any(b["low"]) and not any(b["high"]) and not any(b["gaps"] or ())


_INVERSE: Final = {"eq": "ne", "ne": "eq", "lt": "ge", "ge": "lt", "gt": "le", "le": "gt"}


def _invertible(b: Binding) -> bool:
    """NaN makes every ordering false, so ``not lt`` is not ``ge`` of floats."""
    return b["d"] in ("eq", "ne") or _DISCRETE(b)


def _no_float_sum(b: Binding) -> bool:
    """A float sum starts from +0, which turns -0 into +0."""
    return b["k"] != "sum" or _INTEGER(b)


# --- the table ---

_ARITHMETIC: Final = (
    row("add 0", "add(x, 0)", "x", _I, _U),
    row("add -0.0", "add(x, -0.0)", "x", _F),
    row("sub 0", "sub(x, 0)", "x", _I, _U),
    row("sub 0.0", "sub(x, 0.0)", "x", _F),
    row("mul 1", "mul(x, 1)", "x", _I, _U),
    row("mul 1.0", "mul(x, 1.0)", "x", _F),
    row("mul 0", "mul(x, 0)", "0", _I, _U),
    row("div 1", "div(x, 1)", "x", _I, _U),
    row("div 1.0", "div(x, 1.0)", "x", _F),
    row(
        "div by a power of two",
        "div(x, uniform(c))",
        "mul(x, uniform(r))",
        {**_F, "c": 4.0},
        {**_F, "c": -0.5},
        {**_F, "c": 2.0**126},
        {**_F, "c": 2.0**-126},
        when=_power_of_two,
        compute={"r": lambda b: 1.0 / b["c"]},
    ),
    row("rem 1", "rem(x, 1)", "0", _I, _U),
    row("pow 1", "pow(x, 1)", "x", _I, _U),
    row("pow 1.0", "pow(x, 1.0)", "x", _F),
    row("pow 0", "pow(x, 0)", "1", _I, _U),
    row("pow 0.0", "pow(x, 0.0)", "1.0", _F),
    row("pow 2.0", "pow(x, 2.0)", "mul(x, x)", _F, when=_rounded_pow),
    row("neg neg", "neg(neg(x))", "x", _F, _I, _U),
    row("abs neg", "abs(neg(x))", "abs(x)", _F, _I, when=_kinds("int", "float")),
    row("abs abs", "abs(abs(x))", "abs(x)", _F, _I),
    row("sub itself", "sub(x, x)", "0", _I, _U, when=_INTEGER),
    row("add neg", "add(x, neg(y))", "sub(x, y)", _II, when=_INTEGER),
    row("sub neg", "sub(x, neg(y))", "add(x, y)", _II, when=_INTEGER),
    row("minimum itself", "minimum(x, x)", "x", _F, _I, _U),
    row("maximum itself", "maximum(x, x)", "x", _F, _I, _U),
    row("floor floor", "floor(floor(x))", "floor(x)", _F),
    row("ceil ceil", "ceil(ceil(x))", "ceil(x)", _F),
    row("round round", "round(round(x))", "round(x)", _F),
    row("stop_gradient", "stop_gradient(x)", "x", _F, _B),
)

_BITWISE: Final = (
    row("not not", "not_(not_(x))", "x", _B, _I, _U),
    row("and itself", "and_(x, x)", "x", _B, _I, _U),
    row("or itself", "or_(x, x)", "x", _B, _I, _U),
    row("xor itself", "xor(x, x)", "0", _I, _U, when=_INTEGER),
    row("xor itself, bool", "xor(x, x)", "False", _B, when=_BOOL),
    row("and 0", "and_(x, 0)", "0", _I, _U),
    row("and False", "and_(x, False)", "False", _B),
    row("and True", "and_(x, True)", "x", _B),
    row("or 0", "or_(x, 0)", "x", _I, _U),
    row("or False", "or_(x, False)", "x", _B),
    row("or True", "or_(x, True)", "True", _B),
    row("xor 0", "xor(x, 0)", "x", _I, _U),
    row("xor False", "xor(x, False)", "x", _B),
    row("shift_left 0", "shift_left(x, 0)", "x", _I, _U),
    row("shift_right 0", "shift_right(x, 0)", "x", _I, _U),
)

_CHOICE: Final = (
    row(
        "compare itself, holds",
        "compare(x, x, direction=d)",
        "True",
        *({**_I, "d": d} for d in ("eq", "le", "ge")),
        {**_B, "d": "eq"},
        when=lambda b: _DISCRETE(b) and b["d"] in ("eq", "le", "ge"),
    ),
    row(
        "compare itself, fails",
        "compare(x, x, direction=d)",
        "False",
        *({**_I, "d": d} for d in ("ne", "lt", "gt")),
        {**_U, "d": "ne"},
        when=lambda b: _DISCRETE(b) and b["d"] in ("ne", "lt", "gt"),
    ),
    row(
        "not compare",
        "not_(compare(x, y, direction=d))",
        "compare(x, y, direction=e)",
        *({**_II, "d": d} for d in _INVERSE),
        {**_FF, "d": "eq"},
        {**_FF, "d": "ne"},
        when=_invertible,
        compute={"e": lambda b: _INVERSE[b["d"]]},
    ),
    row("select True", "select(True, x, y)", "x", _FF, _II),
    row("select False", "select(False, x, y)", "y", _FF, _II),
    row("select equal", "select(c, x, x)", "x", {"c": "bool[256]", **_F}),
    row("select not", "select(not_(c), x, y)", "select(c, y, x)", _CFF, _CII),
    row("select True False", "select(c, True, False)", "c", {"c": "bool[256]"}),
    row("select False True", "select(c, False, True)", "not_(c)", {"c": "bool[256]"}),
)

_CASTS: Final = (
    row(
        "cast to itself",
        "cast(x, dtype=d)",
        "x",
        {**_F, "d": F32},
        {"x": "bf16[256]", "d": BF16},
        when=lambda b: bool(b["d"] == type_of(b, "x").dtype),
    ),
    row(
        "cast and back",
        "cast(cast(x, dtype=m), dtype=d)",
        "x",
        {"x": "bf16[256]", "m": F32, "d": BF16},
        {"x": "f16[256]", "m": F32, "d": F16},
        {**_B, "m": I32, "d": BOOL},
        {**_I, "m": U32, "d": I32},
        when=_casts_back,
    ),
    row(
        "cast through a wider type",
        "cast(cast(x, dtype=m), dtype=d)",
        "cast(x, dtype=d)",
        {"x": "bf16[256]", "m": F32, "d": I32},
        {"x": "f16[256]", "m": F32, "d": BF16},
        {"x": "f16[256]", "m": F32, "d": BOOL},
        {**_B, "m": F32, "d": U32},
        when=_through,
    ),
    row(
        "bitcast to itself",
        "bitcast(x, dtype=d)",
        "x",
        {**_F, "d": F32},
        when=lambda b: bool(b["d"] == type_of(b, "x").dtype),
    ),
    row(
        "bitcast bitcast",
        "bitcast(bitcast(x, dtype=m), dtype=d)",
        "bitcast(x, dtype=d)",
        {**_F, "m": I32, "d": U32},
        {"x": "f16[256]", "m": BF16, "d": F16},
    ),
)

_X, _X3, _X4 = {"x": "f32[2,3]"}, {"x": "f32[2,3,4]"}, {"x": "f32[2,1,3,4]"}

_MOVEMENT: Final = (
    row(
        "reshape to itself",
        "reshape(x, shape=s)",
        "x",
        {**_X, "s": (2, 3)},
        when=lambda b: bool(b["s"] == _shape(b)),
    ),
    row(
        "reshape reshape",
        "reshape(reshape(x, shape=s), shape=t)",
        "reshape(x, shape=t)",
        {**_X, "s": (6,), "t": (3, 2)},
    ),
    row(
        "transpose by nothing",
        "transpose(x, permutation=p)",
        "x",
        {**_X3, "p": (0, 1, 2)},
        when=lambda b: bool(b["p"] == tuple(range(type_of(b, "x").rank))),
    ),
    row(
        "transpose transpose",
        "transpose(transpose(x, permutation=p), permutation=q)",
        "transpose(x, permutation=r)",
        {**_X3, "p": (1, 2, 0), "q": (0, 2, 1)},
        {**_X3, "p": (1, 2, 0), "q": (1, 2, 0)},
        {**_X3, "p": (1, 2, 0), "q": (2, 0, 1)},
        compute={"r": _composed},
    ),
    row(
        "transpose of axes of one",
        "transpose(x, permutation=p)",
        "reshape(x, shape=s)",
        {**_X4, "p": (1, 0, 2, 3)},
        {**_X4, "p": (0, 2, 3, 1)},
        when=_moves_only_ones,
        compute={"s": _permuted},
    ),
    row(
        "broadcast to itself",
        "broadcast_to(x, shape=s)",
        "x",
        {**_X, "s": (2, 3)},
        when=lambda b: bool(b["s"] == _shape(b)),
    ),
    row(
        "broadcast broadcast",
        "broadcast_to(broadcast_to(x, shape=s), shape=t)",
        "broadcast_to(x, shape=t)",
        {"x": "f32[3,1]", "s": (3, 2), "t": (4, 3, 2)},
    ),
    row(
        "slice of everything",
        "slice(x, starts=s, limits=l, strides=t)",
        "x",
        {**_X, "s": (0, 0), "l": (2, 3), "t": None},
        {**_X, "s": (0, 0), "l": (2, 3), "t": (1, 1)},
        when=_whole,
    ),
    row(
        "slice slice",
        "slice(slice(x, starts=s, limits=l, strides=t), starts=u, limits=w, strides=v)",
        "slice(x, starts=a, limits=z, strides=step)",
        {"x": "f32[20]", "s": (3,), "l": (18,), "t": (2,), "u": (1,), "w": (7,), "v": (3,)},
        {"x": "f32[9]", "s": (2,), "l": (8,), "t": None, "u": (1,), "w": (4,), "v": None},
        {"x": "f32[9]", "s": (2,), "l": (8,), "t": None, "u": (3,), "w": (3,), "v": None},
        compute={"a": _sliced_starts, "z": _sliced_limits, "step": _sliced_steps},
    ),
    row(
        "reverse nothing",
        "reverse(x, axes=a)",
        "x",
        {**_X, "a": ()},
        when=lambda b: not b["a"],
    ),
    row("reverse reverse", "reverse(reverse(x, axes=a), axes=a)", "x", {**_X3, "a": (2, 0)}),
    row("concat of one", "concat(x, axis=a)", "x", {**_X, "a": 1}),
    row(
        "pad by nothing",
        "pad(x, y, low=low, high=high, interior=gaps)",
        "x",
        {**_X, "y": "f32[]", "low": (0, 0), "high": (0, 0), "gaps": None},
        {**_X, "y": "f32[]", "low": (0, 0), "high": (0, 0), "gaps": (0, 0)},
        when=_nothing_padded,
    ),
    row(
        "tile once",
        "tile(x, repeats=r)",
        "x",
        {**_X, "r": (1, 1)},
        when=lambda b: all(times == 1 for times in b["r"]),
    ),
    row(
        "reduce no axes",
        "reduce(x, axes=(), kind=k)",
        "x",
        *({**_F, "k": k} for k in ("prod", "max", "min")),
        {**_I, "k": "sum"},
        {**_B, "k": "any"},
        when=_no_float_sum,
    ),
    row(
        "reshape uniform",
        "reshape(uniform(c), shape=s)",
        "uniform(c)",
        {"like": "f32[2,3]", "c": -0.0, "s": (6,)},
    ),
    row(
        "transpose uniform",
        "transpose(uniform(c), permutation=p)",
        "uniform(c)",
        {"like": "i32[2,3]", "c": 7, "p": (1, 0)},
    ),
    row(
        "slice uniform",
        "slice(uniform(c), starts=s, limits=l)",
        "uniform(c)",
        {"like": "f32[4,3]", "c": 0.5, "s": (1, 0), "l": (3, 3)},
    ),
)

EXACT: Final[tuple[AnyRule, ...]] = (
    *_ARITHMETIC,
    *_BITWISE,
    *_CHOICE,
    *_CASTS,
    *_MOVEMENT,
    *STRUCTURAL,
)

FAST_MATH: Final[tuple[AnyRule, ...]] = (
    row("mul 0.0", "mul(x, 0.0)", "0.0", _F, exact=False),
    row("add 0.0", "add(x, 0.0)", "x", _F, exact=False),
    row("sub itself, float", "sub(x, x)", "0.0", _F, exact=False, when=_kinds("float")),
    row("div itself, float", "div(x, x)", "1.0", _F, exact=False, when=_kinds("float")),
    row("log exp", "log(exp(x))", "x", _F, exact=False),
)


def rules(*, fast_math: bool = False) -> tuple[AnyRule, ...]:
    """The rules in force: the exact ones, and the inexact ones only where asked for."""
    return EXACT + FAST_MATH if fast_math else EXACT
