"""No promises about NaN and signed zeros: what kernels ask of them is asked of their bits.

A language may take for granted that no value is NaN and that zeros have no sign. Kernels ask for
NaN by comparing a value with itself, and lose a zero's sign by adding zero.
"""

from __future__ import annotations

from ptir.codegen.expressions.expr import Apply, Const, Expr
from ptir.codegen.lowering.algebra import bits, choose, test
from ptir.codegen.lowering.rewriting import Body, Rewriter, Seen
from ptir.types import F32, U32

SIZE = 0x7FFFFFFF
INFINITY = 0x7F800000


class Numbers(Rewriter):
    """Asks about bits where NaN and zeros of both signs matter."""

    @classmethod
    def remaining(cls, body: Body) -> list[str]:
        """Comparisons of a value with itself, and additions of zero."""
        ops = (x for x in Seen(body).expressions if isinstance(x, Apply))
        found = (x for x in ops if _asks(x) or _clears(x))
        return sorted({f"{x.op} that asks for NaN or zeros" for x in found})

    def visit_apply(self, one: Apply) -> Expr:
        """A scalar op; comparisons with itself and additions of zero by the operand's bits."""
        args = tuple(map(self.expr, one.args))
        if _asks(one):
            size = bits(U32, self.let(args[0])) & SIZE
            return test("le" if one.op == "eq" else "gt", size, INFINITY)
        if _clears(one):
            value = self.let(next(arg for arg in args if not _is_zero(arg)))
            return choose(test("eq", bits(U32, value) & SIZE, 0), Const(F32, 0.0), value)
        return Apply(one.dtype, one.op, *args)


def _asks(one: Apply) -> bool:
    """Whether a value is compared with itself."""
    return one.op in ("eq", "ne") and one.args[0] == one.args[1] and one.args[0].dtype == F32


def _clears(one: Apply) -> bool:
    """Whether zero is added to a value."""
    zeros = [_is_zero(arg) for arg in one.args]
    return one.op == "add" and one.dtype == F32 and any(zeros) and not all(zeros)


def _is_zero(expr: Expr) -> bool:
    return expr == Const(F32, 0.0)
