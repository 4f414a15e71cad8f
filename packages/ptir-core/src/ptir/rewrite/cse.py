"""What is computed twice alike is computed once, in a block and in its regions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ptir.ir.graph import Ref, rebuild, repeat
from ptir.ir.program import Block, Instruction
from ptir.rewrite.engine import descend


def cse_block(block: Block) -> Block:
    """``block`` in which equal instructions are one; the first of them stays."""
    seen: dict[Any, Sequence[Ref]] = {}

    def visit(instruction: Instruction, operands: tuple[Ref, ...]) -> Sequence[Ref]:
        inner = descend(instruction, cse_block)
        values = tuple(operand.key for operand in operands)
        key = (inner.op, values, inner.attributes, inner.regions, inner.types)
        found = seen.get(key)
        if found is None:
            found = seen[key] = repeat(inner, operands)
        elif found:
            node = found[0].node
            node.location = node.location.shared(inner.location)
        return found

    return rebuild(block, visit)
