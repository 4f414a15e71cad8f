"""No prefetches: hints are left out."""

from __future__ import annotations

from ptir.codegen.kernel_ir import nodes
from ptir.codegen.lowering.rewriting import Body, Rewriter, Seen


class Prefetches(Rewriter):
    """Drops them."""

    def fetched(self, one: nodes.Prefetch) -> None:
        """Nothing."""


def without(body: Body) -> Body:
    """The same without hints."""
    return Prefetches(body).rewritten()


def remaining(body: Body) -> list[str]:
    """The memories that are fetched ahead."""
    seen = Seen(body).statements
    return sorted({f"{s.memory} is fetched ahead" for s in seen if isinstance(s, nodes.Prefetch)})
