"""Short forms for expressions of words: what the passes write their arithmetic with."""

from __future__ import annotations

from collections.abc import Iterator

from ptir.codegen.expressions.expr import Apply, Const, Coordinate, Expr
from ptir.codegen.expressions.index import Index
from ptir.codegen.lowering.rewriting import Body, Seen
from ptir.types import BOOL, I32, U32, DType


def word(value: int) -> Const:
    """A literal u32."""
    return Const(U32, value & 0xFFFFFFFF)


def op(name: str, *args: Expr) -> Expr:
    """A scalar op whose result is of its operands' type."""
    return Apply(args[-1].dtype, name, *args)


def test(name: str, a: Expr, b: Expr) -> Expr:
    """A comparison."""
    return Apply(BOOL, name, a, b)


def choose(mask: Expr, on_true: Expr, on_false: Expr) -> Expr:
    """``on_true`` where the mask holds, else ``on_false``."""
    return Apply(on_true.dtype, "select", mask, on_true, on_false)


def bits(dtype: DType, value: Expr) -> Expr:
    """The same bits as another type."""
    if value.dtype == dtype:
        return value
    if isinstance(value, Const) and {value.dtype, dtype} == {I32, U32}:
        low = int(value.value) & 0xFFFFFFFF
        return Const(dtype, low - (1 << 32) if dtype == I32 and low >> 31 else low)
    return Apply(dtype, "bits", value)


def left(value: Expr, amount: int | Expr) -> Expr:
    """A word moved to the left."""
    return op("shift_left", value, _amount(value, amount))


def right(value: Expr, amount: int | Expr) -> Expr:
    """A word moved to the right; one with a sign keeps it."""
    return op("shift_right", value, _amount(value, amount))


def _amount(value: Expr, amount: int | Expr) -> Expr:
    return Const(value.dtype, amount) if isinstance(amount, int) else bits(value.dtype, amount)


def places(index: Index) -> Expr:
    """An index that is never negative as a u32."""
    return word(index.constant) if index.is_constant else Coordinate(U32, index)


def typed(body: Body) -> Iterator[tuple[DType, str]]:
    """Every element type in a kernel, and where: of arguments, of statements, of expressions."""
    for argument in body.arguments:
        yield argument.dtype, f"argument {argument.name}"
    seen = Seen(body)
    for expr in seen.expressions:
        yield expr.dtype, f"a {type(expr).__name__}"
    for statement in seen.statements:
        dtype = getattr(statement, "dtype", None)
        if dtype is not None:
            yield dtype, f"a {type(statement).__name__}"


def found(body: Body, *dtypes: DType) -> list[str]:
    """Where any of these types still stand."""
    return sorted({f"{dtype} in {where}" for dtype, where in typed(body) if dtype in dtypes})
