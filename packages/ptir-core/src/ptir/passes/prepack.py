"""Prepacking: the backend says in which form parameters are to be resident."""

from __future__ import annotations

from ptir.ir.program import Program
from ptir.passes.context import PassContext


def prepack(program: Program, context: PassContext) -> Program:
    """``program`` reading the parameters that the backend derives from the stored ones."""
    resolved, derived = context.backend.prepack(program, context.device)
    context.derived.update(derived)
    return resolved
