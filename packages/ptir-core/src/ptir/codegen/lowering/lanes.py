"""No wide values: those of one lane, as ``Language.scalar`` has them written, become scalars."""

from __future__ import annotations

from ptir.codegen.expressions.expr import Expr, Var
from ptir.codegen.kernel_ir.values import Gather, Lane, Read, ReduceLanes, Splat
from ptir.codegen.lowering.rewriting import Body, Rewriter, Seen
from ptir.errors import UnsupportedError


class Lanes(Rewriter):
    """Makes scalars of values that are one lane wide."""

    @classmethod
    def remaining(cls, body: Body) -> list[str]:
        """Values that are wide."""
        seen = Seen(body).expressions
        wide = (x for x in seen if x.wide or isinstance(x, Lane | ReduceLanes))
        return sorted({f"a {type(x).__name__} per lane" for x in wide})

    def visit_var(self, one: Var) -> Expr:
        """A scalar variable."""
        return Var(one.dtype, one.name)

    def visit_read(self, one: Read) -> Expr:
        """An element."""
        base = None if one.base is None else self.index(one.base)
        return Read(one.dtype, one.memory, self.index(one.index), base=base)

    def visit_gather(self, one: Gather) -> Expr:
        """The only scalar."""
        if len(one.parts) != 1:
            raise UnsupportedError(
                f"a value of {len(one.parts)} lanes: the language has scalars only; write the"
                " kernel for a dialect of one lane (Language.scalar)"
            )
        return self.expr(one.parts[0])

    def visit_splat(self, one: Splat | Lane | ReduceLanes) -> Expr:
        """The scalar itself, or the variable."""
        return self.expr(one.of)

    visit_lane = visit_reducelanes = visit_splat
