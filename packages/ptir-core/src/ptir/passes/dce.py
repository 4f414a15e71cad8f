"""Dead code: drops instructions without a reader and parameters without a use."""

from __future__ import annotations

from collections.abc import Sequence

from ptir.ir.graph import Ref, freeze, inline, reachable, repeat, source
from ptir.ir.program import Block, Instruction, Port, Program
from ptir.passes.context import PassContext
from ptir.rewrite.engine import descend


def dce(program: Program, context: PassContext) -> Program:
    """``program`` without unread instructions and parameters; every input stays, in order."""
    inputs = [source(t) for t in program.main.inputs]
    outputs = inline(program.main, inputs, _visit)
    needed = {node.serial for node in reachable(outputs)}
    kept = [
        (port, value)
        for port, value in zip(program.ports, inputs, strict=True)
        if port.kind == "input" or value.node.serial in needed
    ]
    ports: tuple[Port, ...] = tuple(port for port, _ in kept)
    return Program(freeze(outputs, [value for _, value in kept]), ports, program.version)


def _visit(instruction: Instruction, operands: tuple[Ref, ...]) -> Sequence[Ref]:
    return repeat(descend(instruction, _dce_region), operands)


def _dce_region(block: Block) -> Block:
    inputs = [source(t) for t in block.inputs]
    return freeze(inline(block, inputs, _visit), inputs)
