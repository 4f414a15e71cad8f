"""Backends that must not get away with it, and the outcome that gives each of them away.

A fault here is in the backend as a whole, not in what an op gives: it lies about what it takes,
fails, hangs, remembers too much. Each is run in a process of its own.
"""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ptir.backend import Device, Executable, OpQuery, Options
from ptir.backend.contract import RunStats
from ptir.errors import CompileError, DeviceError
from ptir.ir.program import Instruction, Program
from ptir_testsuite.mutants.harness import Correct
from ptir_testsuite.oracles.floats import Array
from ptir_testsuite.running.outcomes import Outcome

Results = tuple[Array, ...]


@dataclass(frozen=True)
class Impostor:
    """A backend that lies: how it is made, ops that show it, and the outcomes that tell."""

    make: Callable[[], Correct]
    ops: tuple[str, ...]
    outcomes: tuple[Outcome, ...]


IMPOSTORS: Final[dict[str, Impostor]] = {}


def impostor(name: str, ops: str, *outcomes: Outcome) -> Callable[[type[Correct]], type[Correct]]:
    """Add the backend below to the table under this name."""

    def add(cls: type[Correct]) -> type[Correct]:
        if name in IMPOSTORS:
            raise ValueError(f"impostor {name!r} is defined twice")
        IMPOSTORS[name] = Impostor(cls, tuple(ops.split()), outcomes)
        return cls

    return add


@impostor("claims the core and takes nothing", "add", Outcome.UNSUPPORTED)
class Nothing(Correct):
    """Supports nothing."""

    def refusal(self, query: OpQuery, device: Device) -> str | None:
        """No, whatever it is."""
        return "nothing is taken"


@impostor("claims everything and raises", "add", Outcome.ERROR)
class Raising(Correct):
    """Fails whatever it runs."""

    def step(self, instruction: Instruction, operands: Sequence[Array], device: Device) -> Results:
        """An error of ptir's own."""
        raise DeviceError("the device is gone")


@impostor("raises errors of its own", "add", Outcome.ERROR)
class Foreign(Correct):
    """Fails to compile with something that is not an error of ptir."""

    def compile(self, program: Program, device: Device, options: Options) -> Executable:
        """No typed error."""
        raise KeyError("add")


@impostor("accepts programs and cannot build them", "add", Outcome.ERROR)
class Unbuildable(Correct):
    """Says yes, and then that it cannot."""

    def compile(self, program: Program, device: Device, options: Options) -> Executable:
        """A typed error, too late."""
        raise CompileError("the compiler is not installed")


@impostor("refuses by the predicate and runs all the same", "add", Outcome.UNEXPECTED_PASS)
class Modest(Correct):
    """Says that it cannot add, and adds."""

    claims = frozenset({"sort"})
    honest = True

    def refusal(self, query: OpQuery, device: Device) -> str | None:
        """No addition, when asked."""
        return "no addition" if self.honest and query.op == "add" else None

    def compile(self, program: Program, device: Device, options: Options) -> Executable:
        """Builds it."""
        self.honest = False
        try:
            return super().compile(program, device, options)
        finally:
            self.honest = True


@impostor("returns zeros where it fails", "add", Outcome.MISMATCH)
class Zeros(Correct):
    """Swallows its errors."""

    def step(self, instruction: Instruction, operands: Sequence[Array], device: Device) -> Results:
        """Zeros of the right types."""
        return tuple(np.zeros(t.shape, t.dtype.numpy) for t in instruction.types)


@impostor("runs NumPy instead of the references", "maximum", Outcome.MISMATCH)
class PlainNumPy(Correct):
    """Takes NumPy's functions for the same thing."""

    def step(self, instruction: Instruction, operands: Sequence[Array], device: Device) -> Results:
        """NumPy's own, where it has one of the name."""
        plain = {"maximum": np.fmax, "minimum": np.fmin}.get(instruction.op)
        return (plain(*operands),) if plain else super().step(instruction, operands, device)


@impostor("hands its work to the reference backend", "add", Outcome.ERROR)
class Handing(Correct):
    """Lets another backend do it."""

    def step(self, instruction: Instruction, operands: Sequence[Array], device: Device) -> Results:
        """The reference backend's results."""
        reference = importlib.import_module("ptir_backend_ref").backend
        found: Results = reference.step(instruction, operands, reference.devices()[0])
        return found


