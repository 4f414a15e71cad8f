"""Impostors that are right on everything small: only whole models give them away.

Each takes a composite whole and runs its lowering on other lengths or positions than it was given.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ptir.backend import Device, OpQuery, Options
from ptir.ir.program import Instruction, Port, Program
from ptir.passes.context import PassContext
from ptir.passes.legalize import legalize
from ptir_testsuite.mutants.harness import Correct, Results
from ptir_testsuite.mutants.impostors import impostor
from ptir_testsuite.oracles.floats import Array
from ptir_testsuite.running.outcomes import Outcome


class Whole(Correct):
    """Takes the composite called ``taken`` whole; nothing is wrong here."""

    taken = ""

    def refusal(self, query: OpQuery, device: Device) -> str | None:
        """Nothing against that one."""
        if query.is_composite and query.name == self.taken:
            return None
        return super().refusal(query, device)

    def step(self, instruction: Instruction, operands: Sequence[Array], device: Device) -> Results:
        """The lowering of the composite, on what ``changed`` makes of its operands."""
        if instruction.op != "composite":
            return super().step(instruction, operands, device)
        (region,) = instruction.regions
        ports = tuple(Port(f"x{n}") for n in range(len(operands)))
        lowered = legalize(Program(region, ports), PassContext(self, device))
        executable = self.compile(lowered, device, Options())
        return tuple(executable.run(list(self.changed(*operands))))

    def changed(self, *operands: Array) -> Sequence[Array]:
        """Other operands."""
        return operands


@impostor("several queries see the first 64 keys only", "model-gpt2", Outcome.MISMATCH)
class Near(Whole):
    """Its schedule for prompts has room for one block of keys."""

    taken = "attention"

    def changed(self, *operands: Array) -> Sequence[Array]:
        """Lengths within the block."""
        q, k, v, start, length, *sinks = operands
        within = (q, k, v, start, np.minimum(length, 64), *sinks)
        return within if q.shape[2] > 1 else operands


@impostor("updates the caches of four rows where the first is", "model-gpt2", Outcome.MISMATCH)
class Mixing(Whole):
    """Reads one position for four rows of a batch."""

    taken = "cache_update"

    def changed(self, *operands: Array) -> Sequence[Array]:
        """The positions of rows 0, 4, 8 and so on, for whole groups of four."""
        cache, rows, start, count = operands
        whole = len(start) // 4 * 4
        same = np.concatenate([np.repeat(start[:whole:4], 4), start[whole:]])
        return cache, rows, same.astype(start.dtype), count
