"""Re-runs every rule that a program was built by: structure, then each op's own type rule."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

from ptir.errors import PtirError, TypeRuleError
from ptir.ir.program import Block, Instruction, Program
from ptir.ir.structure import blocks, check_block, check_head, check_instruction
from ptir.ir.text import types_text
from ptir.ops.record import op
from ptir.types import TensorType

WRONG_KIND: Final = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError)
"""What a type rule raises that reads an attribute's value without asking for its kind.

A program from outside may have it wrong.
"""


def verify(program: Program) -> None:
    """Check ``program`` and everything below it; raises ``VerifyError``.

    The message holds the place, the printed line of the first instruction that is wrong, and the
    rule that it breaks. A block that was found right is marked, and not looked at again.
    """
    check_head(program)
    if program.main.verified:
        return
    check = _Check()
    for where, block in list(blocks(program)):  # which checks the depth of all first
        if not block.verified:
            check_block(where, block, check)
            object.__setattr__(block, "verified", True)


class _Check:
    """Checks each application once, structure and type rule: layers repeat most of theirs."""

    def __init__(self) -> None:
        self._right = set[Hashable]()

    def __call__(self, block: Block, instruction: Instruction) -> None:
        i, types = instruction, block.types
        operands = tuple([types[value] for value in i.operands])
        application = (i.op, operands, i.attributes, i.types, i.regions)
        if application not in self._right:
            check_instruction(i)
            inferred = _inferred(i, operands)
            if inferred != i.types:
                raise TypeRuleError(
                    f"the result is {types_text(inferred)}, not {types_text(i.types)}"
                )
            self._right.add(application)


def _inferred(instruction: Instruction, operands: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
    record = op(instruction.op)
    try:
        bound = record.bind(instruction.attributes)
        missing = [name for name in bound if name not in instruction.attributes]
        if missing:
            raise TypeRuleError(
                f"attribute {missing[0]!r} is missing; a program spells out every attribute"
            )
        return record.infer(operands, instruction.attributes, instruction.regions)
    except PtirError:
        raise
    except WRONG_KIND as error:
        said = f"{type(error).__name__}: {error}"
        raise TypeRuleError(f"an attribute has a value of the wrong kind ({said})") from error
