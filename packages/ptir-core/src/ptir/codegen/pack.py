"""Weights in panels: which parameters are packed, as derived parameters of the program.

A parameter that a contraction multiplies rows with is replaced everywhere by ``unpack`` of its
packed form, so that it is resident once; what else reads it (an embedding) reads the panels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from ptir.backend.contract import Derivation, derived_name
from ptir.codegen.panels import LANES, Panels
from ptir.ir.graph import Ref, freeze, inline, source
from ptir.ir.program import Block, Instruction, Port, Program
from ptir.types import BF16, F16, F32

PACKED: Final = (F32, F16, BF16)
LEAST: Final = 2 * LANES
"""Outputs and inputs from which packing pays."""


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


def _wanted(program: Program) -> dict[int, Panels]:
    """The packed form of each parameter that is worth packing, by input number."""
    block = program.main
    parameters = {n for n, port in enumerate(program.ports) if port.kind == "parameter"}
    found: dict[int, Panels] = {}
    makers = _makers(block)
    for instruction in block.instructions:
        weight = _weight(block, instruction, makers)
        if weight is None or weight in found or weight not in parameters:
            continue
        panels = _panels(block, instruction, weight)
        if panels is not None:
            found[weight] = panels
    return found


def _makers(block: Block) -> dict[int, Instruction]:
    return {v: instruction for results, instruction in block.numbered() for v in results}


def _weight(
    block: Block, instruction: Instruction, makers: Mapping[int, Instruction]
) -> int | None:
    """The value that a contraction of rows takes its weights from, behind a cast."""
    if instruction.op != "dot_general" or instruction.types[0].dtype != F32:
        return None
    if instruction.attributes["lhs_batch"]:
        return None
    lhs, weight = instruction.operands
    last: Sequence[int] = (len(block.types[lhs].shape) - 1,)
    if tuple(instruction.attributes["lhs_contract"]) != tuple(last):
        return None
    made = makers.get(weight)
    return made.operands[0] if made is not None and made.op == "cast" else weight


def _panels(block: Block, instruction: Instruction, weight: int) -> Panels | None:
    type = block.types[weight]
    contract = instruction.attributes["rhs_contract"]
    if type.rank != 2 or type.dtype not in PACKED or len(contract) != 1:
        return None
    layout = "oi" if contract[0] == 1 else "io"
    n, k = type.shape if layout == "oi" else type.shape[::-1]
    panels = Panels(type.dtype, n, k, layout)
    return panels if min(n, k) >= LEAST and k % panels.per == 0 else None
