"""Times programs on the device itself, one against the other: whole, warmed up, synchronized.

Rounds of all candidates alternate, so that what slows the machine down meanwhile slows all of them.
What a model holds as parameters is given as parameters, in the form that the backend packs them
into, and runs go through several copies of it, so that no cache holds what a model reads from
memory.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from ptir.backend.contract import Derivation, Handle, Options
from ptir.errors import PtirError
from ptir.ir.program import Port, Program
from ptir.passes.context import PassContext
from ptir.passes.finish import finished
from ptir.types import TensorType

WARM_UPS: Final = 2
ROUNDS: Final = 9
LEAST: Final = 1e-3
"""Seconds that a round should take at least, by running several times."""
MOST: Final = 64
"""Most runs of a round."""
ROTATED: Final = 64 << 20
"""Bytes of parameters that runs go through in rotation."""
COPIES: Final = 8
"""Most copies of them, however small."""


def run_times(
    candidates: Mapping[str, Program], context: PassContext
) -> tuple[dict[str, list[float]], dict[str, str]]:
    """Seconds of one run of each candidate, round by round; why others cannot be run."""
    measured: dict[str, _Measured] = {}
    refused: dict[str, str] = {}
    for name, program in candidates.items():
        try:
            measured[name] = _Measured(program, context)
            measured[name].warm_up()
        except PtirError as error:
            measured.pop(name, None)
            refused[name] = str(error)
    times: dict[str, list[float]] = {name: [] for name in measured}
    for _ in range(ROUNDS):
        for name, one in measured.items():
            times[name].append(one.round())
    return times, refused


class _Measured:
    """One candidate, compiled, with handles to run on."""

    def __init__(self, program: Program, context: PassContext) -> None:
        own = replace(context, derived={}, rewrites={})
        made = finished(program, own)
        self._context = own
        self._executable = context.backend.compile(made, context.device, Options())
        arrays = dict(
            zip((port.name for port in program.ports), sample_inputs(program.inputs), strict=True)
        )
        typed = list(zip(made.ports, made.inputs, strict=True))
        held = sum(type.nbytes for port, type in typed if port.kind == "parameter")
        copies = max(1, min(COPIES, ROTATED // held)) if held else 1
        given = {p.name: self._uploaded(p, arrays) for p in made.ports if p.kind == "input"}
        self._sets = [
            [given[p.name] if p.kind == "input" else self._uploaded(p, arrays) for p in made.ports]
            for _ in range(copies)
        ]
        self._runs = 1
        self._turn = 0

    def _uploaded(self, port: Port, arrays: Mapping[str, Any]) -> Handle:
        """An operand; a derived one is computed from what it is derived from."""
        backend, device = self._context.backend, self._context.device
        derivation = self._context.derived.get(port.name)
        if derivation is None:
            return backend.upload(arrays[port.name], device)
        return self._computed(derivation, arrays)

    def _computed(self, derivation: Derivation, arrays: Mapping[str, Any]) -> Handle:
        backend, device = self._context.backend, self._context.device
        program = Program(derivation.block, tuple(Port(port.name) for port in derivation.ports))
        handles = [self._uploaded(port, arrays) for port in derivation.ports]
        return backend.compile(program, device, Options()).run(handles)[0]

    def warm_up(self) -> None:
        """Run as often as needed for caches and clocks; settles how many runs a round has."""
        took = min(self.round() for _ in range(WARM_UPS))
        self._runs = min(MOST, int(LEAST / max(took, 1e-9)) + 1)

    def round(self) -> float:
        """Seconds of one run, in the mean of a round."""
        backend, device = self._context.backend, self._context.device
        backend.synchronize(device)
        start = time.perf_counter()
        for _ in range(self._runs):
            self._executable.run(self._sets[self._turn % len(self._sets)])
            self._turn += 1
        backend.synchronize(device)
        return (time.perf_counter() - start) / self._runs


def sample_inputs(types: Iterable[TensorType]) -> Sequence[Any]:
    """Operands to time with: floats in [0, 1), integers half the longest axis, bools true.

    Integers are lengths, positions and indices, which should fall inside something.
    """
    import numpy as np

    listed = list(types)
    middle = max((size for t in listed for size in t.shape), default=2) // 2
    random = np.random.default_rng(0)
    return [
        random.random(t.shape).astype(t.dtype.numpy)
        if t.dtype.is_float
        else np.full(t.shape, min(middle, 127) if t.dtype.bits == 8 else middle, t.dtype.numpy)
        for t in listed
    ]
