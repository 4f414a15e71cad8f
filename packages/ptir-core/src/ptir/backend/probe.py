"""The probe: a small program with a known answer, run to find out whether a device works."""

from __future__ import annotations

from functools import cache
from typing import Final

from ptir import ops
from ptir.backend.contract import Backend, Device, Options
from ptir.backend.declared import check_claimed
from ptir.backend.entries import guard
from ptir.errors import DeviceError, PtirError
from ptir.ir.graph import freeze, source
from ptir.ir.program import Port, Program
from ptir.types import spec

A: Final = [[1.0, -2.0], [3.0, 0.5]]
OPS: Final = ("add", "dot_general")
"""What the probe needs of a device, on f32."""
B: Final = [[-4.0, 1.0], [0.0, 2.5]]
EXPECTED: Final = [[12.0, -5.5], [-12.0, 10.5]]


@cache
def probe_program() -> Program:
    """``dot(a + b, b)`` on ``f32[2,2]``: one elementwise kernel and one contraction."""
    a, b = source(spec("f32", 2, 2)), source(spec("f32", 2, 2))
    product = ops.dot_general(ops.add(a, b), b, lhs_contract=(1,), rhs_contract=(0,))
    return Program(freeze([product], [a, b]), (Port("a"), Port("b")))


def probe(backend: Backend, device: Device) -> PtirError | None:
    """Why ``device`` does not work, or None when it gave the right answer."""
    try:
        check_claimed(backend, device)
        with guard("the probe program"):
            found = _run(backend, device)
    except PtirError as error:
        return error
    if found == EXPECTED:
        return None
    return DeviceError(f"the probe program gave {found} instead of {EXPECTED}")


def _run(backend: Backend, device: Device) -> object:
    import numpy as np

    executable = backend.compile(probe_program(), device, Options())
    inputs = [backend.upload(np.array(values, np.float32), device) for values in (A, B)]
    (output,) = executable.run(inputs)
    backend.synchronize(device)
    return backend.download(output, device).tolist()
