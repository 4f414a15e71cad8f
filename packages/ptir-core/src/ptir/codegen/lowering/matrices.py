"""No matrix instructions and no asynchronous copies: such kernels are refused.

They are written only where a dialect offers them (``WorkgroupPrimitives.mma``).
"""

from __future__ import annotations

from typing import Final

from ptir.codegen.kernel_ir import nodes
from ptir.codegen.kernel_ir.values import ShuffleXor
from ptir.codegen.lowering.rewriting import Body, Refused, Seen

OFFERED: Final = (
    nodes.LoadMatrices,
    nodes.Mma,
    nodes.AsyncCopy,
    nodes.AsyncWait,
    ShuffleXor,
)
"""What only stands in kernels for dialects that say how it is spelled."""


class Matrices(Refused):
    """Refuses kernels that hold any of these."""

    because = (
        "the language has no {}: leave `mma` and `shuffle_xor` of `Dialect.workgroup` empty, so"
        " that no kernel is written with it"
    )

    @classmethod
    def remaining(cls, body: Body) -> list[str]:
        """The kinds that stand in the kernel."""
        seen = Seen(body)
        every = (*seen.statements, *seen.expressions)
        return sorted({type(one).__name__ for one in every if isinstance(one, OFFERED)})
