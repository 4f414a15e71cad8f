"""The backend: the devices that were found, opened when asked for, and advice when one fails."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from ptir.backend import Device
from ptir.backend.contract import Finding
from ptir.codegen.api import KernelBackend, KernelDevice
from ptir_backend_opencl import drivers, platforms

REMEDIES = (
    (
        "unknown target CPU",
        "this PoCL is too old for the CPU (the one from pip is): `pip uninstall"
        " pocl-binary-distribution`, then `apt-get install pocl-opencl-icd` or `pip install"
        " 'ptir-backend-opencl[cpu]'`",
    ),
    ("clCreateContext", "the driver is installed but does not start; update or reinstall it"),
    ("clBuildProgram", "the driver's compiler fails; update the driver, or use another device"),
)
"""What an error holds, and what to do then."""


class OpenCLBackend(KernelBackend):
    """Every OpenCL device of the machine, discrete GPUs first."""

    name = "opencl"
    remedies = REMEDIES

    @cached_property
    def _found(self) -> list[tuple[Device, Any]]:
        return platforms.found()

    def devices(self) -> Sequence[Device]:
        """Discrete GPUs, integrated GPUs, CPUs; raises ``BackendUnavailable`` with the fix."""
        return tuple(device for device, _ in self._found)

    def capabilities(self, device: Device) -> Mapping[str, Any]:
        """What the driver says about the device."""
        return platforms.capabilities(self._found[device.index][1])

    def findings(self) -> Sequence[Finding]:
        """Every registered driver and whether it loads."""
        found = [
            Finding(str(driver.icd), driver.problem or f"{driver.library} loads", driver.fix)
            for driver in drivers.drivers()
        ]
        if runtime := drivers.intel_runtime():
            found.append(Finding("Intel's runtime from pip", str(runtime / drivers.INTEL_LIBRARY)))
        return found

    def open(self, device: Device) -> KernelDevice:
        """A context and a queue on the device."""
        from ptir_backend_opencl.device import OpenCLDevice

        return OpenCLDevice(self._found[device.index][1])


def backend() -> OpenCLBackend:
    """The instance; PyOpenCL must be installed, and is imported when devices are asked for."""
    platforms.require_pyopencl()
    return OpenCLBackend()
