"""No masks: a comparison gives a truth value, which is no number and does not lie in memory.

In memory a bool is a byte, 0 or 1. Where the bits of a mask are asked for, 0 and all ones are
chosen.
"""

from __future__ import annotations

from typing import Final

from ptir.codegen.expressions.expr import Apply, Const, Expr
from ptir.codegen.kernel_ir import nodes
from ptir.codegen.kernel_ir.values import Read
from ptir.codegen.lowering.algebra import choose, test
from ptir.codegen.lowering.rewriting import Body, Rewriter, Seen
from ptir.types import BOOL, I32, U8, DType

ORDERED: Final = frozenset(("lt", "le", "gt", "ge"))
"""Relations that masks have as the numbers they are."""
NUMBERS: Final = frozenset(("bits", "convert"))


class Masks(Rewriter):
    """Makes bytes in memory of truth values."""

    @classmethod
    def remaining(cls, body: Body) -> list[str]:
        """Masks in memory, and masks that are taken for numbers."""
        seen = Seen(body)
        found = [f"argument {a.name} of masks" for a in body.arguments if a.dtype == BOOL]
        names = {argument.name for argument in body.arguments}
        uses = (*seen.statements, *seen.expressions)
        kept = {x.memory for x in uses if isinstance(x, nodes.Store | Read) and x.dtype == BOOL}
        found += [f"a mask in {memory}" for memory in kept & names]
        for x in seen.expressions:
            if isinstance(x, Apply) and x.op in (ORDERED | NUMBERS):
                found += [f"{x.op} of a mask"] * (BOOL in (x.args[0].dtype, x.dtype) and _counts(x))
        return sorted(set(found))

    def memory(self, dtype: DType) -> DType:
        """A byte."""
        return U8 if dtype == BOOL else dtype

    def visit_read(self, one: Read) -> Expr:
        """Whether the byte is set."""
        found = super().visit_read(one)
        return test("ne", found, 0) if found.dtype != one.dtype else found

    def visit_store(self, one: nodes.Store) -> None:
        """A byte; arrays of a kernel hold truth values."""
        if one.dtype == BOOL and one.memory in self.arguments:
            byte = choose(self.expr(one.value), Const(U8, 1), Const(U8, 0))
            self.emit(nodes.Store(U8, one.memory, self.index(one.at), byte))
        else:
            self.anew(one)

    def visit_apply(self, one: Apply) -> Expr:
        """What takes masks for numbers takes numbers."""
        args = list(map(self.expr, one.args))
        of = args[0].dtype
        if of == BOOL and one.op in ORDERED:
            args = [_number(I32, arg) for arg in args]
        if of == BOOL and one.op in NUMBERS and one.dtype != BOOL:
            return _number(one.dtype, args[0])
        if one.dtype == BOOL and one.op in NUMBERS:
            return test("ne", args[0], 0) if of != BOOL else args[0]
        return Apply(one.dtype, one.op, *args)


def _number(dtype: DType, mask: Expr) -> Expr:
    """The number that the bits of a mask are."""
    ones = (1 << dtype.bits) - 1 if dtype.kind == "uint" else -1
    return choose(mask, Const(dtype, ones), Const(dtype, 0))


def _counts(x: Apply) -> bool:
    """Whether an op takes a mask for a number, or makes one of a number."""
    return x.args[0].dtype == BOOL or x.op in NUMBERS
