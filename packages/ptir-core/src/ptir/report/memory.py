"""Bytes of intermediate values over a run: what is needed while each part runs."""

from __future__ import annotations

from collections.abc import Sequence

from ptir.backend.explanation import UPDATES, Part
from ptir.ir.program import Block
from ptir.ops.record import OPS


def live_bytes(block: Block, parts: Sequence[Part]) -> list[int]:
    """For each part the bytes of what parts make that is read by it or later, outputs included.

    Memory that inputs and parameters lie in, and what is updated in place, counts for nothing. A
    plan of memory may need more, where sizes do not fit each other's places.
    """
    origin = _origins(block)
    begins: dict[int, int] = {}
    ends: dict[int, int] = {}
    for number, part in enumerate(parts):
        for access in part.writes:
            begins.setdefault(origin[access.value], number)
        for access in (*part.reads, *part.writes):
            ends[origin[access.value]] = number
    for value in block.outputs:
        ends[origin[value]] = len(parts) - 1
    changes = [0] * (len(parts) + 1)
    for value, begin in begins.items():
        if value >= len(block.inputs):
            changes[begin] += block.types[value].nbytes
            changes[ends[value] + 1] -= block.types[value].nbytes
    found, live = [], 0
    for change in changes[:-1]:
        live += change
        found.append(live)
    return found


def _origins(block: Block) -> list[int]:
    """The value whose memory each value lies in: that of a view's operand, or of an update's."""
    origin = [*range(len(block.types))]
    for results, one in block.numbered():
        is_view = one.op != "composite" and "view" in OPS[one.op].traits
        if is_view or one.name in UPDATES:
            for value in results:
                origin[value] = origin[one.operands[0]]
    return origin
