"""Short forms for expressions of words: what the passes write their arithmetic with.

They decide nothing, as ``expr.compare`` and ``expr.select`` do.
"""

from __future__ import annotations

from ptir.codegen.expressions.expr import Apply, Const, Coordinate, Expr, constant
from ptir.codegen.expressions.index import Index
from ptir.types import BOOL, I32, U32, DType


def word(value: int) -> Const:
    """A literal u32."""
    return Const(U32, value & 0xFFFFFFFF)


def op(name: str, *args: Expr) -> Expr:
    """A scalar op whose result is of its operands' type."""
    return Apply(args[-1].dtype, name, *args)


def test(name: str, a: Expr, b: Expr | float) -> Expr:
    """A comparison."""
    return Apply(BOOL, name, a, b if isinstance(b, Expr) else constant(a.dtype, b))


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


def places(index: Index) -> Expr:
    """An index that is never negative as a u32."""
    return word(index.constant) if index.is_constant else Coordinate(U32, index)
