"""Floating-point operations of a program by its definition, whatever a kernel really does.

A multiplication and an addition are two; every other function of floats is one for each element of
its result, a reduction one for each element that it takes in. Casts, comparisons, selections,
movement, whole numbers and the decoding of weights are none. That is how FLOPs of models are
usually counted (PaLM, arXiv 2204.02311, appendix B, has the same rule for products).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final

from ptir.ir.program import Block, Instruction
from ptir.ops.record import OPS
from ptir.types import TensorType

Types = Sequence[TensorType]

UNCOUNTED: Final = frozenset(
    ("cast", "bitcast", "compare", "select", "stop_gradient", "is_finite", "not")
)
"""What is elementwise and no arithmetic."""


def _products(instruction: Instruction, types: Types) -> int:
    summed: int = math.prod(types[0].shape[a] for a in instruction.attributes["lhs_contract"])
    return 2 * summed * instruction.types[0].size


def _results(instruction: Instruction, types: Types) -> int:
    if instruction.op in UNCOUNTED or not types[0].dtype.is_float:
        return 0
    return instruction.types[0].size


def _taken(instruction: Instruction, types: Types) -> int:
    return types[0].size if types[0].dtype.is_float else 0


def _windows(instruction: Instruction, types: Types) -> int:
    window = math.prod(instruction.attributes["window"])
    return window * instruction.types[0].size if types[0].dtype.is_float else 0


COUNTED: Final[tuple[tuple[str, Callable[[Instruction, Types], int]], ...]] = (
    ("contraction", _products),
    ("elementwise", _results),
    ("reduce_window", _windows),
    ("reduction", _taken),
    ("scan", _taken),
)
"""By trait, or by op: the first that an op has decides."""


def flops(instruction: Instruction, types: Types) -> int:
    """Those of an instruction on operands of ``types``; a composite has those of its lowering.

    Of a cond the branch with most counts; a scan's body counts for each step, a while's once, since
    nobody knows how often it runs.
    """
    if instruction.op == "custom_call":
        return 0
    if instruction.regions:
        inner = [block_flops(region) for region in instruction.regions]
        if instruction.op == "scan":
            return sum(inner) * int(instruction.attributes["length"])
        return max(inner) if instruction.op == "cond" else sum(inner)
    named = {instruction.op, *OPS[instruction.op].traits}
    count = next((counted for key, counted in COUNTED if key in named), None)
    return 0 if count is None or not types else count(instruction, types)


@lru_cache(maxsize=1 << 12)
def block_flops(block: Block) -> int:
    """Those of all instructions of a block."""
    return sum(flops(one, [block.types[v] for v in one.operands]) for one in block.instructions)
