"""Whether a block is worth looking for patterns in; patterns are loaded only where one is."""

from __future__ import annotations

from typing import Final

from ptir.ir.program import Block

SIGNS: Final = frozenset(
    {"exp", "erf", "tanh", "cos", "dot_general", "take", "rsqrt", "sqrt", "pow", "silu"}
)
"""Ops of which every pattern of ours has one."""
ADDED: Final[list[str]] = []
"""The functionals of patterns that are not ours, whose ops nobody knows before they are loaded.

They belong to the key of what passes make.
"""


def worth_looking(block: Block) -> bool:
    """Whether a pattern may be in ``block``, regions of its instructions aside."""
    return bool(ADDED) or any(instruction.name in SIGNS for instruction in block.instructions)
