"""No matrix instructions and no asynchronous copies: such kernels are refused.

They are written only where a dialect offers them (``WorkgroupPrimitives.mma``).
"""

from __future__ import annotations

from typing import Final

from ptir.codegen.kernel_ir import nodes
from ptir.codegen.kernel_ir.values import ShuffleXor
from ptir.codegen.lowering.rewriting import Body, Seen
from ptir.errors import UnsupportedError

OFFERED: Final = (
    nodes.LoadMatrices,
    nodes.Mma,
    nodes.AsyncCopy,
    nodes.AsyncWait,
    ShuffleXor,
)
"""What only stands in kernels for dialects that say how it is spelled."""


def without(body: Body) -> Body:
    """The kernel as it is; raises ``UnsupportedError`` where it holds any."""
    if kinds := remaining(body):
        raise UnsupportedError(
            f"the language has no {kinds[0]}: leave `mma` and `shuffle_xor` of"
            " `Dialect.workgroup` empty, so that no kernel is written with it"
        )
    return body


def remaining(body: Body) -> list[str]:
    """The kinds that stand in the kernel."""
    seen = Seen(body)
    every = (*seen.statements, *seen.expressions)
    return sorted({type(one).__name__ for one in every if isinstance(one, OFFERED)})
