"""The frozen form of a program: blocks of typed instructions in SSA form.

Values of a block are numbered: its inputs first, then each instruction's results in order. A block
sees nothing outside itself (regions have explicit parameters), so equality, hashing and
verification are structural, and a composite's lowering is simply a shared block. What was verified
is a block, which never changes: programs that share it need not verify it again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal as Choice

from ptir.ir.attributes import Attributes
from ptir.ir.location import UNKNOWN, Location
from ptir.ir.printer import print_program
from ptir.ir.shown import block_line, program_card, program_line
from ptir.ir.structure import VERSION
from ptir.ir.text import lowering_names
from ptir.notebook import Card, Displayed
from ptir.types import TensorType


@dataclass(frozen=True, slots=True)
class Instruction:
    """One op applied to earlier values: operands are value numbers, ``types`` are its results'."""

    op: str
    operands: tuple[int, ...]
    attributes: Attributes
    types: tuple[TensorType, ...]
    regions: tuple[Block, ...] = ()
    location: Location = field(default=UNKNOWN, compare=False)

    @property
    def name(self) -> str:
        """What a reader calls it: the composite's own name, else the op's."""
        return str(self.attributes["name"]) if self.op == "composite" else self.op


@dataclass(frozen=True, eq=False)
class Block:
    """A closed sequence of instructions: input types, instructions, numbers of the outputs."""

    inputs: tuple[TensorType, ...]
    instructions: tuple[Instruction, ...]
    outputs: tuple[int, ...]
    verified: bool = field(default=False, init=False, repr=False)
    """Whether ``ops.verify`` has found it well-formed, with all below it; only that says so."""

    @cached_property
    def types(self) -> tuple[TensorType, ...]:
        """The type of every value, by number."""
        results = (t for i in self.instructions for t in i.types)
        return (*self.inputs, *results)

    @property
    def output_types(self) -> tuple[TensorType, ...]:
        """The types of the outputs."""
        return tuple(self.types[v] for v in self.outputs)

    def numbered(self) -> Iterator[tuple[tuple[int, ...], Instruction]]:
        """Each instruction with the numbers of the values that it defines."""
        number = len(self.inputs)
        for instruction in self.instructions:
            end = number + len(instruction.types)
            yield tuple(range(number, end)), instruction
            number = end

    @cached_property
    def digest(self) -> bytes:
        """A 128-bit digest of the canonical form, wiring included."""
        state = hashlib.blake2b(digest_size=16)
        state.update(f"{','.join(map(str, self.inputs))};{self.outputs}".encode())
        for i in self.instructions:
            types = ",".join(map(str, i.types))
            state.update(f"\n{i.op}{i.operands}{{{i.attributes.text}}}:{types}".encode())
            for region in i.regions:
                state.update(b"#" + region.digest)
        return state.digest()

    def __repr__(self) -> str:
        return block_line(self)

    def __hash__(self) -> int:
        return hash(self.digest)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Block) and _equal(self, other, set())


def _equal(one: Block, other: Block, proven: set[tuple[int, int]]) -> bool:
    """Structural equality that looks at each pair of blocks once, however often it is reached."""
    pair = (id(one), id(other))
    if one is other or pair in proven:
        return True
    same = one.digest == other.digest and _shell(one) == _shell(other)
    regions = zip(_regions(one), _regions(other), strict=True) if same else ()
    if not same or not all(_equal(a, b, proven) for a, b in regions):
        return False
    proven.add(pair)
    return True


def _shell(block: Block) -> tuple[object, ...]:
    """A block without the insides of its regions and without locations."""
    listed = [(i.op, i.operands, i.attributes, i.types, len(i.regions)) for i in block.instructions]
    return block.inputs, block.outputs, listed


def _regions(block: Block) -> list[Block]:
    return [region for instruction in block.instructions for region in instruction.regions]


@dataclass(frozen=True)
class Port:
    """How a program's input is called and what it is: a call's input or a stored parameter."""

    name: str
    kind: Choice["input", "parameter"] = "input"


@dataclass(frozen=True)
class Program(Displayed):
    """A whole program: one main block, the ports of its inputs and the names of its outputs."""

    main: Block
    ports: tuple[Port, ...]
    version: tuple[int, int] = VERSION

    @cached_property
    def digest(self) -> str:
        """128-bit structural digest in hexadecimal; a cache hit on it is verified by equality."""
        state = hashlib.blake2b(self.main.digest, digest_size=16)
        state.update(repr((self.ports, self.version)).encode())
        return state.hexdigest()

    @property
    def inputs(self) -> tuple[TensorType, ...]:
        """The types of the inputs, parameters included, in port order."""
        return self.main.inputs

    @property
    def outputs(self) -> tuple[TensorType, ...]:
        """The types of the outputs."""
        return self.main.output_types

    @cached_property
    def functions(self) -> dict[str, Block]:
        """The distinct lowerings of composites by printed name, inner ones first."""
        return {name: block for block, name in lowering_names(self.main).items()}

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return program_line(self)

    def __str__(self) -> str:
        return print_program(self)

    def card(self) -> Card:
        """What a notebook shows: ports, ops by count, the first instructions."""
        return program_card(self)
