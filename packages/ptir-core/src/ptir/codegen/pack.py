"""Weights in panels: which parameters are packed, as derived parameters of the program.

A parameter that a contraction multiplies rows with, or a convolution windows, is replaced
everywhere by ``unpack`` of its packed form, so that it is resident once; what else reads it (an
embedding) reads the panels.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from ptir.backend.contract import Derivation, derived_name
from ptir.codegen.filters import PackedFilters, convolution, packed_filters
from ptir.codegen.panels import LANES, Panels
from ptir.ir.graph import Ref, freeze, inline, source
from ptir.ir.program import Block, Instruction, Port, Program
from ptir.types import BF16, F16, F32

PACKED: Final = (F32, F16, BF16)
LEAST: Final = 2 * LANES
"""Outputs from which packing pays."""


def pack(program: Program) -> tuple[Program, Mapping[str, Derivation]]:
    """``program`` reading packed parameters, and how these are made."""
    wanted = _wanted(program)
    if not wanted:
        return program, {}
    derived: dict[str, Derivation] = {}
    ports, sources, values = list[Port](), list[Ref](), list[Ref]()
    for number, (port, type) in enumerate(zip(program.ports, program.inputs, strict=True)):
        panels = wanted.get(number)
        if panels is None:
            value = source(type)
            ports.append(port)
            sources.append(value)
            values.append(value)
            continue
        derivation = Derivation(panels.block(), (port,))
        name = derived_name(derivation)
        derived[name] = derivation
        packed = source(panels.packed)
        ports.append(Port(name, "parameter"))
        sources.append(packed)
        values.append(panels.unpack(packed))
    outputs = inline(program.main, values)
    return Program(freeze(outputs, sources), tuple(ports), program.version), derived


def _wanted(program: Program) -> dict[int, Panels | PackedFilters]:
    """The packed form of each parameter that is worth packing, by input number."""
    block = program.main
    parameters = {n for n, port in enumerate(program.ports) if port.kind == "parameter"}
    found: dict[int, Panels | PackedFilters] = {}
    makers = {v: instruction for results, instruction in block.numbered() for v in results}
    for instruction in block.instructions:
        for value, filters in _filters(block, makers, instruction):
            if value in parameters:
                found.setdefault(value, filters)
        contract = _contracted(block, instruction)
        if contract is None:
            continue
        for value, panels in _panels(block, makers, instruction.operands[1], contract):
            if value in parameters:
                found.setdefault(value, panels)
    return found


def _filters(
    block: Block, makers: Mapping[int, Instruction], instruction: Instruction
) -> Iterator[tuple[int, PackedFilters]]:
    """The weight of a convolution, where it may be packed."""
    shape = convolution(instruction, block.types, makers.get)
    if shape is None:
        return
    made, weight = makers.get(shape.weight), shape.weight
    if made is not None and made.op == "cast":
        weight = made.operands[0]
    type = block.types[weight]
    filters = packed_filters(type, shape) if type.dtype in PACKED and type.size else None
    if filters is not None:
        yield weight, filters


def _contracted(block: Block, instruction: Instruction) -> int | None:
    """The axis of the right operand along which rows are multiplied, where that is what happens."""
    if instruction.op != "dot_general" or instruction.types[0].dtype != F32:
        return None
    attributes = instruction.attributes
    lhs, rhs = (block.types[v] for v in instruction.operands)
    if attributes["lhs_batch"] or attributes["lhs_contract"] != (lhs.rank - 1,) or rhs.rank != 2:
        return None
    (axis,) = attributes["rhs_contract"]
    return int(axis)


def _panels(
    block: Block, makers: Mapping[int, Instruction], weight: int, contract: int
) -> Iterator[tuple[int, Panels]]:
    """The values behind a weight that may be packed: itself, or its words and scales."""
    made = makers.get(weight)
    if made is not None and made.op == "dequantize":
        words, scale, _ = made.operands
        if made.attributes["axis"] == contract and made.attributes["bits"] in (4, 8):
            yield from _one(block, words, contract, 1)
            yield from _one(block, scale, contract, 1)
        return
    if made is not None and made.op == "cast":
        weight = made.operands[0]
    if block.types[weight].dtype in PACKED:
        yield from _one(block, weight, contract, 32 // block.types[weight].dtype.bits)


def _one(block: Block, value: int, contract: int, per: int) -> Iterator[tuple[int, Panels]]:
    type = block.types[value]
    layout = "oi" if contract == 1 else "io"
    n, k = type.shape if layout == "oi" else type.shape[::-1]
    if n >= LEAST and k % per == 0:
        yield value, Panels(type.dtype, n, k, layout, per)
