"""Which types go together: of the operands and the result of a scalar op, and of a variable.

What comes in: an expression whose operands are typed. What goes out: sentences on what is wrong.
``TYPED`` has a row for each op whose operands are not all of the type of its result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from ptir.backend.clike.names import RELATIONS
from ptir.codegen.expressions.expr import Apply, Expr, Var, carrier, is_alike
from ptir.types import BOOL, F32, I32, U32, DType

Types = Sequence[DType]


def _alike(result: DType, given: Types) -> bool:
    """Operands and result of one type."""
    return all(one == result for one in given)


TYPED: Final[Mapping[str, Callable[[DType, Types], bool]]] = {
    **dict.fromkeys(RELATIONS, lambda result, given: result == BOOL and _alike(given[0], given)),
    "select": lambda result, given: given[0] == BOOL and _alike(result, given[1:]),
    "convert": lambda result, given: True,
    "bits": lambda result, given: (
        carrier(result).bits == carrier(given[0]).bits or result.bits == given[0].bits
    ),
    "narrow": lambda result, given: carrier(result) == carrier(given[0]) == F32,
    "nearest": lambda result, given: result == I32 and given[0] == F32,
    **dict.fromkeys(
        ("dot_bytes", "dot_signed_bytes"),
        lambda result, given: [result, *given] == [I32, I32, U32, U32],
    ),
    "dot_bf16": lambda result, given: [result, *given] == [F32, F32, U32, U32],
}
"""By op: whether it may have operands of these types. Of all others they are of one type."""

DOTS: Final = ("dot_bytes", "dot_signed_bytes", "dot_bf16")
PERMUTES: Final = ("permute_bytes", "select_bytes", "bit_fields", "negate_bytes", "table_words")
"""Ops of wide u32 alone."""
OPERANDS: Final = {
    **dict.fromkeys(("select", "fma", *DOTS, "permute_bytes", "select_bytes", "negate_bytes"), 3),
    "table_bytes": 5,
    "table_words": 17,
}
UNARY: Final = frozenset(
    (
        *("neg", "abs", "not", "exp", "expm1", "log", "log1p", "sqrt", "rsqrt", "sin", "cos"),
        *("tanh", "erf", "floor", "ceil", "round", "convert", "bits", "narrow", "nearest"),
    )
)
MIXED: Final = frozenset(DOTS)
"""Ops that take a scalar beside wide operands."""


def mistyped(expr: Apply) -> Iterator[str]:
    """What is wrong with the operands of a scalar op."""
    wanted = OPERANDS.get(expr.op, 1 if expr.op in UNARY else 2)
    given = [one.dtype for one in expr.args]
    text = f"{expr.op}({', '.join(map(shown, expr.args))}) -> {shown(expr)}"
    if len(given) != wanted:
        yield f"{text}: {wanted} operands are expected"
    elif not TYPED.get(expr.op, _alike)(expr.dtype, given):
        yield f"{text}: these types do not go together"
    if expr.op in PERMUTES and not (expr.wide and expr.dtype == U32):
        yield f"{text}: wide u32 are expected"
    if expr.wide and expr.op not in MIXED and not all(one.wide for one in expr.args):
        yield f"{text}: scalars and wide values in one op; a scalar needs a splat"


def fits(variable: Var, value: Expr) -> bool:
    """Whether a variable can hold a value: of one carrier, and as wide."""
    return is_alike(variable.dtype, value.dtype) and variable.wide == value.wide


def shown(expr: Expr) -> str:
    """The type of a value, for people."""
    return f"{expr.dtype}{' per lane' if expr.wide else ''}"
