"""Prints a program in the text form that ``ir.parser`` reads back exactly."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ptir.ir.attributes import Literal, quoted
from ptir.ir.location import UNKNOWN
from ptir.ir.structure import check_structure
from ptir.ir.text import (
    instruction_text,
    is_composite,
    location_text,
    lowering_names,
    name_text,
    types_text,
    values_text,
)

if TYPE_CHECKING:
    from ptir.ir.program import Block, Instruction, Program

_WIDTH = 100


def print_program(
    program: Program, literals: dict[str, Literal] | None = None, *, locations: bool = False
) -> str:
    """The text of ``program``, one instruction a line, ending with a newline.

    With ``literals``, those above 1,024 bytes are put into it under a content digest and the text
    says ``file"<digest>"``. With ``locations`` each instruction says where it comes from, if it is
    known.
    Raises ``VerifyError`` for a program whose structure cannot be written down.
    """
    check_structure(program)
    printer = _Printer(lowering_names(program.main), literals, locations)
    lines = [f"ptir {program.version[0]}.{program.version[1]}", ""]
    for block, name in printer.names.items():
        head = f"function @{name_text(name)}({_inputs(block)})"
        lines += [*printer.block(head, block, ""), ""]
    lines += printer.block(_program_head(program), program.main, "")
    return "\n".join(lines) + "\n"


def _inputs(block: Block) -> str:
    return ", ".join(f"%{number}: {type}" for number, type in enumerate(block.inputs))


def _program_head(program: Program) -> str:
    ports = [
        f"%{number}: {type} {port.kind} {quoted(port.name)}"
        for number, (type, port) in enumerate(zip(program.inputs, program.ports, strict=True))
    ]
    line = f"program({', '.join(ports)})"
    if len(line) <= _WIDTH:
        return line
    return "program(\n" + ",\n".join(f"  {port}" for port in ports) + "\n)"


@dataclass(frozen=True)
class _Printer:
    names: dict[Block, str]
    literals: dict[str, Literal] | None
    locations: bool

    def block(self, head: str, block: Block, indent: str) -> Iterator[str]:
        """The lines of a block; ``head`` is what comes before its output types."""
        yield f"{indent}{head} -> {types_text(block.output_types)} {{"
        for numbers, instruction in block.numbered():
            yield from self.instruction(instruction, numbers, indent + "  ")
        outputs = values_text(block.outputs)
        yield f"{indent}  return {outputs}".rstrip()
        yield f"{indent}}}"

    def instruction(
        self, instruction: Instruction, numbers: tuple[int, ...], indent: str
    ) -> Iterator[str]:
        """The lines of an instruction: its own, continued by its regions."""
        composite = is_composite(instruction)
        function = self.names[instruction.regions[0]] if composite else ""
        line = indent + instruction_text(instruction, numbers, function, self.literals)
        for region in () if composite else instruction.regions:
            first, *body = self.block(f"region ({_inputs(region)})", region, indent)
            yield f"{line} {first.lstrip()}"
            yield from body[:-1]
            line = body[-1]
        known = instruction.location != UNKNOWN
        yield f"{line} {location_text(instruction.location)}" if self.locations and known else line
