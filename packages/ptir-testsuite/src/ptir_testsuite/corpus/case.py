"""A conformance case: one call with its operands' bytes, known by the hash of its content."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal

import numpy as np

from ptir.ir.attributes import Attributes
from ptir.ir.attributes import Literal as Constant
from ptir.ir.program import Block, Instruction, Port, Program
from ptir.ops import OPS
from ptir.types import TensorType
from ptir_testsuite.oracles.floats import Array

Form = Literal["plain", "one input", "one buffer", "operand kept"]
"""How operands and results are wired: one input used for all operands, two inputs that are one
buffer, or the operands returned next to the results."""

FORMS: Final[tuple[Form, ...]] = ("plain", "one input", "one buffer", "operand kept")


@dataclass(frozen=True)
class Case:
    """One call of one op. ``layout`` is how the host arrays lie in memory, see ``layouts``.

    ``gives`` holds the literal results of a record's own sample, else nothing.
    """

    op: str
    operands: tuple[Constant, ...]
    attributes: Attributes
    results: tuple[TensorType, ...]
    origin: str
    regions: tuple[Block, ...] = ()
    form: Form = "plain"
    layout: str = "dense"
    gives: tuple[Constant, ...] = ()

    @cached_property
    def id(self) -> str:
        """The op's name and a hash of everything that the case consists of."""
        state = hashlib.blake2b(digest_size=6)
        head = (self.op, self.attributes.text, self.form, self.layout, *map(str, self.results))
        state.update("\n".join(head).encode())
        for constant in (*self.operands, *self.gives):
            state.update(f"\n{constant.type}\n".encode() + constant.data)
        for region in self.regions:
            state.update(region.digest)
        return f"{self.op}-{state.hexdigest()}"

    @property
    def types(self) -> tuple[TensorType, ...]:
        """The operands' types."""
        return tuple(c.type for c in self.operands)

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The names of the operands' and results' dtypes, each once, in order."""
        return tuple(dict.fromkeys(t.dtype.name for t in (*self.types, *self.results)))

    @property
    def arrays(self) -> tuple[Array, ...]:
        """The operands as dense, read-only arrays."""
        return tuple(c.numpy() for c in self.operands)

    @property
    def call(self) -> str:
        """The call for a reader: ``add(f32[4], f32[4])`` and the attributes."""
        text = f"{self.op}({', '.join(map(str, self.types))})"
        return f"{text} {{{self.attributes.text}}}" if self.attributes else text

    @property
    def program(self) -> Program:
        """The program of one instruction that makes the call."""
        count = 1 if self.form == "one input" else len(self.operands)
        numbers = (0,) * len(self.operands) if self.form == "one input" else tuple(range(count))
        instruction = Instruction(self.op, numbers, self.attributes, self.results, self.regions)
        outputs = tuple(range(count, count + len(self.results)))
        outputs += tuple(range(count)) if self.form == "operand kept" else ()
        ports = tuple(Port(f"x{i}") for i in range(count))
        return Program(Block(self.types[:count], (instruction,), outputs), ports)


def make(
    op: str,
    arrays: Sequence[Array],
    attributes: Attributes,
    origin: str,
    regions: tuple[Block, ...] = (),
    form: Form = "plain",
    layout: str = "dense",
    gives: Sequence[Array] = (),
) -> Case:
    """A case from arrays; raises ``TypeRuleError`` where the op refuses the call."""
    operands = tuple(Constant.of(a) for a in arrays)
    results = OPS[op].infer([c.type for c in operands], attributes, regions)
    literals = tuple(Constant.of(np.asarray(a)) for a in gives)
    return Case(op, operands, attributes, results, origin, regions, form, layout, literals)