@impostor("falls back to the host and counts it", "add", Outcome.ERROR)
class FallingBack(Correct):
    """Is honest in its counters only."""

    def __init__(self) -> None:
        self.counters = RunStats()

    def stats(self, device: Device) -> RunStats:
        """The counters."""
        return self.counters

    def step(self, instruction: Instruction, operands: Sequence[Array], device: Device) -> Results:
        """On the host."""
        self.counters.host_fallback_ops += 1
        return super().step(instruction, operands, device)


@impostor("gives other bits every second time", "add", Outcome.MISMATCH)
class Fickle(Correct):
    """Is not the same twice."""

    turn = 0

    def step(self, instruction: Instruction, operands: Sequence[Array], device: Device) -> Results:
        """One more, now and then."""
        self.turn += 1
        found = super().step(instruction, operands, device)
        return tuple(np.asarray(r + r.dtype.type(self.turn % 2)) for r in found)


@impostor("gives what an earlier call of the same types gave", "add", Outcome.MISMATCH)
class Stale(Correct):
    """Keeps results by the op and its types."""

    def __init__(self) -> None:
        self.kept: dict[Any, Results] = {}

    def step(self, instruction: Instruction, operands: Sequence[Array], device: Device) -> Results:
        """The first result."""
        key = instruction.op, instruction.types, tuple(map(_form, operands))
        return self.kept.setdefault(key, super().step(instruction, operands, device))


@impostor("its cache of kernels forgets the attributes", "reduce slice", Outcome.MISMATCH)
class Forgetful(Correct):
    """Keeps kernels by the op and its types."""

    def __init__(self) -> None:
        self.kept: dict[Any, Instruction] = {}

    def step(self, instruction: Instruction, operands: Sequence[Array], device: Device) -> Results:
        """The first instruction of these types."""
        key = instruction.op, instruction.types, tuple(map(_form, operands))
        return super().step(self.kept.setdefault(key, instruction), operands, device)


def _form(array: Array) -> tuple[str, tuple[int, ...]]:
    return str(array.dtype), array.shape


@impostor("results are views of the operands", "add sub", Outcome.MISMATCH)
class InPlace(Correct):
    """Writes into its first operand."""

    def step(self, instruction: Instruction, operands: Sequence[Array], device: Device) -> Results:
        """The result, in the operand's memory."""
        (found, *rest) = super().step(instruction, operands, device)
        if operands and operands[0].flags.writeable and _form(found) == _form(operands[0]):
            operands[0][...] = found
        return (found, *rest)


@impostor(
    "keeps the host's array instead of a copy, reversed views as dense", "add", Outcome.MISMATCH
)
class Borrowing(Correct):
    """Reads host memory from the lowest address up."""

    def upload(self, array: Array, device: Device, *, borrow: bool = False) -> Array:
        """The elements in the order of addresses."""
        turned = array[tuple(slice(None, None, -1 if s < 0 else 1) for s in array.strides)]
        return np.array(turned, order="C")


@impostor("hands out the results of another dtype", "cast add", Outcome.MISMATCH)
class Wide(Correct):
    """Forgets to narrow."""

    def download(self, handle: Array, device: Device) -> Array:
        """f64 for f32."""
        return handle.astype(np.float64) if handle.dtype == np.float32 else handle.copy()


@impostor("hands out its own arrays for downloads", "add", Outcome.MISMATCH)
class Revealing(Correct):
    """Its results are safe from everybody but their readers."""

    def download(self, handle: Array, device: Device) -> Array:
        """No copy."""
        return handle


@impostor("loses the last of several results", "sort", Outcome.MISMATCH, Outcome.ERROR)
class Single(Correct):
    """Gives one result."""

    def step(self, instruction: Instruction, operands: Sequence[Array], device: Device) -> Results:
        """The first twice."""
        found = super().step(instruction, operands, device)
        return (found[0],) * len(found)


@impostor("takes the process with it", "neg", Outcome.CRASH)
class Dying(Correct):
    """Ends the process when it negates an i32."""

    def step(self, instruction: Instruction, operands: Sequence[Array], device: Device) -> Results:
        """The end, for some."""
        if instruction.op == "neg" and operands[0].dtype == np.int32:
            os._exit(7)
        return super().step(instruction, operands, device)


@impostor("never comes back", "neg", Outcome.TIMEOUT)
class Hanging(Correct):
    """Hangs when it negates an i32."""

    def step(self, instruction: Instruction, operands: Sequence[Array], device: Device) -> Results:
        """No end, for some."""
        while instruction.op == "neg" and operands[0].dtype == np.int32:
            time.sleep(0.01)
        return super().step(instruction, operands, device)
