"""Probes of memory bandwidth, to say which share of it decoding reaches in the same minute."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ptir.backend.contract import Target

SIDE = 8192
"""Rows and columns of the f32 matrix that is read or updated: 256 MB, more than caches hold."""
REPEATS = 3


def probe_of(target: Target) -> Callable[[], float]:
    """The probe for ``target``, in bytes per second: of the host where it computes, else of it."""
    if target.device.kind in ("cpu", "reference"):
        return read_bandwidth
    return DeviceProbe(target).bandwidth


def read_bandwidth() -> float:
    """The best of several matrix-vector products on the host, each reading the matrix once."""
    matrix, vector = _operands()
    best = float("inf")
    for _ in range(REPEATS):
        began = time.perf_counter()
        matrix @ vector
        best = min(best, time.perf_counter() - began)
    return float(matrix.nbytes / best)


@functools.cache
def _operands() -> tuple[Any, Any]:
    import numpy as np

    return np.ones((SIDE, SIDE), np.float32), np.ones(SIDE, np.float32)


class DeviceProbe:
    """Doubles a matrix of zeros on a device, in place where the backend can.

    Each run reads it once and writes it once.
    """

    def __init__(self, target: Target, side: int = SIDE) -> None:
        import numpy as np

        from ptir.backend.contract import Options
        from ptir.ir.graph import freeze, source
        from ptir.ir.program import Port, Program
        from ptir.ops import add
        from ptir.types import spec

        self._target = target
        matrix = source(spec("f32", side, side))
        program = Program(freeze([add(matrix, matrix)], [matrix]), (Port("x"),))
        options = Options(donated=frozenset({0}))
        self._executable = target.backend.compile(program, target.device, options)
        self._handle = target.backend.upload(np.zeros((side, side), np.float32), target.device)
        self._nbytes = 2 * 4 * side * side
        self._run()

    def _run(self) -> None:
        (self._handle,) = self._executable.run([self._handle])
        self._target.backend.synchronize(self._target.device)

    def bandwidth(self) -> float:
        """The best of several runs."""
        best = float("inf")
        for _ in range(REPEATS):
            began = time.perf_counter()
            self._run()
            best = min(best, time.perf_counter() - began)
        return self._nbytes / best
