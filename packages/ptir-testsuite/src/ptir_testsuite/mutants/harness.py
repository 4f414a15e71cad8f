"""A correct interpreter, the same with one fault, and the table of faults.

Every row of ``MUTANTS`` is a mistake that somebody's backend has made; it changes what one op
gives, or how operands come in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ptir.backend import Device, Interpreter, OpQuery
from ptir.ir.program import Instruction
from ptir.ops import OPS, numerics
from ptir_testsuite.corpus.profiles import PROFILES
from ptir_testsuite.oracles.floats import Array

Results = tuple[Array, ...]
Fault = Callable[["Call"], Any]


@dataclass(frozen=True)
class Call:
    """What a fault sees: the instruction, its operands and the right results."""

    instruction: Instruction
    operands: tuple[Array, ...]
    right: Results

    def __getitem__(self, name: str) -> Any:
        return self.instruction.attributes[name]

    def again(self, *operands: Array, **changes: Any) -> Any:
        """The right result of the same op on other operands or attributes."""
        attributes = dict(self.instruction.attributes) | changes
        return OPS[self.instruction.op].reference(
            numerics, *(operands or self.operands), **attributes
        )


class Correct(Interpreter):
    """The references of the op records, one instruction at a time: nothing is wrong here."""

    name = "correct"
    claims = frozenset(PROFILES)
    correctly_rounded = frozenset({"div", "sqrt", "reciprocal"})

    def devices(self) -> Sequence[Device]:
        """One device."""
        return (Device(0, "host", "reference"),)

    def refusal(self, query: OpQuery, device: Device) -> str | None:
        """Composites are left to their lowerings, custom calls are unknown."""
        if query.op == "custom_call":
            return "no target is known"
        return super().refusal(query, device)

    def upload(self, array: Array, device: Device, *, borrow: bool = False) -> Array:
        """A dense copy."""
        return np.array(array, order="C")

    def download(self, handle: Array, device: Device) -> Array:
        """A dense copy."""
        return np.array(handle, order="C")

    def step(
        self, instruction: Instruction, operands: Sequence[Array], device: Device
    ) -> tuple[Array, ...]:
        """What the record's reference computes."""
        reference = OPS[instruction.op].reference
        with np.errstate(all="ignore"):
            found = reference(numerics, *operands, **instruction.attributes)
        return found if isinstance(found, tuple) else (np.asarray(found),)


class Mutant(Correct):
    """``Correct`` with one fault: in the results of ``ops``, or in ``upload``."""

    def __init__(self, row: Row) -> None:
        self.row = row

    def step(
        self, instruction: Instruction, operands: Sequence[Array], device: Device
    ) -> tuple[Array, ...]:
        """The right results, made wrong."""
        right = super().step(instruction, operands, device)
        if instruction.op not in self.row.ops or self.row.fault is None:
            return right
        call = Call(instruction, tuple(operands), right)
        with np.errstate(all="ignore"):
            wrong = self.row.fault(call)
            results = wrong if isinstance(wrong, tuple) else (wrong,)
            pairs = zip(results, right, strict=True)
            return tuple(np.asarray(w).astype(r.dtype).reshape(r.shape) for w, r in pairs)

    def upload(self, array: Array, device: Device, *, borrow: bool = False) -> Array:
        """The array's elements, unless that is the fault."""
        if self.row.upload is None:
            return super().upload(array, device, borrow=borrow)
        return self.row.upload(array)


@dataclass(frozen=True)
class Row:
    """One planted fault: its name, the ops in which it shows, and what it does."""

    name: str
    ops: tuple[str, ...]
    fault: Fault | None = None
    upload: Callable[[Array], Array] | None = None
    in_sweeps: bool = False
    """Whether it is sweeps that are likely to show it."""


MUTANTS: Final[dict[str, Row]] = {}


def mutant(name: str, *ops: str, in_sweeps: bool = False) -> Callable[[Fault], Fault]:
    """Plant the fault below in these ops under this name."""

    def add(fault: Fault) -> Fault:
        if name in MUTANTS:
            raise ValueError(f"mutant {name!r} is defined twice")
        MUTANTS[name] = Row(name, ops, fault, in_sweeps=in_sweeps)
        return fault

    return add


def is_float(array: Array) -> bool:
    """Whether elements are floating point, the formats of ml_dtypes included."""
    return array.dtype.kind not in "biu"
