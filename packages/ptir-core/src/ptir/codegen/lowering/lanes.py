"""No wide values: those of one lane, as ``Dialect.scalar`` has them written, become scalars."""

from __future__ import annotations

from ptir.codegen.expressions.expr import Expr, Var
from ptir.codegen.kernel_ir.values import Gather, Lane, Read, ReduceLanes, Splat
from ptir.codegen.lowering.rewriting import Body, Rewriter, Seen
from ptir.errors import UnsupportedError


class Lanes(Rewriter):
    """Makes scalars of values that are one lane wide."""

    def variable(self, one: Var) -> Var:
        """A scalar variable."""
        return Var(one.dtype, one.name)

    def read(self, one: Read) -> Expr:
        """An element."""
        base = None if one.base is None else self.index(one.base)
        return Read(one.dtype, one.memory, self.index(one.index), base=base)

    def splat(self, one: Splat) -> Expr:
        """The scalar itself."""
        return self.expr(one.of)

    def gather(self, one: Gather) -> Expr:
        """The only scalar."""
        if len(one.parts) != 1:
            raise UnsupportedError(
                f"a value of {len(one.parts)} lanes: the language has scalars only; write the"
                " kernel for a dialect of one lane (Dialect.single)"
            )
        return self.expr(one.parts[0])

    def lane(self, one: Lane) -> Expr:
        """The variable itself."""
        return self.variable(one.of)

    def fold(self, one: ReduceLanes) -> Expr:
        """The variable itself."""
        return self.variable(one.of)


def without(body: Body) -> Body:
    """Scalars only; raises ``UnsupportedError`` where a value has several lanes."""
    return Lanes(body).rewritten()


def remaining(body: Body) -> list[str]:
    """Values that are wide."""
    wide = (
        expr for expr in Seen(body).expressions if expr.wide or isinstance(expr, Lane | ReduceLanes)
    )
    return sorted({f"a {type(expr).__name__} per lane" for expr in wide})
