"""The backend: which OpenCL devices there are, best first, and how one is opened."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from ptir.backend import Device
from ptir.backend.contract import DeviceKind
from ptir.backend.kernel import KernelDevice
from ptir.codegen import KernelBackend
from ptir.errors import BackendUnavailable

HINT = (
    "install a driver: `apt-get install pocl-opencl-icd` (CPU), intel-opencl-icd,"
    " mesa-opencl-icd or rocm-opencl-runtime (GPU)"
)


class OpenCLBackend(KernelBackend):
    """Every OpenCL device of the machine, discrete GPUs first."""

    name = "opencl"

    @cached_property
    def _found(self) -> list[tuple[Device, Any]]:
        """The devices with what PyOpenCL calls them, in the order of preference."""
        import pyopencl as cl

        try:
            platforms = cl.get_platforms()
        except cl.Error as error:
            raise BackendUnavailable(f"opencl: no platform: {error}; {HINT}") from error
        ranked: list[tuple[int, int, str, Any]] = []
        for order, platform in enumerate(platforms):
            for device in _devices(platform):
                kind = kind_of(device)
                rank = ("discrete", "integrated", "cpu").index(kind)
                ranked.append((rank, order, kind, device))
        ranked.sort(key=lambda entry: entry[:2])
        return [
            (Device(number, device.name.strip(), _kind(kind), _detail(device)), device)
            for number, (_, _, kind, device) in enumerate(ranked)
        ]

    def devices(self) -> Sequence[Device]:
        """Discrete GPUs, integrated GPUs, CPUs; in the platforms' order within each."""
        return tuple(device for device, _ in self._found)

    def open(self, device: Device) -> KernelDevice:
        """A context and a queue on the device."""
        from ptir_backend_opencl.device import OpenCLDevice

        return OpenCLDevice(self._found[device.index][1])


def _devices(platform: Any) -> list[Any]:
    import pyopencl as cl

    try:
        return list(platform.get_devices())
    except cl.Error:  # a platform without devices says so with an error
        return []


def kind_of(device: Any) -> str:
    """``discrete``, ``integrated`` or ``cpu``."""
    import pyopencl as cl

    if not device.type & (cl.device_type.GPU | cl.device_type.ACCELERATOR):
        return "cpu"
    return "integrated" if device.host_unified_memory else "discrete"


def _kind(kind: str) -> DeviceKind:
    kinds: dict[str, DeviceKind] = {
        "discrete": "discrete",
        "integrated": "integrated",
        "cpu": "cpu",
    }
    return kinds[kind]


def _detail(device: Any) -> str:
    return f"{device.platform.name.strip()}, {device.version.strip()}"


def backend() -> OpenCLBackend:
    """The instance; PyOpenCL must be importable."""
    import pyopencl  # noqa: F401  says at once, and with the cause, when it is not

    return OpenCLBackend()
