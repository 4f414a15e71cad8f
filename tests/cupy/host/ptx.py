"""PTX in CUDA text as calls of functions that mean the same on the processor (``ptx.h``).

``asm volatile("mma.sync.X {%0}, {%1};" : "+f"(d) : "r"(a));`` becomes ``ptx::mma_sync_X(d, a);``:
the operands in the order in which the instruction names them, so that one mixed up is found.
"""

from __future__ import annotations

import re
from typing import Final

STATEMENT: Final = re.compile(r"\basm(?: volatile)?\((.*?)\);", re.S)
STRING: Final = re.compile(r'"([^"]*)"')
OPERAND: Final = re.compile(r'"[=+]?[frlh]"\((\w+|\w+\(\w+\))\)')


def emulated(text: str) -> str:
    """``text`` with a call in place of every statement of assembly."""
    return STATEMENT.sub(lambda found: _called(found[1]), text)


def _called(statement: str) -> str:
    template, *sections = statement.split(":")
    code = "".join(STRING.findall(template)).strip().removesuffix(";")
    name, _, given = code.partition(" ")
    operands = OPERAND.findall(":".join(sections[:2]))
    listed = [one.strip(" {}[]") for one in given.split(",")] if given else []
    taken = [operands[int(one[1:])] if one.startswith("%") else one for one in listed]
    return f"host::ptx::{re.sub(r'[.:]+', '_', name)}({', '.join(taken)});"
