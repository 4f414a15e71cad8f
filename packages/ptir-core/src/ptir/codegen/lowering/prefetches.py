"""No prefetches: hints are left out."""

from __future__ import annotations

from ptir.codegen.kernel_ir import nodes
from ptir.codegen.lowering.rewriting import Body, Rewriter, Seen


class Prefetches(Rewriter):
    """Leaves prefetches out."""

    def fetched(self, one: nodes.Prefetch) -> None:
        """Nothing is put in its place."""


def without(body: Body) -> Body:
    """The kernel without prefetches."""
    return Prefetches(body).rewritten()


def remaining(body: Body) -> list[str]:
    """The memories that are still prefetched."""
    seen = Seen(body).statements
    return sorted({f"{s.memory} is fetched ahead" for s in seen if isinstance(s, nodes.Prefetch)})
