"""Leaves only what the backend takes: composites inlined, refused ops decomposed.

Whether a backend takes an op is asked before anything runs; a refusal without a way around is an
``UnsupportedError``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ptir.backend.interpreter import check_supported, query_of
from ptir.ir.graph import Ref, expand, freeze, inline, rebuild, repeat, source
from ptir.ir.program import Block, Instruction, Program
from ptir.ops.implementations import BACKEND
from ptir.ops.record import op
from ptir.passes.context import PassContext
from ptir.rewrite.engine import descend


def legalize(program: Program, context: PassContext) -> Program:
    """``program`` in ops and composites that the backend takes; raises ``UnsupportedError``.

    A composite stays only where the select pass gave it to the backend.
    """
    return replace(program, main=_Legalizer(context, ()).block(program.main))


class _Legalizer:
    """Legalizes blocks; ``within`` are the applications that are being decomposed around them."""

    def __init__(self, context: PassContext, within: tuple[Block, ...]) -> None:
        self._context = context
        self._within = within

    def block(self, block: Block) -> Block:
        return rebuild(block, self.visit)

    def visit(self, instruction: Instruction, operands: tuple[Ref, ...]) -> Sequence[Ref]:
        if _to_inline(instruction):
            return expand(instruction, operands, self.visit)
        alone = _alone(instruction, operands)
        accepted = self._accepts(alone)
        decomposed = None if accepted else _decomposed(alone)
        if decomposed is None or alone in self._within:
            if not accepted or instruction.regions:
                self._check(alone)
            return repeat(descend(instruction, self.block), operands)
        inner = _Legalizer(self._context, (*self._within, alone))
        return inline(decomposed, operands, inner.visit)

    def _accepts(self, alone: Block) -> bool:
        query = query_of(alone, alone.instructions[0])
        return self._context.backend.refusal(query, self._context.device) is None

    def _check(self, alone: Block) -> None:
        """Raise ``UnsupportedError`` where the backend refuses the op; regions have their turn."""
        without_regions = replace(alone.instructions[0], regions=())
        shell = replace(alone, instructions=(without_regions,))
        check_supported(self._context.backend, shell, self._context.device)


def _to_inline(instruction: Instruction) -> bool:
    chosen = instruction.attributes.get("implementation")
    return instruction.op == "composite" and chosen != BACKEND


def _alone(instruction: Instruction, operands: Sequence[Ref]) -> Block:
    """One instruction as a block of its own."""
    count = len(operands)
    renumbered = replace(instruction, operands=tuple(range(count)))
    outputs = tuple(range(count, count + len(instruction.types)))
    return Block(tuple(value.type for value in operands), (renumbered,), outputs)


def _decomposed(alone: Block) -> Block | None:
    """The decomposition of the single instruction of ``alone``, or None where there is none."""
    instruction = alone.instructions[0]
    decomposition = op(instruction.op).decomposition
    if decomposition is None:
        return None
    inputs = [source(t) for t in alone.inputs]
    regions = {"regions": instruction.regions} if instruction.regions else {}
    results = decomposition(*inputs, **regions, **instruction.attributes)
    if results is None:
        return None
    return freeze(results if isinstance(results, tuple | list) else [results], inputs)
