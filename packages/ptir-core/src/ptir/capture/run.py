"""Running a program by itself: arrays by the names of its ports in, arrays out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ptir.backend.checked import downloaded
from ptir.capture.host import host_array
from ptir.capture.lazy import default_target
from ptir.capture.plan import plan_for
from ptir.errors import UsageError
from ptir.ir.program import Port, Program
from ptir.types import TensorType, dtype_of


def run_program(
    program: Program, inputs: Mapping[str, Any], backend: Any = None
) -> tuple[Any, ...]:
    """Run a program (parsed from a dump, say) on arrays given by port name.

    Parameters are given by name too; what no port is called is ignored. ``backend`` is a name
    (``ref``, ``opencl:0``) or a Target; None picks the best. Returns NumPy arrays; raises
    ``UsageError`` when an array is missing or has another type than its port.
    """
    arrays = checked_arrays(program, inputs)
    target = default_target(backend)
    plain = Program(program.main, tuple(Port(p.name) for p in program.ports))
    plan = plan_for(plain, target, name="program")
    handles = [target.backend.upload(arrays[p.name], target.device) for p in program.ports]
    outputs = plan.run(handles, ())
    types = program.main.output_types
    return tuple(
        downloaded(target.backend, handle, target.device, type)
        for handle, type in zip(outputs, types, strict=True)
    )


def checked_arrays(program: Program, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The array of each port by its name; raises ``UsageError`` as ``run_program`` does."""
    arrays: dict[str, Any] = {}
    for port, type in zip(program.ports, program.inputs, strict=True):
        if port.name not in inputs:
            wanted = ", ".join(p.name for p in program.ports)
            given = ", ".join(inputs) or "nothing"
            said = f"no array for port {port.name!r} ({type})"
            raise UsageError(f"{said}; the program takes {wanted}, given: {given}")
        array = arrays[port.name] = host_array(inputs[port.name])
        found = TensorType(dtype_of(array), tuple(array.shape))
        if found != type:
            raise UsageError(f"port {port.name!r} takes {type}, given {found}")
    return arrays
