"""No f64: nothing stands for it, so kernels that hold any are refused."""

from __future__ import annotations

from ptir.codegen.lowering.rewriting import Body, Refused, found
from ptir.types import F64


class Doubles(Refused):
    """Refuses kernels that compute in f64."""

    because = (
        "the language has no f64, and nothing stands for it ({}); use --dtype f32 or another device"
    )

    @classmethod
    def remaining(cls, body: Body) -> list[str]:
        """Where f64 still stands."""
        return found(body, F64)
