"""What a notebook shows of a program: its ports, its ops by count and its first instructions."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING, Final

from ptir.ir.attributes import Literal
from ptir.ir.text import instruction_text, is_composite, types_text
from ptir.notebook import Card
from ptir.units import size

if TYPE_CHECKING:
    from ptir.ir.program import Block, Program

FIRST: Final = 20
"""Ports, and instructions, that are shown."""


def program_line(program: Program) -> str:
    """A program in a line: how much of what it has."""
    stored = sum(port.kind == "parameter" for port in program.ports)
    return (
        f"Program({len(program.ports) - stored} inputs, {stored} parameters,"
        f" {len(program.main.instructions)} instructions, {len(program.main.outputs)} outputs)"
    )


def block_line(block: Block) -> str:
    """A block in a line: how much of what it has."""
    return (
        f"Block({len(block.inputs)} inputs, {len(block.instructions)} instructions,"
        f" {len(block.outputs)} outputs)"
    )


def program_card(program: Program) -> Card:
    """The ports, the ops by count and the first instructions; the rest is counted."""
    ports = list(zip(program.ports, program.inputs, strict=True))
    stored = [type.nbytes for port, type in ports if port.kind == "parameter"]
    given = [f"{port.name}: {type}" for port, type in ports if port.kind == "input"]
    ops = Counter(instruction.name for instruction in program.main.instructions)
    counted = [f"{name} {count:,}" for name, count in ops.most_common(FIRST)]
    facts = [
        ("inputs", _listed(given)),
        ("parameters", f"{len(stored):,}{_bytes(stored)}"),
        ("outputs", types_text(program.outputs[:FIRST])),
        ("instructions", len(program.main.instructions)),
        ("ops", ", ".join(counted)),
    ]
    left = len(program.main.instructions) - FIRST
    note = f"{left:,} more instructions; print(program) writes all" if left > 0 else ""
    return Card("Program", facts, text="\n".join(_lines(program.main)), note=note)


def _bytes(stored: list[int]) -> str:
    return f" ({size(sum(stored))})" if stored else ""


def _listed(names: list[str]) -> str:
    left = len(names) - FIRST
    return ", ".join(names[:FIRST]) + (f" and {left:,} more" if left > 0 else "")


def _lines(block: Block) -> list[str]:
    """The first instructions: without regions, and with large literals by digest alone."""
    literals: dict[str, Literal] = {}
    lines = []
    for numbers, instruction in islice(block.numbered(), FIRST):
        text = instruction_text(instruction, numbers, literals=literals)
        inside = "" if is_composite(instruction) or not instruction.regions else " { ... }"
        lines.append(text + inside)
    return lines
