"""Weights in panels: which parameters are packed, as derived parameters of the program.

A parameter that a contraction multiplies rows with, or a convolution windows, is replaced
everywhere by ``unpack`` of its packed form, so that it is resident once; what else reads it (an
embedding) reads the panels.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from ptir.backend.contract import Derivation, derived_name
from ptir.codegen.weights.computed_words import COMPUTED
from ptir.codegen.weights.experts import DENSE, WORDS
from ptir.codegen.weights.filters import PackedFilters, convolution, packed_filters
from ptir.codegen.weights.panels import LANES, LEAST, Panels
from ptir.codegen.weights.split_parameters import Span, SplitParameters, spans
from ptir.ir.graph import Ref, freeze, inline, source
from ptir.ir.program import Block, Instruction, Port, Program
from ptir.ops.rounded import BYTES, PAIRS, PER_WORD, WINDOWS
from ptir.types import BF16, F16, F32, TensorType
from ptir.weights.words import per_word

PACKED: Final = (F32, F16, BF16)


def pack(program: Program, largest: int) -> tuple[Program, Mapping[str, Derivation]]:
    """``program`` reading packed parameters, and how these are made.

    A parameter above ``largest`` bytes is read in parts of at most that, packed or not.
    """
    packing = _Packing(largest)
    wanted = _wanted(program)
    values: list[Ref] = []
    for number, (port, type) in enumerate(zip(program.ports, program.inputs, strict=True)):
        panels = wanted.get(number)
        if panels is not None:
            values.append(packing.packed(port, panels))
        elif port.kind == "parameter" and type.nbytes > largest and type.rank:
            values.append(packing.divided(port, type))
        else:
            values.append(packing.given(port, type))
    if not packing.derived:
        return program, {}
    outputs = inline(program.main, values, packing.parts.products)
    made = freeze(outputs, [value for _, value in packing.inputs])
    ports = tuple(port for port, _ in packing.inputs)
    return Program(made, ports, program.version), packing.derived


class _Packing:
    """The inputs of the program that reads packed parameters, as they come up."""

    def __init__(self, largest: int) -> None:
        self.largest = largest
        self.inputs: list[tuple[Port, Ref]] = []
        self.derived: dict[str, Derivation] = {}
        self.parts = SplitParameters()

    def given(self, port: Port, type: TensorType) -> Ref:
        """An input that stays as it is."""
        self.inputs.append((port, source(type)))
        return self.inputs[-1][1]

    def packed(self, port: Port, form: Panels | PackedFilters) -> Ref:
        """A packed parameter, or the parts of one that is too large."""
        fits = max(form.plain.nbytes, form.packed.nbytes) <= self.largest
        if fits:
            return form.unpack(self._derived(port, form.block(), form.packed))
        if isinstance(form, PackedFilters):
            return self.divided(port, form.plain)
        return self._in_parts(port, form)

    def _in_parts(self, port: Port, panels: Panels) -> Ref:
        axis = 0 if panels.layout == "oi" else 1
        plain = panels.plain
        found: dict[Span, Ref] = {}
        for span in spans(plain, axis, LANES, self.largest):
            part = replace(panels, outputs=span.end - span.first)
            whole = source(plain)
            block = freeze([part.pack(span.of(whole))], [whole])
            found[span] = part.unpack(self._derived(port, block, part.packed))
        return self.parts.whole(found)

    def divided(self, port: Port, type: TensorType) -> Ref:
        """A parameter that is too large, in parts along its first axis."""
        found: dict[Span, Ref] = {}
        for span in spans(type, 0, 1, self.largest):
            whole = source(type)
            part = span.of(whole)
            found[span] = self._derived(port, freeze([part], [whole]), part.type)
        return self.parts.whole(found)

    def _derived(self, port: Port, block: Block, type: TensorType) -> Ref:
        """A new input that a block computes from a stored parameter."""
        derivation = Derivation(block, (port,))
        name = derived_name(derivation)
        self.derived[name] = derivation
        return self.given(Port(name, "parameter"), type)


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
        for value, panels in _products(block, makers, instruction):
            if value in parameters:
                found.setdefault(value, panels)
    return found


def _products(
    block: Block, makers: Mapping[int, Instruction], instruction: Instruction
) -> Iterator[tuple[int, Panels]]:
    """What a contraction of rows and a weight would have packed."""
    if instruction.op == "composite":
        contract = 1 if instruction.attributes.get("layout") == "oi" else 0
        if instruction.name == BYTES:
            yield from _parts(block, makers, instruction.operands[3:6], contract)
        elif instruction.name == PAIRS:
            yield from _one(block, instruction.operands[1], contract, 2)
        elif instruction.name == WINDOWS:
            yield from _one(block, instruction.operands[1], 1, PER_WORD, LANES)
        elif instruction.name == DENSE:
            yield from _panels(block, makers, instruction.operands[1], 1)
        elif instruction.name == WORDS:
            for operand in instruction.operands[1:4]:
                for leaf in _leaves(makers, operand):
                    yield from _one(block, leaf, 1, 1)
        return
    axis = _contracted(block, instruction)
    if axis is not None:
        yield from _panels(block, makers, instruction.operands[1], axis)


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
    """The values behind a weight that may be packed: itself, or its words, scales and biases."""
    made = makers.get(weight)
    if made is not None and made.op == "dequantize":
        if made.attributes["axis"] == contract:
            yield from _parts(block, makers, made.operands, contract)
        return
    if made is not None and made.op == "cast":
        weight = made.operands[0]
    if block.types[weight].dtype in PACKED:
        yield from _one(block, weight, contract, per_word(block.types[weight].dtype.bits))


def _parts(
    block: Block, makers: Mapping[int, Instruction], parts: Sequence[int], contract: int
) -> Iterator[tuple[int, Panels]]:
    """The values behind words, scales and biases that may be packed."""
    for value in parts:
        for leaf in _leaves(makers, value):
            yield from _one(block, leaf, contract, 1)


def _leaves(makers: Mapping[int, Instruction], value: int) -> Iterator[int]:
    """What words, scales or biases are, or are computed from element by element."""
    made = makers.get(value)
    if made is None:
        yield value
    elif made.op in COMPUTED:
        for operand in made.operands:
            yield from _leaves(makers, operand)


def _one(
    block: Block, value: int, contract: int, per: int, least: int = LEAST
) -> Iterator[tuple[int, Panels]]:
    type = block.types[value]
    if type.rank != 2:
        return
    layout = "oi" if contract == 1 else "io"
    n, k = type.shape if layout == "oi" else type.shape[::-1]
    if n >= least and k % per == 0:
        yield value, Panels(type.dtype, n, k, layout, per)
