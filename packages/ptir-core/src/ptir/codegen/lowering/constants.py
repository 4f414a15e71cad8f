"""No overflow in constant expressions: ops of integer literals are computed here, and wrap.

A language that computes constants itself may refuse those whose result does not fit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ptir.codegen.expressions.expr import Apply, Const, Expr
from ptir.codegen.lowering.algebra import bits, word
from ptir.codegen.lowering.rewriting import Body, Rewriter, Seen
from ptir.types import I32, U32

WRAPPING: Final[dict[str, Callable[..., int]]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "fma": lambda a, b, c: a * b + c,
    "neg": lambda a: -a,
    "not": lambda a: ~a,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "shift_left": lambda a, b: a << (b & 31),
    "shift_right": lambda a, b: a >> (b & 31),
}
"""What each op is of whole numbers."""


class Constants(Rewriter):
    """Folds ops of literals into literals."""

    @classmethod
    def remaining(cls, body: Body) -> list[str]:
        """Ops whose operands are all literals."""
        ops = (x for x in Seen(body).expressions if isinstance(x, Apply) and _folds(x))
        return sorted({x.op for x in ops if all(isinstance(arg, Const) for arg in x.args)})

    def visit_apply(self, one: Apply) -> Expr:
        """A literal where all operands are."""
        args = tuple(map(self.expr, one.args))
        literals = [arg for arg in args if isinstance(arg, Const)]
        if len(literals) < len(args) or not _folds(one):
            return Apply(one.dtype, one.op, *args)
        return bits(one.dtype, word(WRAPPING[one.op](*(int(arg.value) for arg in literals))))


def _folds(one: Apply) -> bool:
    return one.op in WRAPPING and one.dtype in (I32, U32)
