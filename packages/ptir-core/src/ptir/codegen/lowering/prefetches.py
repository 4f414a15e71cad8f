"""No prefetches: hints are left out."""

from __future__ import annotations

from ptir.codegen.kernel_ir import nodes
from ptir.codegen.lowering.rewriting import Body, Rewriter, Seen


class Prefetches(Rewriter):
    """Leaves prefetches out."""

    @classmethod
    def remaining(cls, body: Body) -> list[str]:
        """The memories that are still prefetched."""
        seen = Seen(body).statements
        hints = (s for s in seen if isinstance(s, nodes.Prefetch))
        return sorted({f"{s.memory} is fetched ahead" for s in hints})

    def visit_prefetch(self, one: nodes.Prefetch) -> None:
        """Nothing is put in its place."""
