"""No f64: nothing stands for it, so kernels that hold any are refused."""

from __future__ import annotations

from ptir.codegen.lowering.rewriting import Body, Rewriter, found
from ptir.errors import UnsupportedError
from ptir.types import F64


class Doubles(Rewriter):
    """Refuses kernels that compute in f64."""

    @classmethod
    def without(cls, body: Body) -> Body:
        """The kernel as it is."""
        if places := cls.remaining(body):
            raise UnsupportedError(
                f"the language has no f64, and nothing stands for it ({places[0]}); use --dtype f32"
                " or another device"
            )
        return body

    @classmethod
    def remaining(cls, body: Body) -> list[str]:
        """Where f64 still stands."""
        return found(body, F64)
