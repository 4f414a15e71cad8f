"""The pieces of the text form that are shared: an instruction's line, the names of lowerings."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from ptir.ir.attributes import Attr, Attributes, Literal, attribute_text, quoted
from ptir.ir.location import NAMED, Location
from ptir.types import TensorType

if TYPE_CHECKING:
    from ptir.ir.program import Block, Instruction

NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")
"""How ops, attributes and functions may be called without quotes."""

INLINE_BYTES: Final = 1024
"""Literals above this size leave the text when there is a mapping to put them into."""


def values_text(numbers: Iterable[int]) -> str:
    """Value numbers as text: ``%3, %4``."""
    return ", ".join(f"%{number}" for number in numbers)


def types_text(types: Iterable[TensorType]) -> str:
    """Types as text: ``f32[2], i32[2]``, or ``()`` for none."""
    return ", ".join(map(str, types)) or "()"


def name_text(name: str) -> str:
    """A composite's or function's name: bare where that is unambiguous, else quoted."""
    return name if NAME.fullmatch(name) else quoted(name)


def is_composite(instruction: Instruction) -> bool:
    """Whether the instruction prints as a call of its lowering: a named composite with one."""
    return (
        instruction.op == "composite"
        and isinstance(instruction.attributes.get("name"), str)
        and len(instruction.regions) == 1
    )


def location_text(location: Location) -> str:
    """A location: ``loc("model.py":7, scope = "h.3.attn")``; what is not known is left out."""
    column = f":{location.column}" if location.column else ""
    place = f"{quoted(location.file)}:{location.line}{column}"
    named = ((name, getattr(location, name)) for name in NAMED)
    details = [f"{name} = {quoted(text)}" for name, text in named if text]
    return f"loc({', '.join([place, *details] if location.file or location.line else details)})"


def literal_digest(literal: Literal) -> str:
    """The content digest under which a literal is kept beside the text (type included)."""
    state = hashlib.blake2b(f"{literal.type}:".encode(), digest_size=16)
    state.update(literal.data)
    return state.hexdigest()


def attributes_text(attributes: Attributes, literals: dict[str, Literal] | None) -> str:
    """All attributes as text; large literals go to ``literals`` when it is given."""
    if literals is None:
        return attributes.text
    return ", ".join(f"{k} = {_value_text(v, literals)}" for k, v in attributes.items())


def _value_text(value: Attr, literals: dict[str, Literal]) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(_value_text(item, literals) for item in value)}]"
    if not isinstance(value, Literal) or len(value.data) <= INLINE_BYTES:
        return attribute_text(value)
    digest = literal_digest(value)
    literals[digest] = value
    return f"{value.type} file{quoted(digest)}"


def instruction_text(
    instruction: Instruction,
    numbers: tuple[int, ...],
    function: str = "",
    literals: dict[str, Literal] | None = None,
) -> str:
    """The line of one instruction without its regions.

    ``function`` is the printed name of a composite's lowering; ``literals`` as for the printer.
    """
    call, attributes = instruction.op, instruction.attributes
    if is_composite(instruction):
        call = f"composite {name_text(str(attributes['name']))}"
        attributes = Attributes({k: v for k, v in attributes.items() if k != "name"})
    results = f"{values_text(numbers)} = " if numbers else ""
    braces = f" {{{attributes_text(attributes, literals)}}}" if attributes else ""
    callee = f" @{name_text(function)}" if function else ""
    types = types_text(instruction.types)
    return f"{results}{call}({values_text(instruction.operands)}){braces}{callee} : {types}"


def lowering_names(main: Block) -> dict[Block, str]:
    """A name for each distinct composite lowering below ``main``: ``softmax_0``, in post-order."""
    names: dict[Block, str] = {}
    counts: dict[str, int] = {}

    def visit(block: Block) -> None:
        for instruction in block.instructions:
            for region in instruction.regions:
                visit_region(instruction, region)

    def visit_region(instruction: Instruction, region: Block) -> None:
        if region in names:
            return
        visit(region)
        if instruction.op == "composite":
            base = instruction.name
            names[region] = f"{base}_{counts.setdefault(base, 0)}"
            counts[base] += 1

    visit(main)
    return names
