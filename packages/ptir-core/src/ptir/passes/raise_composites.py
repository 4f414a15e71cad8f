"""Raises ops to composites: what somebody wrote without naming a functional becomes a call of it.

Programs that were read, imported or written by hand thereby run as fast as those that name what
they compute. Composites that are there already stay as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ptir.ir.graph import Ref, rebuild, repeat
from ptir.ir.program import Block, Instruction, Program
from ptir.passes.context import PassContext
from ptir.rewrite.engine import descend
from ptir.rewrite.worth import worth_looking
from ptir.switches import switched_on

AS_WRITTEN = "PTIR_AS_WRITTEN"


def raise_composites(program: Program, context: PassContext) -> Program:
    """``program`` with composites for what patterns find, in regions of control flow too.

    Each is counted in ``context`` as ``raise NAME``. Values may round as those of another
    implementation of the functional do. With ``PTIR_AS_WRITTEN=1`` nothing is raised.
    """
    if switched_on(AS_WRITTEN):
        return program
    main = _raised(program.main, context.rewrites)
    return program if main is program.main else replace(program, main=main)


def _raised(block: Block, counts: dict[str, int]) -> Block:
    regions = any(i.regions and i.op != "composite" for i in block.instructions)
    if regions:

        def visit(instruction: Instruction, operands: tuple[Ref, ...]) -> Sequence[Ref]:
            return repeat(descend(instruction, lambda inner: _raised(inner, counts)), operands)

        block = rebuild(block, visit)
    if not worth_looking(block):
        return block
    from ptir.rewrite.raising import raised  # with the patterns

    return raised(block, counts)
