"""Re-runs every rule that a program was built by: structure, then each op's own type rule."""

from __future__ import annotations

from typing import Final

from ptir.errors import PtirError, TypeRuleError
from ptir.ir.program import Block, Instruction, Program
from ptir.ir.structure import blocks, broken, check_structure
from ptir.ir.text import types_text
from ptir.ops.record import op
from ptir.types import TensorType

# A type rule reads attribute values without asking for their kinds, which a program from
# outside may have wrong; these are what reading a value of the wrong kind raises.
_WRONG_KIND: Final = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError)


def verify(program: Program) -> None:
    """Check ``program`` and everything below it; raises ``VerifyError``.

    The message holds the place, the printed line of the first instruction that is wrong, and the
    rule that it breaks.
    """
    check_structure(program)
    for where, block in blocks(program):
        for numbers, instruction in block.numbered():
            try:
                _check_types(block, instruction)
            except TypeRuleError as error:
                rule = str(error).partition("\n")[0]
                raise broken(where, instruction, numbers, rule) from None


def _check_types(block: Block, instruction: Instruction) -> None:
    operands = [block.types[value] for value in instruction.operands]
    inferred = _inferred(instruction, operands)
    if inferred != instruction.types:
        raise TypeRuleError(
            f"the result is {types_text(inferred)}, not {types_text(instruction.types)}"
        )


def _inferred(instruction: Instruction, operands: list[TensorType]) -> tuple[TensorType, ...]:
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
    except _WRONG_KIND as error:
        raise TypeRuleError(f"an attribute has a value of the wrong kind: {error}") from None
