"""No literals of infinities and NaN: their bits, beside a zero that no compiler takes for constant.

The zero is a variable that nobody changes.
"""

from __future__ import annotations

import math
import struct
from typing import Final

from ptir.codegen.expressions.expr import Const, Expr, Var
from ptir.codegen.kernel_ir import nodes
from ptir.codegen.lowering.algebra import bits, word
from ptir.codegen.lowering.rewriting import Body, Rewriter, Seen
from ptir.types import F32, U32

HIDDEN: Final = Var(U32, "hidden_zero")


class Specials(Rewriter):
    """Makes bits of the literals that are not finite."""

    used = False

    @classmethod
    def remaining(cls, body: Body) -> list[str]:
        """The literals that are not finite."""
        literals = (x for x in Seen(body).expressions if isinstance(x, Const))
        return sorted({repr(x.value) for x in literals if _is_special(x)})

    def rewritten(self) -> Body:
        """With the variable in front where it is used."""
        found = super().rewritten()
        if not self.used:
            return found
        declared = nodes.Declare((HIDDEN,), (word(0),))
        return found._replace(statements=(declared, *found.statements))

    def visit_const(self, one: Const) -> Expr:
        """A literal, or its bits."""
        if not _is_special(one):
            return one
        self.used = True
        (pattern,) = struct.unpack("<I", struct.pack("<f", one.value))
        return bits(F32, HIDDEN | pattern)


def _is_special(one: Const) -> bool:
    return one.dtype == F32 and not math.isfinite(one.value)
