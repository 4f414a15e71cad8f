"""Common subexpression elimination: what is computed twice alike is computed once."""

from __future__ import annotations

from dataclasses import replace

from ptir.ir.program import Program
from ptir.passes.context import PassContext
from ptir.rewrite.cse import cse_block


def cse(program: Program, context: PassContext) -> Program:
    """``program`` without repetitions, in regions of control flow too; every op is pure."""
    return replace(program, main=cse_block(program.main))
