"""No matrix instructions and no asynchronous copies: such kernels are refused.

They are written only where a dialect offers them (``WorkgroupPrimitives.mma``).
"""

from __future__ import annotations

from typing import Final

from ptir.codegen.kernel_ir import nodes
from ptir.codegen.kernel_ir.values import ShuffleXor
from ptir.codegen.lowering.rewriting import Body, Rewriter, Seen
from ptir.errors import UnsupportedError

OFFERED: Final = (
    nodes.LoadMatrices,
    nodes.Mma,
    nodes.AsyncCopy,
    nodes.AsyncWait,
    ShuffleXor,
)
"""What only stands in kernels for dialects that say how it is spelled."""


class Matrices(Rewriter):
    """Refuses kernels that hold any of these."""

    @classmethod
    def without(cls, body: Body) -> Body:
        """The kernel as it is."""
        if kinds := cls.remaining(body):
            raise UnsupportedError(
                f"the language has no {kinds[0]}: leave `mma` and `shuffle_xor` of"
                " `Dialect.workgroup` empty, so that no kernel is written with it"
            )
        return body

    @classmethod
    def remaining(cls, body: Body) -> list[str]:
        """The kinds that stand in the kernel."""
        seen = Seen(body)
        every = (*seen.statements, *seen.expressions)
        return sorted({type(one).__name__ for one in every if isinstance(one, OFFERED)})
