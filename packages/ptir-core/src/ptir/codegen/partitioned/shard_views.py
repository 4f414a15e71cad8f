"""Workers' windows of inputs, as places in the memory of the whole inputs.

A packed parameter stands in the partition as the matrix that it is (``unpacked``). A worker's part
of it becomes slices of the unpacked whole, behind an offset in bytes, so that workers with equal
shares run one kernel on other addresses and no window is ever copied. A linear kernel reads the
panels behind such slices (``codegen.weights.panel_views``); a contiguous part of another input is
an offset alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ptir.codegen.expressions.unpacked import UNPACK
from ptir.codegen.weights.panels import LANES, Panels, panels_of
from ptir.ir.graph import Ref, freeze, inline, repeat, source
from ptir.ir.program import Block, Instruction, Program
from ptir.partition.phases import InputShard
from ptir.sharding.local import axis_slice, concatenated
from ptir.sharding.placement import Ranges, Split
from ptir.types import TensorType


class NotPartitioned(Exception):  # noqa: N818  not an error: a question answered with no
    """Why a program is not partitioned among the workers of a device."""


@dataclass(frozen=True)
class Unpacked:
    """A program whose packed inputs are the matrices that they stand for, by input number."""

    program: Program
    packed: Mapping[int, Panels]


def unpacked(program: Program) -> Unpacked:
    """``program`` on unpacked inputs."""
    block = program.main
    packed: dict[int, Panels] = {}
    for instruction in block.instructions:
        if is_unpacking(instruction) and instruction.operands[0] < len(block.inputs):
            (number,) = instruction.operands
            panels = panels_of(block.types[number], instruction.attributes)
            if packed.setdefault(number, panels) != panels:
                raise NotPartitioned(f"input {number} is unpacked in two ways")
    values = [
        source(packed[n].plain if n in packed else type) for n, type in enumerate(block.inputs)
    ]

    def visit(instruction: Instruction, operands: tuple[Ref, ...]) -> Sequence[Ref]:
        if is_unpacking(instruction) and any(operands[0] is values[n] for n in packed):
            return operands
        if any(operand is values[n] for operand in operands for n in unusual):
            raise NotPartitioned(f"{instruction.name} reads a packed input as it lies in memory")
        return repeat(instruction, operands)

    unusual = _read_packed(block, packed)
    made = freeze(inline(block, values, visit), values)
    return Unpacked(Program(made, program.ports, program.version), packed)


def is_unpacking(instruction: Instruction) -> bool:
    """Whether it says what a packed parameter means."""
    return instruction.op == "composite" and instruction.name == UNPACK


def _read_packed(block: Block, packed: Mapping[int, Panels]) -> frozenset[int]:
    """The packed inputs that something else than unpacking reads."""
    readers = (i for i in block.instructions if not is_unpacking(i))
    found = {v for i in readers for v in i.operands if v in packed}
    return frozenset(found | {v for v in block.outputs if v in packed})


@dataclass(frozen=True)
class ShardView:
    """How a worker's program takes an input: ``given`` at an offset in bytes, then ``value``.

    With an offset, what lies behind the end of the whole is not the input's and is not read.
    """

    given: Ref
    value: Ref
    offset: int = 0
    contiguous: bool = True
    """Whether the offset says it all: what is written there is written in place."""


def shard_view(window: InputShard, type: TensorType, panels: Panels | None) -> ShardView:
    """A worker's window of an input of a type (plain, where it is packed)."""
    placement = window.placement
    if panels is not None:
        return _panels(window, panels)
    if not isinstance(placement, Split):
        given = source(type)
        return ShardView(given, given)
    parts, axis = placement.parts[window.worker], placement.axis
    inner = math.prod(type.shape[axis + 1 :]) * type.dtype.bits
    if len(parts) == 1 and math.prod(type.shape[:axis]) == 1 and not inner % 8:
        given = source(placement.local(type, window.worker))
        return ShardView(given, given, parts[0][0] * inner // 8)
    given = source(type)
    return ShardView(given, _cut(given, axis, parts), contiguous=False)


def _panels(window: InputShard, panels: Panels) -> ShardView:
    given, placement = source(panels.packed), window.placement
    if not isinstance(placement, Split):
        return ShardView(given, panels.unpack(given))
    parts, axis = placement.parts[window.worker], placement.axis
    row = LANES * panels.per * panels.dtype.bits // 8  # of a panel: its inputs in one word
    outputs = axis == (0 if panels.layout == "oi" else 1)
    unit = LANES if outputs else panels.per
    step = row * (panels.inputs // panels.per) if outputs else row
    whole = panels.plain.shape[axis]
    if any(a % unit or (b % unit and b != whole) for a, b in parts):
        raise NotPartitioned(f"a part of a packed parameter is not in multiples of {unit}")
    first = parts[0][0]
    # Slices count from the first place, so that equal shares are equal programs.
    moved = tuple((a - first, b - first) for a, b in parts)
    value = _cut(panels.unpack(given), axis, moved)
    return ShardView(given, value, first // unit * step)


def _cut(value: Ref, axis: int, parts: Ranges) -> Ref:
    return concatenated([axis_slice(value, axis, a, b) for a, b in parts], axis)
