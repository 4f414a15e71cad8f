"""No f64: nothing stands for it, so kernels that hold any are refused."""

from __future__ import annotations

from ptir.codegen.lowering.algebra import found
from ptir.codegen.lowering.rewriting import Body
from ptir.errors import UnsupportedError
from ptir.types import F64


def without(body: Body) -> Body:
    """The kernel as it is; raises ``UnsupportedError`` where it computes in f64."""
    if places := remaining(body):
        raise UnsupportedError(
            f"the language has no f64, and nothing stands for it ({places[0]}); use --dtype f32"
            " or another device"
        )
    return body


def remaining(body: Body) -> list[str]:
    """Where f64 still stands."""
    return found(body, F64)
