"""What Python's operators mean on graph values: a table, and the functions that are no op."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from ptir.capture.lazy import apply
from ptir.capture.operands import broadcast, converted, full, reshaped
from ptir.capture.promote import broadcast_shapes, promote
from ptir.errors import TypeRuleError
from ptir.ir.graph import Ref
from ptir.types import F32

Binary = Callable[[Ref, Ref], Ref]
"""An operator on two values of one element type and shape."""


def divide(a: Ref, b: Ref) -> Ref:
    """True division: integers are divided as f32."""
    if not a.type.dtype.is_float:
        a, b = converted(a, F32), converted(b, F32)
    return apply("div", a, b)


def remainder(a: Ref, b: Ref) -> Ref:
    """Python's ``%``: the result has the divisor's sign, a zero of floats too."""
    rest = apply("rem", a, b)
    result = apply("select", _misses(rest, b), apply("add", rest, b), rest)
    if not rest.type.dtype.is_float:
        return result
    zero = _number(0, rest)
    some = apply("compare", rest, zero, direction="ne")
    return apply("select", some, result, apply("mul", apply("sign", b), zero))


def floor_divide(a: Ref, b: Ref) -> Ref:
    """Python's ``//``; integers by zero give all ones, as the op ``div`` does."""
    quotient = apply("div", a, b)
    if a.type.dtype.is_float:
        return apply("floor", quotient)
    if a.type.dtype.kind == "uint":
        return quotient
    zero, one = _number(0, a), _number(1, a)
    divided = apply("compare", b, zero, direction="ne")
    below = apply("and", _misses(apply("rem", a, b), b), divided)
    return apply("select", below, apply("sub", quotient, one), quotient)


def _misses(rest: Ref, b: Ref) -> Ref:
    """Where a truncating remainder has not the divisor's sign, so that Python's differs."""
    zero = _number(0, rest)
    negative = apply("compare", rest, zero, direction="lt")
    differs = apply("xor", negative, apply("compare", b, zero, direction="lt"))
    return apply("and", apply("compare", rest, zero, direction="ne"), differs)


def _number(value: int, like: Ref) -> Ref:
    return full(value, like.type.dtype, like.type.shape)


def _op(name: str, **attributes: Any) -> Binary:
    return lambda a, b: apply(name, a, b, **attributes)


OPERATORS: Final[Mapping[str, Binary]] = {
    "+": _op("add"),
    "-": _op("sub"),
    "*": _op("mul"),
    "/": divide,
    "//": floor_divide,
    "%": remainder,
    "**": _op("pow"),
    "&": _op("and"),
    "|": _op("or"),
    "^": _op("xor"),
    "<<": _op("shift_left"),
    ">>": _op("shift_right"),
    "<": _op("compare", direction="lt"),
    "<=": _op("compare", direction="le"),
    ">": _op("compare", direction="gt"),
    ">=": _op("compare", direction="ge"),
    "==": _op("compare", direction="eq"),
    "!=": _op("compare", direction="ne"),
}
"""By symbol, all but ``@``, whose operands need not be alike."""


def matmul(a: Ref, b: Ref) -> Ref:
    """NumPy's ``a @ b``: the last axis of ``a`` against the second last of ``b``, batched."""
    ranks = a.type.rank, b.type.rank
    if 0 in ranks:
        raise TypeRuleError(f"matmul({a.type}, {b.type}): operands need at least one axis")
    if 1 not in ranks:
        return _product(a, b)
    left = reshaped(a, (1, *a.type.shape)) if ranks[0] == 1 else a
    right = reshaped(b, (*b.type.shape, 1)) if ranks[1] == 1 else b
    product = _product(left, right)
    rows = () if ranks[0] == 1 else (product.type.shape[-2],)
    columns = () if ranks[1] == 1 else (product.type.shape[-1],)
    return reshaped(product, (*product.type.shape[:-2], *rows, *columns))


def _product(a: Ref, b: Ref) -> Ref:
    """The batched product of operands with two axes or more."""
    common = promote(a.type.dtype, b.type.dtype)
    a, b = converted(a, common), converted(b, common)
    if b.type.rank == 2:
        contract = {"lhs_contract": (a.type.rank - 1,), "rhs_contract": (0,)}
        return apply("dot_general", a, b, **contract)
    batch = broadcast_shapes([a.type.shape[:-2], b.type.shape[:-2]])
    a, b = (broadcast(x, (*batch, *x.type.shape[-2:])) for x in (a, b))
    rank = len(batch)
    contract = {"lhs_contract": (rank + 1,), "rhs_contract": (rank,)}
    pairs = {"lhs_batch": tuple(range(rank)), "rhs_batch": tuple(range(rank))}
    return apply("dot_general", a, b, **contract, **pairs)
