"""Impostors in what a run leaves for the next, in whole composites, in memory nobody counts."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ptir.backend import Device, Executable, OpQuery, Options
from ptir.ir.program import Instruction, Program
from ptir.types import I32
from ptir_testsuite.mutants.harness import Correct
from ptir_testsuite.mutants.impostors import Results, impostor
from ptir_testsuite.oracles.floats import Array
from ptir_testsuite.running.outcomes import Outcome


@dataclass
class Recalling(Executable):
    """A program that gives the results of its first run from a certain run on."""

    program: Program
    bound: Executable
    since: int
    runs: int = 0
    first: tuple[Any, ...] = ()

    def run(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """The results, for a while."""
        self.runs += 1
        found = self.bound.run(inputs)
        self.first = self.first or found
        return self.first if self.runs >= self.since else found


@impostor("a third run gives what the first gave", "sweep-mul", Outcome.MISMATCH)
class Third(Correct):
    """Is right twice."""

    def compile(self, program: Program, device: Device, options: Options) -> Executable:
        """The program, which remembers."""
        return Recalling(program, super().compile(program, device, options), 3)


@dataclass
class Starting(Executable):
    """A program that reads its integers once."""

    program: Program
    bound: Executable
    kept: dict[int, Any] = field(default_factory=dict[int, Any])
    runs: int = 0

    def run(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """The results, from the third run on with the first run's integers."""
        self.runs += 1
        given = list(inputs)
        for place, type in enumerate(self.program.inputs):
            if type.dtype == I32:
                first = self.kept.setdefault(place, inputs[place])
                given[place] = first if self.runs >= 3 else inputs[place]
        return self.bound.run(given)


class _Constant(Correct):
    """Takes integers for constants of the program."""

    def compile(self, program: Program, device: Device, options: Options) -> Executable:
        """The program with its first integers."""
        return Starting(program, super().compile(program, device, options))


@impostor("keeps the starts of its first run", "sweep-dynamic_slice", Outcome.MISMATCH)
class Slicing(_Constant):
    """Shows in slices."""


@impostor("keeps the starts of its first cache", "composite-cache_update", Outcome.MISMATCH)
class Caching(_Constant):
    """Shows in caches."""


@impostor("products of all threads have one scratch", "sweep-dot_general", Outcome.MISMATCH)
class Crowded(Correct):
    """Has a buffer for products, and no lock."""

    def __init__(self) -> None:
        self.scratch: dict[Any, Array] = {}

    def step(self, instruction: Instruction, operands: Sequence[Array], device: Device) -> Results:
        """The result, by way of the scratch."""
        found = super().step(instruction, operands, device)
        if instruction.op != "dot_general":
            return found
        (result,) = found
        buffer = self.scratch.setdefault(instruction.types, np.empty_like(result))
        buffer[...] = result
        time.sleep(1e-5)
        return (buffer.copy(),)


# --- whole composites ---


class _Whole(Correct):
    """Takes one composite whole, and does it in a way of its own, in f32."""

    composite = ""

    def refusal(self, query: OpQuery, device: Device) -> str | None:
        """The composite is taken, without its lowering."""
        if query.op == "composite" and query.attributes["name"] == self.composite:
            return None
        return super().refusal(query, device)

    def step(self, instruction: Instruction, operands: Sequence[Array], device: Device) -> Results:
        """The composite, or the reference of an op."""
        attributes = instruction.attributes
        if instruction.op == "composite" and attributes["name"] == self.composite:
            with np.errstate(all="ignore"):
                return (np.asarray(self.whole(operands, attributes), np.float32),)
        return super().step(instruction, operands, device)

    @abstractmethod
    def whole(self, operands: Sequence[Array], attributes: Any) -> Any:
        """What it gives."""


@impostor("softmax takes off the maximum of everything", "composite-softmax", Outcome.MISMATCH)
class FarAway(_Whole):
    """Is right where rows are alike."""

    composite = "softmax"

    def whole(self, operands: Sequence[Array], attributes: Any) -> Any:
        """Shares of what does not vanish."""
        (x,), axis = operands, attributes["axis"]
        weights = np.exp(x - np.max(np.where(np.isneginf(x), -3e38, x), initial=-3e38))
        total = weights.sum(axis=axis, keepdims=True)
        masked = np.all(np.isneginf(x), axis=axis, keepdims=True)
        return weights / np.where(masked, np.float32(1), total)


@impostor("a norm adds epsilon outside of the root", "composite-layer_norm", Outcome.MISMATCH)
class Outside(_Whole):
    """Is right where variances are large."""

    composite = "layer_norm"

    def whole(self, operands: Sequence[Array], attributes: Any) -> Any:
        """The norm with its epsilon elsewhere."""
        x, weight, bias = (a.astype(np.float64) for a in operands)
        spread = np.sqrt(x.var(-1, keepdims=True)) + attributes["epsilon"]
        return (x - x.mean(-1, keepdims=True)) / spread * weight + bias


@impostor("a variance is E[x^2] - E[x]^2", "composite-layer_norm", Outcome.MISMATCH)
class OnePass(_Whole):
    """Is right where means are small."""

    composite = "layer_norm"

    def whole(self, operands: Sequence[Array], attributes: Any) -> Any:
        """The norm in one pass over f32."""
        x, weight, bias = operands
        mean = x.mean(-1, keepdims=True)
        variance = np.square(x).mean(-1, keepdims=True) - np.square(mean)
        scale = 1 / np.sqrt(variance + np.float32(attributes["epsilon"]))
        return (x - mean) * scale * weight + bias


# --- memory that nobody counts ---


@impostor("never lets go, and counts nothing", "lifetime-memory", Outcome.MISMATCH)
class Hoarding(Correct):
    """Keeps everything that it computed, and tells no live bytes."""

    def __init__(self) -> None:
        self.kept: list[Array] = []

    def step(self, instruction: Instruction, operands: Sequence[Array], device: Device) -> Results:
        """The results, kept."""
        found = super().step(instruction, operands, device)
        self.kept += found
        return found
