"""What follows the choice of implementations: the second half of the pipeline, usable by itself."""

from __future__ import annotations

from typing import Final

from ptir.ir.program import Program
from ptir.passes.canonicalize import canonicalize
from ptir.passes.context import PassContext
from ptir.passes.cse import cse
from ptir.passes.dce import dce
from ptir.passes.legalize import legalize
from ptir.passes.lift_params import lift_params
from ptir.passes.prepack import prepack
from ptir.passes.stage import Stage

FINISHING: Final[tuple[Stage, ...]] = (
    Stage("backend selected", point="selected"),
    Stage("legalize", legalize),
    Stage("lift_params", lift_params),
    Stage("canonicalize", canonicalize),
    Stage("cse", cse),
    Stage("dce", dce),
    Stage("backend cleanup", point="cleanup"),
    Stage("prepack", prepack),
)
"""The stages behind ``select``."""


def finished(program: Program, context: PassContext) -> Program:
    """A program whose implementations are chosen, as it would be compiled; nothing is reported."""
    for stage in FINISHING:
        for _, run in stage.passes(context):
            program = run(program, context)
    return program
