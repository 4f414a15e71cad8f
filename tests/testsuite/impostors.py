"""Backends that must not get away with it, and honest ones that can do little."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import numpy as np

from ptir.backend.contract import BackendPass
from ptir.errors import DeviceError, DeviceLost
from ptir.ir.graph import rebuild, repeat
from ptir_testsuite.mutants import Correct

FORMS = 3
"""The forms in which a random program is run."""


class Little(Correct):
    """Takes additions only and says so."""

    name = "little"
    claims = frozenset({"sort"})

    def refusal(self, query, device):
        return None if query.op == "add" else "only add is taken"


class Nothing(Correct):
    """Claims the core and takes nothing."""

    name = "nothing"
    claims = frozenset({"core"})

    def refusal(self, query, device):
        return "nothing is taken"


class Modest(Correct):
    """Says that it cannot add, and adds."""

    name = "modest"

    def refusal(self, query, device):
        return "no addition" if query.op == "add" else super().refusal(query, device)

    def compile(self, program, device, options):
        self_refusal, self.refusal = self.refusal, super().refusal
        try:
            return super().compile(program, device, options)
        finally:
            self.refusal = self_refusal


class Rude(Correct):
    """Refuses by the predicate, and its compile raises something of its own."""

    name = "rude"

    def refusal(self, query, device):
        return "no addition" if query.op == "add" else super().refusal(query, device)

    def compile(self, program, device, options):
        raise KeyError("add")


class Failing(Correct):
    """Loses its device when it multiplies."""

    name = "failing"

    def step(self, instruction, operands, device):
        if instruction.op == "mul":
            raise DeviceError("the device is gone")
        return super().step(instruction, operands, device)


class Fickle(Correct):
    """Gives other bits every second time."""

    name = "fickle"
    turn = 0

    def step(self, instruction, operands, device):
        self.turn += 1
        found = super().step(instruction, operands, device)
        return tuple(np.asarray(r + r.dtype.type(self.turn % 2)) for r in found)


class Zeros(Correct):
    """Returns zeros for everything."""

    name = "zeros"

    def step(self, instruction, operands, device):
        return tuple(np.zeros_like(r) for r in super().step(instruction, operands, device))


class Dying(Correct):
    """Takes the process with it when it negates an integer."""

    name = "dying"

    def step(self, instruction, operands, device):
        if instruction.op == "neg" and operands[0].dtype == np.int32:
            os._exit(7)
        return super().step(instruction, operands, device)


class Losing(Correct):
    """Loses its device when it negates an integer, and its process gets no other."""

    name = "losing"
    lost = False

    def step(self, instruction, operands, device):
        self.lost |= instruction.op == "neg" and operands[0].dtype == np.int32
        self._reached()
        return super().step(instruction, operands, device)

    def upload(self, array, device, *, borrow=False):
        self._reached()
        return super().upload(array, device, borrow=borrow)

    def _reached(self):
        if self.lost:
            raise DeviceLost("the device is gone")


class Shot(Correct):
    """Is killed, as by the kernel that runs out of memory, whenever it negates an integer."""

    name = "shot"

    def step(self, instruction, operands, device):
        if instruction.op == "neg" and operands[0].dtype == np.int32:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(instruction, operands, device)


class Unlucky(Correct):
    """Is killed from outside, once."""

    name = "unlucky"

    def step(self, instruction, operands, device):
        mark = Path(os.environ["PTIR_TEST_MARK"])
        if instruction.op == "neg" and operands[0].dtype == np.int32 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(60)
        return super().step(instruction, operands, device)


class Crowded(Correct):
    """Takes the process with it when it compiles several programs that negate at once."""

    name = "crowded"

    def compile_all(self, programs, device):
        ops = [i.op for program, _ in programs for i in program.main.instructions]
        if len(programs) > FORMS and "neg" in ops:
            os._exit(7)
        return super().compile_all(programs, device)


class Unsociable(Correct):
    """Compiles the forms of a program, and not of two."""

    name = "unsociable"

    def compile_all(self, programs, device):
        if len(programs) > FORMS:
            raise RuntimeError("too many programs")
        return super().compile_all(programs, device)


class Interrupted(Correct):
    """Somebody presses Ctrl-C while it negates."""

    name = "interrupted"

    def step(self, instruction, operands, device):
        if instruction.op == "neg":
            os.kill(os.getpid(), signal.SIGINT)
        return super().step(instruction, operands, device)


class Hanging(Correct):
    """Never comes back from negating an integer."""

    name = "hanging"

    def step(self, instruction, operands, device):
        while instruction.op == "neg" and operands[0].dtype == np.int32:
            time.sleep(0.01)
        return super().step(instruction, operands, device)


class Flushing(Correct):
    """Has no subnormal numbers."""

    name = "flushing"

    def step(self, instruction, operands, device):
        found = super().step(instruction, [flushed(a) for a in operands], device)
        return tuple(flushed(a) for a in found)


def flushed(array):
    """Subnormal numbers replaced by zeros of their sign."""
    if array.dtype != np.float32:
        return array
    small = np.abs(array) < np.finfo(np.float32).tiny
    return np.where(small, np.copysign(np.float32(0), array), array)


class Fusing(Correct):
    """Takes gelu whole, and computes its approximation whatever was asked for."""

    name = "fusing"

    def refusal(self, query, device):
        return None if query.name == "gelu" else super().refusal(query, device)

    def step(self, instruction, operands, device):
        if instruction.op != "composite":
            return super().step(instruction, operands, device)
        (x,) = operands
        inner = np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)
        return ((x / 2 * (1 + np.tanh(inner))).astype(np.float32),)


class Swapping(Correct):
    """Its own pass turns differences around."""

    name = "swapping"

    def passes(self):
        return (BackendPass("swap", "pre", swap),)


def swap(program):
    """``a - b`` becomes ``b - a``."""
    from dataclasses import replace

    def visit(instruction, operands):
        return repeat(instruction, operands[::-1]) if instruction.op == "sub" else None

    return replace(program, main=rebuild(program.main, visit))
